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
_FLOOR = 0.1  # share of the mean variance that is added to each number's own


@dataclass(frozen=True)
class Space:
    """Rows in their representations: v [R, d] beside the texts, and X_l [R, d_l] to compare by."""

    v: Tensor
    compared: tuple[Tensor, ...]
    bases: tuple[Tensor | None, ...]  # [d_l, r]: X_l is the whole feature times it

    @classmethod
    def of(cls, rows: Tensor, d: int, widths: Sequence[int] = (), *, even: bool = False) -> Space:
        """Split rows [R, w] into the global feature and its deeper parts (Backbone.deep_parts).

        Fewer rows than numbers lie in a subspace: they are given by their coordinates in it.
        `even` divides each number of a deeper part by its standard deviation among the rows.
        """
        rows = rows.double()
        v = normalize(rows[:, :d], dim=-1)
        deeper = rows[:, d:].split(list(widths), dim=1) if rows.shape[1] > d else ()
        parts = [normalize(part, dim=-1) for part in deeper] or [v]
        spans = [_span(part, _spread(part) if even and deeper else None) for part in parts]
        return cls(v, tuple(X for X, _ in spans), tuple(basis for _, basis in spans))

    def rows(self, chosen: Tensor) -> Space:
        """Some of the rows, by a mask or by numbers."""
        return replace(self, v=self.v[chosen], compared=tuple(X[chosen] for X in self.compared))


def _spread(X: Tensor) -> Tensor:
    """The standard deviation of each number [d], none much below that of the others."""
    variance = X.var(0, correction=0)
    return (variance + _FLOOR * variance.mean()).clamp_min(_TINY).sqrt()


def _span(X: Tensor, spread: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    if spread is not None:
        X = X / spread
    if len(X) >= X.shape[1]:
        return X, None if spread is None else (1 / spread).diag()
    basis, coordinates = torch.linalg.qr(X.mT)
    return coordinates.mT, basis if spread is None else basis / spread.unsqueeze(1)


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


def experts(
    space: Space, Z: Tensor, texts: Texts, *, rho: float, known: Sequence[Tensor] | None = None
) -> Experts:
    """Fit all experts; a class without any weight in Z [R, C] is known by its texts alone.

    `known` are the `totals`, if the caller has them.
    """
    n, _, m, _ = _means(space.v, Z)
    pairs = zip(space.compared, known or totals(space, Z.sum(1)), strict=True)
    seen = tuple(visual(X, Z, total, rho=rho) for X, total in pairs)
    return Experts(seen, texts.expert(m, n.sum()), n)


def visual(X: Tensor, Z: Tensor, total: Tensor, *, rho: float) -> Linear:
    """Return the linear discriminants P (x_c - m) of Gaussian classes with one covariance.

    The scatter is that of rows around their class means, plus n_c / (1 + n_c) of that of class
    means around the common mean m, so that there is a covariance even with one image per class.
    The ridge is rho tr / N, as in GDA: it vanishes with more images. `total` is X' diag(w) X with
    the weights w of rows, the sums of Z over classes.
    """
    n, means, m, delta = _means(X, Z)
    between = delta * (n / (1 + n)).unsqueeze(1)
    less = torch.cat([-means * n.unsqueeze(1), between])
    S = torch.addmm(total, less.mT, torch.cat([means, delta])).div_(n.sum())
    S.diagonal().add_(ridge_of(S.trace(), n.sum(), rho))
    W = torch.cholesky_solve(delta.mT, torch.linalg.cholesky(S)).mT  # [C, d]
    return W, -(W * delta).sum(1) / 2 - W @ m


def _means(X: Tensor, Z: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weights n [C], class means [C, d], their mean m over classes with weight, means - m.

    A class without weight lies at m, so that its discriminant is zero.
    """
    n = Z.sum(0)
    has_images = n > 0
    means = Z.mT @ X / n.clamp_min(_TINY).unsqueeze(1)  # [C, d]
    m = means[has_images].mean(0)
    means = torch.where(has_images.unsqueeze(1), means, m)
    return n, means, m, means - m


def ridge_of(trace: Tensor, N: Tensor, rho: float) -> Tensor:
    return (rho * trace / N).clamp_min(1e-8)


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
    heat: float,
    beta: float,
    rounds: int,
    balance: float = 0.0,
    known: Sequence[Tensor] | None = None,
) -> Experts:
    """Fit by expectation-maximisation: rows after those of Z [N, C] have no label.

    An unlabelled row counts as `beta` images, divided among the classes as the experts of the
    round before say, with the factor `heat` on their logits. Labelled rows keep their labels.
    `balance` draws the classes' shares of these rows together, see `balanced`. `known` are the
    `totals`, if the caller has them.
    """
    first = torch.arange(len(space.v)) < len(Z)
    labelled, rest = space.rows(first), space.rows(~first)
    fitted = experts(labelled, Z, texts, rho=rho)
    sums = known or totals(space, torch.cat([Z.sum(1), Z.new_full((len(rest.v),), beta)]))
    for _ in range(rounds):
        shared = balanced((heat * fitted.logits(rest, kappa)).softmax(-1), balance)
        fitted = experts(space, torch.cat([Z, beta * shared]), texts, rho=rho, known=sums)
    return fitted


def balanced(P: Tensor, power: float) -> Tensor:
    """Probabilities [U, C] divided by a power of each class's mean: 0 changes nothing.

    Few labels favour some classes far beyond their share of the images, whatever that is.
    """
    P = P / P.mean(0).clamp_min(_TINY) ** power
    return P / P.sum(1, keepdim=True)
