"""The teacher: which prompts of the bank are kept, and the prototypes T̃ they give (paper §3.2).

Everything here is frozen, so no gradient is recorded. Leading axes (several seeds trained
together) are written `..` in the shapes; slices do not affect each other.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import Bank, stack_bank

Selector = Literal["batch", "class", "none"]


@torch.no_grad()
def select_prompts(
    features: Tensor, bank: Bank, *, tau: float, selector: Selector = "batch"
) -> Tensor:
    """Keep the prompts whose score lies within `tau` standard deviations of the mean score.

    With v_b the global features [.., B, d] of the batch and E[c, i] the normalised bank:

    - "batch" (released, fidelity.md, 12): s_i = mean_b max_c v_b·E[c,i], one choice of template
      indices shared by all classes;
    - "class" (the paper's text): s_ci = mean_b v_b·E[c,i], each class chooses its own;
    - "none": every prompt.

    keep i  ⇔  |s_i - mean(s)| <= tau · std(s), std unbiased. The released code first forms
    (s - median)/MAD and then standardises that, which is the same rule: standardising cancels
    any shift and scale, including the logit scale. It gives NaN if the MAD or the std is 0; here
    all prompts are then kept, and also if none would be.

    Returns a boolean mask [.., C, N], the same in every row for "batch" (except for prompts
    that a class does not have).

    >>> bank = torch.tensor([[[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]])
    >>> select_prompts(torch.tensor([[1.0, 0.0]]), bank, tau=1.0)
    tensor([[ True,  True,  True, False]])
    """
    bank = stack_bank(bank)
    present: Tensor = torch.linalg.vector_norm(bank, dim=-1) > 0  # [C, N]
    if selector == "none":
        return present.expand(*features.shape[:-2], *present.shape)
    E = normalize(bank, dim=-1)
    similarity = features @ E.flatten(0, 1).mT  # [.., B, C*N]
    similarity = similarity.reshape(*features.shape[:-1], *present.shape)  # [.., B, C, N]
    if selector == "batch":
        best = similarity.masked_fill(~present, -torch.inf).amax(dim=-2)  # [.., B, N]
        keep = _within(best.mean(dim=-2), tau).unsqueeze(-2) & present  # [.., C, N]
    else:
        keep = _within(similarity.mean(dim=-3).masked_fill(~present, torch.nan), tau) & present
    return torch.where(keep.any(dim=-1, keepdim=True), keep, present)


def _within(scores: Tensor, tau: float) -> Tensor:
    """Mark scores [.., N] within tau standard deviations; NaN means an absent prompt."""
    deviation = (scores - scores.nanmean(dim=-1, keepdim=True)).abs()
    freedom = scores.isfinite().sum(dim=-1, keepdim=True) - 1
    variance = deviation.square().nansum(dim=-1, keepdim=True) / freedom.clamp(min=1)
    from_median = (scores - scores.nanmedian(dim=-1, keepdim=True).values).abs()
    mad = from_median.nanmedian(dim=-1, keepdim=True).values
    return (deviation <= tau * variance.sqrt()) | (mad == 0)


@torch.no_grad()
def teacher_prototypes(bank: Bank, mask: Tensor) -> Tensor:
    """Average the kept prompts of each class: T̃ [.., C, d], rows L2-normalised (fidelity.md, 15).

    t̃_c = normalise( mean_{i kept} normalise(E[c,i]) ), with `mask` [.., C, N] of `select_prompts`.

    >>> bank = torch.tensor([[[1.0, 0.0], [0.8, 0.6], [0.6, 0.8], [0.0, 1.0]]])
    >>> teacher_prototypes(bank, torch.tensor([[True, False, False, True]]))
    tensor([[0.7071, 0.7071]])
    """
    E = normalize(stack_bank(bank), dim=-1)
    weight = mask.to(E.dtype)
    weight = weight / weight.sum(dim=-1, keepdim=True)
    return normalize(torch.einsum("...cn,cnd->...cd", weight, E), dim=-1)
