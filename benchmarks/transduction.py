"""SS-Text-U and TransCLIP on the batches of together.py, for docs/evidence/unlabelled.md.

Written from the papers' equations, on global features and the prompt bank; not methods of the
package. `fused` alone and together are beside them.

    python benchmarks/transduction.py --out runs/transduction --judge rest   # chooses gamma
    python benchmarks/transduction.py --out runs/transduction-test
    python benchmarks/transduction.py --out runs/transduction-test --table
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

from by_dataset import SHARED, options_of, run, text_of
from ogkd.core.geometry import prototypes
from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import few_shot
from ogkd.evaluation.confidence import aurc, nll
from ogkd.features.store import FeatureStore
from together import KINDS, chosen

GAMMAS = (0.002, 0.01, 0.02, 0.2)  # of TransCLIP: what all labelled images count beside the batch
_SINKHORN, _OUTER, _INNER, _NEIGHBOURS, _LAMBDA = 100, 10, 5, 3, 0.5


def ss_text_u(S: Tensor, Z: Tensor, U: Tensor, T: Tensor, scale: float) -> Tensor:
    """Class weights from texts, labelled means, and means of a balanced division of the batch.

    The batch is divided by Sinkhorn's iterations, with the class shares of the labelled images.
    """
    n = Z.sum(0)
    w = T + scale / len(S) * (Z.mT @ S) * n[:, None] / n.mean()
    P = (scale * (U @ normalize(w, dim=-1).mT)).softmax(-1)
    for _ in range(_SINKHORN):
        P = P * (n / n.sum() * len(U) / P.sum(0))
        P = P / P.sum(1, keepdim=True)
    both = w + scale / len(U) * (P.mT @ U)
    return scale * (U @ normalize(both, dim=-1).mT)


def transclip(S: Tensor, Z: Tensor, U: Tensor, T: Tensor, scale: float, gamma: float) -> Tensor:
    """Gaussian classes with one diagonal covariance, a neighbour graph and the zero-shot answer.

    Blocks in turn: z_i ~ y_i^lambda exp(log p_i + sum_j w_ij z_j), then means and variances.
    """
    log_y = (scale * (U @ T.mT)).log_softmax(-1)
    z = log_y.exp()
    everything = torch.cat([U, S])
    near = (U @ everything.mT).clamp_min(0)
    near[:, : len(U)].fill_diagonal_(0)
    kept = near.topk(_NEIGHBOURS, dim=1)
    graph = torch.zeros_like(near).scatter(1, kept.indices, kept.values)
    means = Z.mT @ S / Z.sum(0)[:, None]
    variance = torch.full_like(U[0], 1 / U.shape[1])
    for _ in range(_OUTER):
        away = (U[:, None] - means).square() / variance  # [U, C, d]
        log_p = -away.sum(-1) / 2
        for _ in range(_INNER):
            z = (_LAMBDA * log_y + log_p + graph @ torch.cat([z, Z])).softmax(-1)
        weights = torch.cat([z / len(U), gamma * Z / len(S)])  # [U + S, C]
        means = weights.mT @ everything / weights.sum(0)[:, None]
        spread = (everything[:, None] - means).square()
        variance = (weights[:, :, None] * spread).sum((0, 1)) / (1 + gamma)
    return z.log()


def one_dataset(name: str, backbone: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Both at every number of shots, seed and kind of batch."""
    manifest = read_manifest(SHARED / "data" / name)
    T = prototypes(text_of(name, manifest.class_names, backbone).bank).double().cpu()
    items = list(manifest.items)
    found = FeatureStore(backbone).get([item.image for item in items], deep=True)
    v = normalize(found.globals[:, 0].double(), dim=-1)
    labels = torch.tensor([item.label for item in items])
    row_of = {item: row for row, item in enumerate(items)}
    splits = {"test"} if options.judge == "test" else {"train", "val"}
    rows = []
    for shots in options.shots:
        for seed in options.seeds:
            known = [row_of[item] for item in few_shot(manifest.part("train"), shots, seed)]
            judged = [row_of[i] for i in items if i.split in splits and row_of[i] not in set(known)]
            S, Z = v[known], one_hot(labels[known], len(T)).double()
            for kind in KINDS:
                batch = np.array(judged)[chosen(kind, labels[judged].tolist(), seed)]
                U, truth = v[batch], labels[batch].numpy()
                ways = {"SS-Text-U": ss_text_u(S, Z, U, T, backbone.logit_scale)}
                for gamma in options.gammas:
                    said = transclip(S, Z, U, T, backbone.logit_scale, gamma)
                    ways[f"TransCLIP, gamma {gamma:g}"] = said
                for way, logits in ways.items():
                    p = logits.softmax(-1).numpy()
                    right = 100 * float((p.argmax(1) == truth).mean())
                    score = [right, 100 * aurc(truth, p), nll(truth, p)]
                    about = {"shots": shots, "seed": seed, "kind": kind}
                    rows.append(about | {"way": way, "score": score})
    return {"dataset": name, "judged": options.judge, "rows": rows}


def table(done: list[dict[str, Any]]) -> str:
    """Means over datasets."""
    every = [row for one in done for row in one["rows"]]
    shots = sorted({row["shots"] for row in every})
    lines = ["| | | " + " | ".join(f"K = {K}" for K in shots) + " |"]
    lines.append("|---" * (2 + len(shots)) + "|")
    for kind in KINDS:
        for way in dict.fromkeys(row["way"] for row in every):
            cells = []
            for K in shots:
                about = {"shots": K, "kind": kind, "way": way}
                mine = [row["score"] for row in every if about.items() <= row.items()]
                a, b, c = np.mean(mine, axis=0)  # as many rows of each dataset
                cells.append(f"{a:.1f} / {b:.1f} / {c:.2f}")
            lines.append(f"| {kind} | {way} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print."""
    parser = options_of(__doc__, "runs/transduction", ["test", "rest"])
    parser.add_argument("--gammas", nargs="+", type=float, default=list(GAMMAS))
    options = parser.parse_args()
    done = run(options, one_dataset)
    if done:
        print(table(done))


if __name__ == "__main__":
    main()
