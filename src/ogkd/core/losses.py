"""The training objective: CE, SCCM, GAD and LGD with its variants (paper §3.2-3.4, Alg. 2).

Pure functions. Leading axes, written `..` in the shapes, are seeds trained together: every
loss gives one value per seed (a scalar without leading axes), and seeds do not mix. Gradients
only flow to the student: the teacher is detached. GAD and LGD may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Gamma = float | Sequence[float] | Tensor
"""Geometry strength: one number, or one per class [C]."""
GadNormalisation = Literal["batch_class", "batch"]
LgdNormalisation = Literal["batch_patch", "batch"]
LgdVariant = Literal["label_guided", "full", "full_no_geometry"]
SccmNormalisation = Literal["mean", "class"]
PatchRounding = Literal["half_even", "floor"]


def logits(features: Tensor, T: Tensor, scale: float) -> Tensor:
    """Score features against class features T [.., C, d] (eq. 3 and 7).

    z = τ T v for global features [.., B, d]; S = τ Z Tᵀ for patches [.., B, K, d]. `scale` is
    the paper's τ, the frozen logit scale. T has the leading axes of the features, or none.

    >>> logits(torch.tensor([[1.0, 0.0]]), torch.eye(2), scale=85.0)
    tensor([[85.,  0.]])
    """
    seeds = T.dim() - 2  # one matrix product per seed, over all its images and patches
    z = scale * (features.flatten(seeds, -2) @ T.mT)
    return z.reshape(*features.shape[:-1], T.shape[-2])


def cross_entropy(student_logits: Tensor, labels: Tensor) -> Tensor:
    """Average -log p_stu(x)_y over the batch (eq. 14); logits [.., B, C], labels [.., B].

    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
    tensor(0.6931)
    """
    log_p = student_logits.log_softmax(dim=-1)
    return -log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1).mean(dim=-1)


def sccm(T_hat: Tensor, T: Tensor, *, normalisation: SccmNormalisation = "mean") -> Tensor:
    """Keep the student text T̂ [.., C, d] near the bank's prototypes T [C, d] (eq. 15).

    "class" is the paper's 1/C ‖T̂ - T‖²_F; the released "mean" divides by C·d (fidelity.md, 3).

    >>> sccm(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2), normalisation="class")
    tensor(5.)
    """
    C, d = T_hat.shape[-2:]
    count = {"mean": C * d, "class": C}[normalisation]
    return (T_hat - T.detach()).square().sum(dim=(-2, -1)) / count


def diffuse(log_probs: Tensor, W: Tensor, gamma: Gamma) -> Tensor:
    """Diffuse log-probabilities ℓ [.., C] along the class graph W [C, C] (eq. 5 and 11).

    ℓ* = (1-γ) ℓ + γ ℓ W, that is ℓ*_j = (1-γ) ℓ_j + γ Σ_i ℓ_i W_ij. The result is not a
    distribution: Σ exp(ℓ*) is usually below 1 (fidelity.md, 4).

    A per-class γ [C] acts on the coordinate it computes: ℓ*_j = (1-γ_j) ℓ_j + γ_j Σ_i ℓ_i W_ij.
    γ_j = 0 thus leaves class j as the teacher has it, so that it loses no probability, which is
    what the paper's conclusion asks for Normal. Rejected: a γ_i on the source, Σ_i γ_i ℓ_i W_ij,
    would drop a negative number from the other classes' sums if γ_i = 0, and so raise them; a
    γ_y chosen by the image's label equals this one in `lgd`, which only reads coordinate y, but
    not in `gad`.

    Runs that differ in α or γ pass their own by broadcasting: W [S, 1, .., C, C] and
    γ [S, 1, .., C] against ℓ [S, .., C].

    >>> W = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    >>> diffuse(torch.tensor([-1.0, -3.0]), W, 1.0)
    tensor([-1.5000, -2.5000])
    >>> diffuse(torch.tensor([-1.0, -3.0]), W, [0.0, 1.0])
    tensor([-1.0000, -2.5000])
    """
    gamma = torch.as_tensor(gamma, dtype=log_probs.dtype, device=log_probs.device)
    return (1 - gamma) * log_probs + gamma * (log_probs @ W)


def gad(
    student_logits: Tensor,
    teacher_logits: Tensor,
    W: Tensor,
    gamma: Gamma,
    *,
    temperature: float = 1.0,
    normalisation: GadNormalisation = "batch_class",
) -> Tensor:
    """Global geometry-aware distillation on logits [.., B, C] (eq. 4-6).

    Σ_x Σ_c exp(ℓ*_tea) (ℓ*_tea - ℓ_stu), divided by B ("batch", the paper) or by B·C
    ("batch_class", released, fidelity.md, 1). ℓ*_tea is used as `diffuse` gives it. With
    m = Σ_c exp(ℓ*_tea) the loss of an image is least at
    p_stu = exp(ℓ*_tea)/m, where it is m·log m, often negative (fidelity.md, 4).

    >>> W = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    >>> gad(torch.zeros(1, 2), torch.tensor([[2.0, 0.0]]), W, 0.5, normalisation="batch")
    tensor(0.0357)
    """
    log_p = (student_logits / temperature).log_softmax(dim=-1)
    target = _target(teacher_logits, W, gamma, temperature)
    B, C = student_logits.shape[-2:]
    count = {"batch_class": B * C, "batch": B}[normalisation]
    return _kl_terms(target, log_p).sum(dim=(-2, -1)) / count


def patches_kept(P: int, ratio: float, *, rounding: PatchRounding = "half_even") -> int:
    """Count the patches K kept of P, at least one: K/P is about `ratio` (fidelity.md, 9).

    "half_even" is the released int(round(P·ratio)); "floor" the paper's ⌊P·ratio⌋.

    >>> patches_kept(196, 0.1), patches_kept(196, 0.1, rounding="floor")
    (20, 19)
    """
    exact = P * ratio
    # The small number corrects products like 100 * 0.29 = 28.999..., which should be 29.
    rounded = {"half_even": round(exact), "floor": math.floor(exact + 1e-9)}
    return max(1, rounded[rounding])


@torch.no_grad()
def select_patches(
    patches: Tensor, T_tilde: Tensor, labels: Tensor, k: int, *, absolute: bool = True
) -> Tensor:
    """Find the k patches nearest to the teacher's text of their image's label (eq. 8-9).

    s_n = cos(z_n, t̃_y) for L2-normalised patches [.., B, P, d], T̃ [.., C, d], labels [.., B].
    The paper keeps the highest s_n; the released code, `absolute`, the highest |s_n|, which
    can keep patches that contradict the label (fidelity.md, 8). Returns indices [.., B, k].

    >>> patches = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [-1.0, 0.0]]])
    >>> select_patches(patches, torch.eye(2), torch.tensor([0]), 2, absolute=False)
    tensor([[0, 1]])
    """
    T_tilde = T_tilde.expand(*labels.shape[:-1], *T_tilde.shape[-2:])
    t_y = torch.take_along_dim(T_tilde, labels.unsqueeze(-1), dim=-2)  # [.., B, d]
    # As a row vector on the left: several times faster on CPU than a column on the right.
    scores = (t_y.unsqueeze(-2) @ patches.mT).squeeze(-2)  # [.., B, P]
    return (scores.abs() if absolute else scores).topk(k, dim=-1).indices


def gather_patches(patches: Tensor, indices: Tensor) -> Tensor:
    """Take the patches [.., B, K, d] at `indices` [.., B, K] out of [.., B, P, d].

    Only these are scored by the student, which is what makes LGD cheap.

    >>> gather_patches(torch.tensor([[[1.0], [2.0], [3.0]]]), torch.tensor([[2, 0]])).flatten()
    tensor([3., 1.])
    """
    rows = patches.flatten(0, -2)  # index_select of whole rows: ten times faster than gather
    first = torch.arange(0, len(rows), patches.shape[-2], device=rows.device)
    chosen = indices + first.view(*indices.shape[:-1], 1)
    return rows.index_select(0, chosen.flatten()).view(*indices.shape, -1)


def lgd(
    student_logits: Tensor,
    teacher_logits: Tensor,
    labels: Tensor,
    W: Tensor,
    gamma: Gamma,
    *,
    variant: LgdVariant = "label_guided",
    temperature: float = 1.0,
    normalisation: LgdNormalisation = "batch_patch",
) -> Tensor:
    """Label-guided geometry distillation on patch logits [.., B, K, C] (eq. 10-13).

    - "label_guided": with u = the label's log-probability at each of the K selected patches,
      Σ_x Σ_k exp(u*_tea) (u*_tea - u_stu). Its gradient is that of a patch cross-entropy
      weighted by exp(u*_tea), and pulls p_y towards 1 (fidelity.md, 6).
    - "full": all classes, at the patches given (give all P for the ablation's "Full geom").
    - "full_no_geometry": the same with the plain teacher ("Full (w/o)").

    Divided by B ("batch", the paper) or by B·K ("batch_patch", released, fidelity.md, 2). The full
    variants have no released code; they sum over classes whatever the normalisation.

    >>> W, zeros = torch.eye(2), torch.zeros(1, 3, 2)
    >>> lgd(zeros - torch.tensor([0.0, 2.0]), zeros, torch.tensor([0]), W, 0.5)
    tensor(-0.2831)
    """
    log_p = (student_logits / temperature).log_softmax(dim=-1)
    strengths = {"label_guided": gamma, "full": gamma, "full_no_geometry": 0.0}
    target = _target(teacher_logits, W, strengths[variant], temperature)
    if variant == "label_guided":
        y = labels[..., None, None]  # [.., B, 1, 1]
        log_p, target = (torch.take_along_dim(u, y, dim=-1) for u in (log_p, target))
    B, K = student_logits.shape[-3:-1]
    count = {"batch_patch": B * K, "batch": B}[normalisation]
    return _kl_terms(target, log_p).sum(dim=(-3, -2, -1)) / count


def _target(teacher_logits: Tensor, W: Tensor, gamma: Gamma, temperature: float) -> Tensor:
    """Return the teacher's diffused log-probabilities, without gradient."""
    with torch.no_grad():
        return diffuse((teacher_logits / temperature).log_softmax(dim=-1), W, gamma)


def _kl_terms(target: Tensor, log_p: Tensor) -> Tensor:
    """Return the summands of KL with log-targets: exp(q*) (q* - log p)."""
    return target.exp() * (target - log_p)
