"""Which optimiser for a few thousand parameters: OGKD's accuracy along the way, step by step.

Full batches, whole images, no test images (see optimisers.py, whose division of the data this
uses). SGD with a large rate and Adam with four run side by side, two seeds each, and are judged at
some steps; L-BFGS (strong Wolfe line search) is judged at the same numbers of text passes. One
JSON for each dataset and number of shots; what is there is not computed again. `--ends` follows
Adam with 0.03 alone and compares when to stop: by the cross-entropy of the images learned from.

    OGKD_SHARED=../shared python benchmarks/optimiser_paths.py --out runs/paths
    python benchmarks/optimiser_paths.py --out runs/paths --table
    OGKD_SHARED=../shared python benchmarks/optimiser_paths.py --ends --out runs/ends \
        --datasets BTMRI BUSI RETINA
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ogkd.backbones import load_backbone
from ogkd.core.batches import Batch
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import PromptLearner
from ogkd.core.training import converged
from ogkd.data.names import normal_labels
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.features.store import FeatureStore
from ogkd.files import write_json
from ogkd.fitting.prepare import Drawn, make_support, text_sides
from ogkd.methods import make_method
from ogkd.methods.ogkd import OGKD, OGKDObjective
from ogkd.prompts.bank import read_bank
from optimisers import BACKBONE, SHARED, parts

CANDIDATES = (("sgd", 0.04), ("adam", 0.003), ("adam", 0.01), ("adam", 0.03), ("adam", 0.1))
SEEDS = (1, 2)
JUDGED = (2, 5, 10, 20, 30, 40, 60, 80, 100, 130)
CLOSELY = (0, 3, 6, 9, 12, 15, 18, 21, 25, 30, 35, 40, 50, 60, 70, 80, 100)
ENOUGH = (0.5, 0.4, 0.3, 0.25, 0.2, 0.1)  # cross-entropies to stop at
AUTO = TrainConfig(tolerance=0.01, enough=0.25)

Judge = Callable[[Tensor], list[tuple[float, float]]]


def prepare(
    store: FeatureStore, name: str, shots: int, runs: int
) -> tuple[PromptLearner, OGKDObjective, Batch, Tensor, Judge]:
    """Everything that the candidates share: `runs` of each seed, next to each other."""
    dataset = read_dataset(SHARED / "data" / name)
    dataset = dataset.with_normal(normal_labels(dataset.names, None))
    pool, judges = parts(dataset, test=False)
    bank = read_bank(Path(name.lower().removesuffix("_19")))
    text = text_sides(store.backbone, dataset.task, bank)[0]
    method = cast(OGKD, make_method("ogkd", preset="auto"))
    learner = method.learner(text)
    task = dataset.task
    supports = [
        make_support(
            method, store, task, Drawn(*support_and_val(task, pool, [], shots, seed)), seed
        )
        for seed in SEEDS
    ]
    looks = [
        one.views.look(np.arange(len(one.labels)), np.random.default_rng(0)) for one in supports
    ]
    patches = torch.stack([look.patches for look in looks if look.patches is not None])
    batch = Batch(
        torch.stack([look.globals for look in looks]).float().repeat(runs, 1, 1),
        torch.stack([one.labels for one in supports]).repeat(runs, 1),
        patches.float().repeat(runs, 1, 1, 1),
    )
    scale = store.backbone.logit_scale
    objective = OGKDObjective(method.config, text.bank, scale, "cpu")
    start = learner.initial_context(torch.Generator())
    features = store.get([case.image for case in judges]).globals[:, 0].float()
    labels = torch.tensor([case.target for case in judges])

    @torch.no_grad()
    def judge(contexts: Tensor) -> list[tuple[float, float]]:
        z = scale * features @ normalize(learner.text_features(contexts), dim=-1).mT
        right = [float((row.argmax(dim=1) == labels).float().mean()) for row in z]
        return list(zip(right, [float(cross_entropy(row, labels)) for row in z], strict=True))

    return learner, objective, batch, start, judge


def first_order(
    store: FeatureStore,
    dataset: str,
    shots: int,
    candidates: Sequence[tuple[str, float]] = CANDIDATES,
    judged_at: Sequence[int] = JUDGED,
) -> dict[str, Any]:
    """All in one pass: cross-entropies of every step, and what the judges say at some."""
    learner, objective, batch, start, judge = prepare(store, dataset, shots, len(candidates))
    x = start.expand(len(batch.labels), *start.shape).clone().requires_grad_()
    rate = torch.tensor([lr for _, lr in candidates for _ in SEEDS])[:, None, None]
    plain = torch.tensor([kind == "sgd" for kind, _ in candidates for _ in SEEDS])[:, None, None]
    velocity, first, second = (torch.zeros_like(x) for _ in range(3))
    losses, judged = [], {0: judge(x.detach())}
    for t in range(1, judged_at[-1] + 1):
        terms = objective(learner.text_features(x), batch)
        (g,) = torch.autograd.grad(terms["total"].sum(), x)
        losses.append(terms["ce"].tolist())
        with torch.no_grad():
            velocity.mul_(0.9).add_(g + 5e-4 * x)
            first.mul_(0.9).add_(g, alpha=0.1)
            second.mul_(0.99).addcmul_(g, g, value=0.01)
            adam = first / (1 - 0.9**t) / ((second / (1 - 0.99**t)).sqrt() + 1e-8)
            x -= rate * torch.where(plain, velocity, adam)
        if t in judged_at:
            judged[t] = judge(x)
    return {"losses": losses, "judged": judged}


def lbfgs(store: FeatureStore, dataset: str, shots: int) -> dict[int, list[tuple[float, float]]]:
    """The judges' words after at most so many passes of the text tower, a seed at a time."""
    learner, objective, batch, start, judge = prepare(store, dataset, shots, 1)
    found: dict[int, list[tuple[float, float]]] = {}
    for row in range(len(SEEDS)):
        assert batch.patches is not None
        everything = (batch.globals, batch.labels, batch.patches)
        own = Batch(*(part[row : row + 1] for part in everything))
        one = OGKDObjective(objective.config, list(objective.bank), objective.scale, "cpu")
        x = start.unsqueeze(0).clone().requires_grad_()
        optimiser = torch.optim.LBFGS(
            [x], max_iter=1, max_eval=25, history_size=10, line_search_fn="strong_wolfe"
        )
        passes, said = [0], {0: judge(x.detach())[0]}

        def loss(
            x: Tensor = x,
            one: OGKDObjective = one,
            own: Batch = own,
            passes: list[int] = passes,
        ) -> float:
            passes[0] += 1
            x.grad = None
            total = one(learner.text_features(x), own)["total"].sum()
            total.backward()
            return float(total.detach())

        while passes[0] < JUDGED[-1]:
            before = passes[0]
            optimiser.step(loss)
            if passes[0] == before:
                break
            said[passes[0]] = judge(x.detach())[0]
        for limit in JUDGED:
            found.setdefault(limit, []).append(said[max(n for n in said if n <= limit)])
    return found


def own_end(losses: Tensor) -> int:
    """The step at which a run of these losses [t] would have ended with `auto`'s tolerance."""
    steps = range(1, len(losses))
    return next((n for n in steps if converged(losses[:n, None], AUTO)), len(losses))


def table(folder: Path) -> str:
    """Accuracy and NLL of every candidate at fixed steps, and where its own end would be."""
    runs = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    shots = sorted({int(name.split("+")[1]) for name in runs})
    lines = ["| optimiser | " + " | ".join(f"K = {k}" for k in shots) + " |"]
    lines.append("|---" * (len(shots) + 1) + "|")

    def show(rows: list[Any], extra: str = "") -> str:
        accuracy, nll = np.mean(np.array(rows).reshape(-1, 2), axis=0)
        return f"{100 * accuracy:.1f} / {nll:.2f}{extra}"

    for number, (kind, rate) in enumerate(CANDIDATES):
        own = slice(number * len(SEEDS), (number + 1) * len(SEEDS))
        for when in (20, 60, 130, "own end"):
            cells = []
            for k in shots:
                rows, ends = [], []
                for run in (run for name, run in runs.items() if int(name.split("+")[1]) == k):
                    losses = torch.tensor(run["first order"]["losses"])[:, own]
                    for seed in range(len(SEEDS)):
                        end = own_end(losses[:, seed]) if when == "own end" else int(when)
                        near = min(JUDGED, key=lambda t, e=end: abs(t - e))
                        rows.append(run["first order"]["judged"][str(near)][own][seed])
                        ends.append(end)
                cells.append(show(rows, f" ({np.mean(ends):.0f})" if when == "own end" else ""))
            lines.append(f"| {kind} {rate}, {when} | " + " | ".join(cells) + " |")
    for when in (20, 60, 130):
        cells = [
            show([r["lbfgs"][str(when)] for n, r in runs.items() if int(n.split("+")[1]) == k])
            for k in shots
        ]
        lines.append(f"| L-BFGS, {when} passes | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def ends(folder: Path) -> str:
    """Accuracy, NLL and steps for each cross-entropy to stop at."""
    runs = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    shots = sorted({int(name.split("+")[1]) for name in runs})
    lines = ["| stop at | " + " | ".join(f"K = {k}" for k in shots) + " |"]
    lines.append("|---" * (len(shots) + 1) + "|")
    for enough in (*ENOUGH, 0.0):
        cells = []
        for k in shots:
            rows = []
            for run in (run for name, run in runs.items() if int(name.split("+")[1]) == k):
                for seed in range(len(SEEDS)):
                    below = (
                        t for t in CLOSELY[:-1] if run["first order"]["losses"][t][seed] <= enough
                    )
                    end = next(below, CLOSELY[-1])
                    rows.append((*run["first order"]["judged"][str(end)][seed], end))
            accuracy, nll, steps = np.mean(np.array(rows), axis=0)
            cells.append(f"{100 * accuracy:.1f} / {nll:.2f} ({steps:.0f})")
        name = enough or f"{CLOSELY[-1]} steps"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Compute what is missing, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/paths"))
    parser.add_argument("--datasets", nargs="+", default=["BUSI", "OCTMNIST", "RETINA"])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--ends", action="store_true", help="when to stop, for Adam with 0.03")
    parser.add_argument("--table", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    store = None
    for dataset in arguments.datasets if not arguments.table else []:
        for shots in arguments.shots:
            path = arguments.out / f"{dataset}+{shots}.json"
            if not path.is_file():
                store = store or FeatureStore(load_backbone(SHARED / BACKBONE))
                if arguments.ends:
                    found = first_order(store, dataset, shots, [("adam", 0.03)], CLOSELY)
                    write_json(path, {"first order": found})
                    continue
                result = {"first order": first_order(store, dataset, shots)}
                result["lbfgs"] = lbfgs(store, dataset, shots)
                write_json(path, result)
    print(ends(arguments.out) if arguments.ends else table(arguments.out))


if __name__ == "__main__":
    main()
