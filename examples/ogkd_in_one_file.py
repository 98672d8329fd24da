"""Omni-Geometry Knowledge Distillation in one file: plain torch on features of a frozen model.

For reading beside the paper: the class graph (eq. 1-2), the teacher (section 3.2), CE, SCCM, GAD
and LGD (eq. 3-16) and one training loop, for one run. It computes what `ogkd.methods.ogkd` does
with `fidelity="released"` (checked by tests/methods/test_one_file.py). The package adds: several
runs in one pass, caching, resumption, the choices of docs/concepts/fidelity.md, and everything
around a method.

    python examples/ogkd_in_one_file.py        # a context for phantoms, with the built-in model

Shapes: C classes, N prompts per class, B images, P patches of an image, K patches kept, d numbers.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize


def prototypes(bank: Tensor) -> Tensor:
    """Mean of the L2-normalised prompts [C, N, d] of each class: T [C, d]."""
    return normalize(normalize(bank, dim=-1).mean(dim=1), dim=-1)


def class_graph(T: Tensor, alpha: float) -> Tensor:
    """W [C, C]: the softmax of alpha times the cosines of class texts (eq. 1-2)."""
    return torch.softmax(alpha * T @ T.T, dim=-1)


def teacher(bank: Tensor, v: Tensor, tau: float) -> Tensor:
    """T_tilde [C, d]: the mean of the prompts that suit a batch v [B, d] (section 3.2).

    The score of template n is the mean over images of its best class; those within tau standard
    deviations of the mean score are kept.
    """
    E = normalize(bank, dim=-1)
    score = torch.einsum("bd,cnd->bcn", v, E).amax(dim=1).mean(dim=0)  # [N]
    keep = (score - score.mean()).abs() <= tau * score.std()
    return normalize(E[:, keep].mean(dim=1), dim=-1)


def diffused(z: Tensor, W: Tensor, gamma: float) -> Tensor:
    """Log-probabilities of the teacher's logits [.., C], diffused along W (eq. 5 and 11)."""
    log_p = z.log_softmax(dim=-1)
    return (1 - gamma) * log_p + gamma * log_p @ W


def gad(z_student: Tensor, z_teacher: Tensor, W: Tensor, gamma: float) -> Tensor:
    """Geometry-aware distillation at the global token, logits [B, C] (eq. 6)."""
    target = diffused(z_teacher, W, gamma)
    return (target.exp() * (target - z_student.log_softmax(dim=-1))).mean()


def lgd(z_student: Tensor, z_teacher: Tensor, labels: Tensor, W: Tensor, gamma: float) -> Tensor:
    """The same at patches [B, K, C], for the label's coordinate alone (eq. 12-13)."""
    y = labels[:, None, None].expand(-1, z_student.shape[1], 1)
    target = diffused(z_teacher, W, gamma).gather(-1, y)
    return (target.exp() * (target - z_student.log_softmax(dim=-1).gather(-1, y))).mean()


def attentive_patches(patches: Tensor, t_y: Tensor, ratio: float) -> Tensor:
    """The K patches [B, K, d] nearest to the text t_y [B, d] of their image's label (eq. 8-9)."""
    K = max(1, round(ratio * patches.shape[1]))
    best = torch.einsum("bpd,bd->bp", patches, t_y).abs().topk(K, dim=1).indices
    return patches.gather(1, best.unsqueeze(-1).expand(-1, -1, patches.shape[-1]))


def objective(
    T_hat: Tensor,
    v: Tensor,
    patches: Tensor,
    labels: Tensor,
    bank: Tensor,
    scale: float,
    *,
    gamma: float = 0.3,
    alpha: float = 4.0,
    tau: float = 1.5,
    top_ratio: float = 0.3,
    lambda_sccm: float = 1.0,
    lambda_gad: float = 1.0,
    lambda_lgd: float = 0.5,
) -> Tensor:
    """The loss of one batch (eq. 16): student texts T_hat [C, d], images v [B, d], labels [B]."""
    T = prototypes(bank)
    W = class_graph(T, alpha)
    with torch.no_grad():
        T_tilde = teacher(bank, v, tau)
        chosen = attentive_patches(patches, T_tilde[labels], top_ratio)
    z = scale * v @ T_hat.T  # [B, C] (eq. 3)
    return (
        cross_entropy(z, labels)
        + lambda_sccm * (T_hat - T).square().mean()
        + lambda_gad * gad(z, scale * v @ T_tilde.T, W, gamma)
        + lambda_lgd * lgd(scale * chosen @ T_hat.T, scale * chosen @ T_tilde.T, labels, W, gamma)
    )


def train(
    encode_texts: Callable[[Tensor], Tensor],
    context: Tensor,
    v: Tensor,
    patches: Tensor,
    labels: Tensor,
    bank: Tensor,
    scale: float,
    *,
    steps: int = 50,
    lr: float = 0.01,
    **strengths: float,
) -> Tensor:
    """Learn the context [n_ctx, w]; `encode_texts` maps it to class texts T_hat [C, d]."""
    context = context.clone().requires_grad_()
    optimiser = torch.optim.Adam([context], lr=lr, betas=(0.9, 0.99))
    for _ in range(steps):
        loss = objective(encode_texts(context), v, patches, labels, bank, scale, **strengths)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return context.detach()


def main() -> None:
    """Learn a context for phantoms with the built-in model, from four images per class."""
    from ogkd import load_backbone
    from ogkd.core.prompting import ContextConfig, PromptLearner
    from ogkd.data.phantoms import phantom, write_folder
    from ogkd.data.read import read_dataset
    from ogkd.features.store import FeatureStore
    from ogkd.methods import TextSide

    backbone = load_backbone("builtin")
    with tempfile.TemporaryDirectory() as folder:
        dataset = read_dataset(
            write_folder("cxr", Path(folder, "cxr"), splits={"train": 4, "test": 20})
        )
        seen = FeatureStore(backbone).get([case.image for case in dataset.cases], patches=True)
    train_rows = torch.tensor([case.split == "train" for case in dataset.cases])
    labels = torch.tensor([case.target for case in dataset.cases])
    v, patches = seen.globals[:, 0].float(), seen.patches[:, 0].float()
    known = phantom("cxr")
    texts = dict(zip(known.class_names, known.descriptions, strict=True))
    prompts = tuple(texts[name] for name in dataset.names)
    bank = torch.stack(TextSide(backbone, dataset.names, prompts).bank)
    learner = PromptLearner(backbone, dataset.names, ContextConfig())
    start = learner.initial_context(torch.Generator().manual_seed(1))

    def encode_texts(context: Tensor) -> Tensor:
        return learner.text_features(context.unsqueeze(0))[0]

    def accuracy(context: Tensor) -> float:
        answers = (v[~train_rows] @ encode_texts(context).T).argmax(dim=1)
        return 100 * (answers == labels[~train_rows]).float().mean().item()

    print(f"before: {accuracy(start):.1f} % of {int((~train_rows).sum())} images are right")
    few = (v[train_rows], patches[train_rows], labels[train_rows])
    learned = train(encode_texts, start, *few, bank, backbone.logit_scale)
    print(f"after:  {accuracy(learned):.1f} %")


if __name__ == "__main__":
    main()
