"""The class geometry of the text: prototypes T and the class graph W (paper §3.1, Alg. 1).

Pure functions of frozen text features. W depends on texts only, never on images.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.errors import DataError

Bank = Tensor | Sequence[Tensor]
"""Text features of the prompts: [.., C, N, d], or one [N_c, d] per class."""


def stack_bank(bank: Bank) -> Tensor:
    """Stack one [N_c, d] per class into [C, N, d]; a tensor is returned as it is.

    If classes have different numbers of prompts, N is the largest and the others are padded with
    rows of zeros. No text has the feature zero, so zeros mean "no prompt".

    >>> stack_bank([torch.ones(2, 3), torch.ones(1, 3)]).shape
    torch.Size([2, 2, 3])
    """
    features = [bank] if isinstance(bank, Tensor) else list(bank)
    for c, rows in enumerate(features):
        if rows.shape[-2] == 0:
            raise DataError(f"Class {c} has no prompts. Give every class at least one text.")
    if isinstance(bank, Tensor):
        return bank
    if not features:
        raise DataError("The bank of prompts is empty. Give at least one class with one text.")
    return torch.nn.utils.rnn.pad_sequence(features, batch_first=True)


def prototypes(bank: Bank) -> Tensor:
    """Average the prompts of each class: T [.., C, d], rows L2-normalised.

    t_c = normalise( 1/|P_c| Σ_{p∈P_c} normalise(g_text(p)) ). Alg. 1 leaves out the outer
    normalisation; the text of §3.1 and the released code have it (fidelity.md, 16 and 18).

    >>> bank = torch.tensor([[[2.0, 0.0], [0.0, 5.0]], [[1.0, 0.0], [3.0, 0.0]]])  # [C, N, d]
    >>> prototypes(bank)
    tensor([[0.7071, 0.7071],
            [1.0000, 0.0000]])
    """
    # Rows of zeros (see stack_bank) only change the length of the mean, which is normalised away.
    return normalize(normalize(stack_bank(bank), dim=-1).mean(dim=-2), dim=-1)


def mean_texts(bank: Bank) -> Tensor:
    """The same directions T [.., C, d], as long as the root of the length of the prompts' mean.

    The mean is the shorter the more the prompts of a class differ. At unit length such a class is
    nearer to every image than it should be, at the mean's own length farther: this is halfway.

    >>> bank = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [3.0, 0.0]]])
    >>> mean_texts(bank).norm(dim=-1) ** 2
    tensor([0.7071, 1.0000])
    """
    rows = normalize(stack_bank(bank), dim=-1)
    lengths = rows.sum(dim=-2).norm(dim=-1) / (rows != 0).any(dim=-1).sum(dim=-1)
    texts: Tensor = prototypes(bank) * lengths.sqrt().unsqueeze(-1)
    return texts


def class_graph(T: Tensor, alpha: float) -> Tensor:
    """Build the class graph W [.., C, C] from prototypes T [.., C, d] (eq. 1-2, Alg. 1).

    s_ij = cos(t_i, t_j);  W_c: = softmax(α s_c:). Each row sums to one, columns do not.
    A larger α > 0 gives sharper neighbourhoods.

    >>> class_graph(torch.eye(2), alpha=1.0)
    tensor([[0.7311, 0.2689],
            [0.2689, 0.7311]])
    """
    T = normalize(T, dim=-1)
    return torch.softmax(alpha * (T @ T.mT), dim=-1)
