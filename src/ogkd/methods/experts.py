"""The equations of `fused`, in float64: Gaussian classes, class texts, and images without labels.

Images are compared in one or several representations X_l (docs/concepts/fused.md). Every row
belongs to classes with weights Z [R, C]: one for its label, less and shared for unlabelled rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

Linear = tuple[Tensor, Tensor]  # weights [C, d] and biases [C]
_TINY = 1e-12  # in place of a weight that is zero


@dataclass(frozen=True)
class Space:
    """Rows in their representations: v [R, d] beside the texts, and X_l [R, d_l] to compare by."""

    v: Tensor
    compared: tuple[Tensor, ...]
    bases: tuple[Tensor | None, ...]  # [d_l, r]: X_l times its transpose is the whole feature

    @classmethod
    def of(cls, rows: Tensor, d: int, widths: Sequence[int] = ()) -> Space:
        """Split rows [R, w] into the global feature and its deeper parts (Backbone.deep_parts).

        Fewer rows than numbers lie in a subspace: they are given by their coordinates in it.
        """
        rows = rows.double()
        v = normalize(rows[:, :d], dim=-1)
        deeper = rows[:, d:].split(list(widths), dim=1) if rows.shape[1] > d else ()
        parts = [normalize(part, dim=-1) for part in deeper] or [v]
        spans = [_span(part) for part in parts]
        return cls(v, tuple(X for X, _ in spans), tuple(basis for _, basis in spans))

    def rows(self, chosen: Tensor) -> Space:
        """Some of the rows, by a mask or by numbers."""
        return replace(self, v=self.v[chosen], compared=tuple(X[chosen] for X in self.compared))


def _span(X: Tensor) -> tuple[Tensor, Tensor | None]:
    if len(X) >= X.shape[1]:
        return X, None
    basis, coordinates = torch.linalg.qr(X.mT)
    return coordinates.mT, basis


@dataclass(frozen=True)
class Texts:
    """Class texts T [C, d], the backbone's scale, and how many images centring is worth."""

    T: Tensor
    scale: float
    nu: float

    def expert(self, m: Tensor, N: Tensor) -> Linear:
        """The zero-shot head without its class bias, as estimated on images with mean m.

        Image and text features form separate clusters, so some class texts are nearer to all
        images. Logits are centred on those of m, the more the more images N there are.
        """
        T = self.T.double()
        W = self.scale * (T - T.mean(0))
        return W, -(N / (N + self.nu)) * (W @ m)


@dataclass(frozen=True)
class Experts:
    """Linear experts on each representation and on the texts, and images per class n [C]."""

    visual: tuple[Linear, ...]
    text: Linear
    n: Tensor

    def share(self, kappa: float) -> Tensor:
        """The weight of images beside text, which counts as `kappa` images: n / (kappa + n).

        This is the posterior of class means whose prior means are those for which Gaussian classes
        give the zero-shot head.
        """
        return self.n / (kappa + self.n)

    def logits(self, space: Space, kappa: float) -> Tensor:
        """Logits [R, C] of rows in the same space."""
        seen = [X @ W.mT + b for X, (W, b) in zip(space.compared, self.visual, strict=True)]
        W, b = self.text
        share = self.share(kappa)
        return share * torch.stack(seen).mean(0) + (1 - share) * (space.v @ W.mT + b)

    def joined(self, space: Space, kappa: float, *, deep: bool) -> Linear:
        """One linear head on whole rows of unit length: on v alone, or on v and deeper parts."""
        share = self.share(kappa).unsqueeze(1)  # [C, 1]
        whole = [
            share * (W if basis is None else W @ basis.mT) / len(self.visual)
            for (W, _), basis in zip(self.visual, space.bases, strict=True)
        ]
        on_text = (1 - share) * self.text[0]
        b_visual = torch.stack([b for _, b in self.visual]).mean(0)
        b = share[:, 0] * b_visual + (1 - share[:, 0]) * self.text[1]
        if not deep:
            return on_text + whole[0], b
        # Parts of unit length side by side are as long as the root of their number.
        return (1 + len(whole)) ** 0.5 * torch.cat([on_text, *whole], dim=1), b


def experts(space: Space, Z: Tensor, texts: Texts, *, rho: float) -> Experts:
    """Fit all experts; a class without any weight in Z [R, C] is known by its texts alone."""
    n, _, m, _ = _means(space.v, Z)
    return Experts(
        tuple(visual(X, Z, rho=rho) for X in space.compared), texts.expert(m, n.sum()), n
    )


def visual(X: Tensor, Z: Tensor, *, rho: float) -> Linear:
    """Return the linear discriminants P (x_c - m) of Gaussian classes with one covariance.

    The scatter is that of rows around their class means, plus n_c / (1 + n_c) of that of class
    means around the common mean m, so that there is a covariance even with one image per class.
    The ridge is rho tr / N, as in GDA: it vanishes with more images.
    """
    n, means, m, delta = _means(X, Z)
    between = (delta * (n / (1 + n)).unsqueeze(1)).mT @ delta
    S = (X * Z.sum(1, keepdim=True)).mT @ X - (means * n.unsqueeze(1)).mT @ means + between
    S = S / n.sum()
    S.diagonal().add_(ridge_of(S.trace(), n.sum(), rho))
    W = torch.cholesky_solve(delta.mT, torch.linalg.cholesky(S)).mT  # [C, d]
    return W, -(W * delta).sum(1) / 2 - W @ m


def _means(X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights n [C], class means [C, d], their mean m over classes with weight, means - m.

    A class without weight lies at m, so that its discriminant is zero.
    """
    n = Z.sum(0)
    some = n > 0
    means = Z.mT @ X / n.clamp_min(_TINY).unsqueeze(1)  # [C, d]
    m = means[some].mean(0)
    means = torch.where(some.unsqueeze(1), means, m)
    return n, means, m, means - m


def ridge_of(trace: Tensor, N: Tensor, rho: float) -> Tensor:
    return (rho * trace / N).clamp_min(1e-8)


class _Factored:
    """`visual` for changing weights Z of the same rows, whose sums over classes stay the same.

    Then only the class means change, which are few directions: by Woodbury's identity one
    Cholesky factor of A / N + r I serves all rounds. The ridge r stays that of the first Z.
    """

    def __init__(self, X: Tensor, Z: Tensor, total: Tensor, rho: float) -> None:
        n, means, _, delta = _means(X, Z)
        self.X, self.N = X, n.sum()
        between = (delta.square().sum(1) * n / (1 + n)).sum()
        trace = (total.trace() - (means.square().sum(1) * n).sum() + between) / self.N
        B = total / self.N
        B.diagonal().add_(ridge_of(trace, self.N, rho))
        self.factor = torch.linalg.cholesky(B)

    def visual(self, Z: Tensor) -> Linear:
        n, means, m, delta = _means(self.X, Z)
        L = torch.cat([means, delta])  # [2C, d]: S = B - M' diag(n) M / N + D' diag(..) D / N
        n = n.clamp_min(_TINY)
        K = torch.cat([-self.N / n, self.N * (1 + n) / n])
        solved = torch.cholesky_solve(L.mT, self.factor)  # [d, 2C]
        inner = torch.linalg.solve(K.diag() + L @ solved, (L @ solved)[:, len(n) :])
        W = (solved[:, len(n) :] - solved @ inner).mT
        return W, -(W * delta).sum(1) / 2 - W @ m


def totals(space: Space, w: Tensor) -> list[Tensor]:
    """X' diag(w) X of each representation, with the weights w [R] of rows."""
    return [(X * w.unsqueeze(1)).mT @ X for X in space.compared]


def with_unlabelled(
    space: Space,
    Z: Tensor,
    texts: Texts,
    *,
    rho: float,
    kappa: float,
    beta: float,
    rounds: int,
    known: Sequence[Tensor] | None = None,
) -> Experts:
    """Fit by expectation-maximisation: rows after those of Z [N, C] have no label.

    An unlabelled row counts as `beta` images, divided among the classes as the experts of the
    round before say. Labelled rows keep their labels, and the ridge is that of the first round.
    `known` are the `totals`, if the caller has them.
    """
    first = torch.arange(len(space.v)) < len(Z)
    labelled, rest = space.rows(first), space.rows(~first)
    found = experts(labelled, Z, texts, rho=rho)
    sums = known or totals(space, torch.cat([Z.sum(1), Z.new_full((len(rest.v),), beta)]))
    factored: list[_Factored] = []
    for _ in range(rounds):
        both = torch.cat([Z, beta * found.logits(rest, kappa).softmax(-1)])
        if not factored:
            pairs = zip(space.compared, sums, strict=True)
            factored = [_Factored(X, both, total, rho) for X, total in pairs]
        n, _, m, _ = _means(space.v, both)
        seen = tuple(one.visual(both) for one in factored)
        found = Experts(seen, texts.expert(m, n.sum()), n)
    return found
