"""How typical an image would be of each class, ranked among that class's support images.

To rank image x in class y, it joins the support as one more image of y. The score of an image of
y is then -log p(y) by the head that all others give (leave one out). Settings, the ridge among
them, are constants: nothing was chosen on the support. So the images of y are treated alike, and
if they and x are exchangeable, every rank of x is as likely as any other (docs/concepts/trust.md).

Leaving out support image i while x is there swaps one for the other, a change of rank two of the
scatter within classes, so that no head is ever fitted again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize, one_hot

_TIE = 1e-9  # scores that are as near as this count as equal
_AT_ONCE = 1 << 15  # pairs of a new and a support row, to bound memory


@dataclass(frozen=True)
class Ranking:
    """What scores depend on beside the images, all of it fixed before the support was seen.

    Class texts T [C, d] with the backbone's scale, how many images centring them is worth (nu) and
    they themselves (kappa). `ridge` is added to the scatter within
    classes of rows of unit length; `widths` are those of the deeper parts behind d numbers.
    """

    T: Tensor
    scale: float
    nu: float
    kappa: float
    ridge: float
    d: int
    widths: tuple[int, ...] = ()

    def parts(self, rows: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The global feature of rows [R, w] and what they are compared by, of unit length."""
        rows = rows.double()
        v = normalize(rows[:, : self.d], dim=-1)
        deeper = rows[:, self.d :].split(list(self.widths), dim=1) if self.widths else ()
        return v, [normalize(part, dim=-1) for part in deeper] or [v]


class Ranked:
    """Support rows [N, w] with labels [N], every class among them, that new rows are ranked in."""

    def __init__(self, ranking: Ranking, rows: Tensor, labels: Tensor, classes: int) -> None:
        self.ranking = ranking
        self.n = one_hot(labels, classes).sum(0)  # [C]
        self._of = [labels == c for c in range(classes)]
        means = (one_hot(labels, classes) / self.n).double().mT  # [C, N], of rows
        v, parts = ranking.parts(rows)
        self._metrics = [_Metric(X, means, labels, ranking.ridge) for X in parts]
        # Products of rows and means with themselves, [L, N], [L, N, C + 1], [L, C + 1, C + 1]
        self._XX = torch.stack([metric.XX for metric in self._metrics])
        self._XM = torch.stack([metric.XM for metric in self._metrics])
        self._MM = torch.stack([metric.MM for metric in self._metrics])
        N, T = len(labels), ranking.T.double().cpu()
        self._share = (self.n / (ranking.kappa + self.n)).double()  # of images beside text
        self._half = N / 2
        self._text = ranking.scale * (T - T.mean(0))
        self._centring = N / (N + ranking.nu)
        self._text_logits = v @ self._text.mT  # [N, C]
        self._mean_text_logits = (means @ self._text_logits).mean(0)

    def p_values(self, rows: Tensor) -> Tensor:
        """For rows [B, w] and each class, the share of its images at least as strange: [B, C].

        The row itself counts among them, so no share is below 1 / (n_c + 1).
        """
        at_once = max(1, _AT_ONCE // len(self._text_logits))
        return torch.cat([self._p_values(few) for few in rows.split(at_once)])

    def _p_values(self, rows: Tensor) -> Tensor:
        v, parts = self.ranking.parts(rows)
        text_logits = v @ self._text.mT  # [B, C]
        each = [metric.products(X) for metric, X in zip(self._metrics, parts, strict=True)]
        xx, xX, xM = (torch.stack(same) for same in zip(*each, strict=True))
        to_means = xx.unsqueeze(-1) - 2 * xM + _diagonal(self._MM)
        text = text_logits - self._centring * self._mean_text_logits
        new = -self._logits(to_means, text).log_softmax(-1)  # [B, C]
        p_values = []
        for y, rows_of_class in enumerate(self._of):
            known = self._text_logits[rows_of_class]
            shift = (text_logits.unsqueeze(1) - known) / (self.n[y] * len(self.n))
            text = known - self._centring * (self._mean_text_logits + shift)
            to_means = self._swapped(xx, xX[..., rows_of_class], xM, y)
            old = -self._logits(to_means, text).log_softmax(-1)[..., y]  # [B, n]
            above = (old >= new[:, y : y + 1] - _TIE).sum(1)
            p_values.append((1 + above) / (1 + self.n[y]))
        return torch.stack(p_values, dim=1)

    def _logits(self, to_means: Tensor, text: Tensor) -> Tensor:
        """Logits [..., C] of squared distances [L, ..., C + 1] to class means and their mean."""
        near = to_means.mean(0)
        visual = self._half * (near[..., -1:] - near[..., :-1])
        return self._share * visual + (1 - self._share) * text

    def _swapped(self, xx: Tensor, xX: Tensor, xM: Tensor, y: int) -> Tensor:
        """Squared distances [L, B, n, C + 1] of images i of class y, where x is in i's place.

        With a = x_i - mean_y and b = x - mean_y the scatter changes by [a b] K [a b]', K =
        [[-1 - 1/n, 1/n], [1/n, 1 - 1/n]], and the mean of y by (b - a) / n. Then Woodbury.
        """
        n, C, rows_of_class = int(self.n[y]), len(self.n), self._of[y]
        only = slice(y, y + 1)
        XX = self._XX[:, None, rows_of_class, None]  # [L, 1, n, 1]
        XM = self._XM[:, None, rows_of_class]  # [L, 1, n, C + 1]
        MM, My = _diagonal(self._MM).unsqueeze(1), self._MM[:, None, only]  # [L, 1, 1, C + 1]
        # u = x_i - mean_c, with the means of the support
        uu = XX - 2 * XM + MM
        au = XX - XM - XM[..., only] + My
        bu = xX.unsqueeze(-1) - xM.unsqueeze(2) - XM[..., only] + My
        aa, ab = au[..., only], bu[..., only]
        bb = (xx.unsqueeze(-1) - 2 * xM[..., only]).unsqueeze(2) + My[..., only]
        # and with the means after the swap: u - t (b - a)
        t = uu.new_zeros(C + 1)
        t[y], t[-1] = 1 / n, 1 / (n * C)
        uu = uu - 2 * t * (bu - au) + t.square() * (bb - 2 * ab + aa)
        au, bu = au - t * (ab - aa), bu - t * (bb - ab)
        p, q, s = aa - 1 + 1 / n, ab + 1 / n, bb + 1 + 1 / n
        return uu - (s * au.square() - 2 * q * au * bu + p * bu.square()) / (p * s - q.square())


class _Metric:
    """One representation: distances by G, the inverse of the scatter within classes and a ridge."""

    def __init__(self, X: Tensor, means: Tensor, labels: Tensor, ridge: float) -> None:
        M = means @ X  # [C, d]
        # Distances do not depend on the origin; near the images, they lose fewer digits.
        self.origin = M.mean(0)
        X, M = X - self.origin, M - self.origin
        within = X - M[labels]
        scatter = within.mT @ within
        scatter.diagonal().add_(ridge)
        self.G = torch.cholesky_inverse(torch.linalg.cholesky(scatter))
        M = torch.cat([M, torch.zeros_like(M[:1])])  # the last: the common mean, the origin
        self.XG, self.MG = X @ self.G, M @ self.G
        self.XX, self.XM, self.MM = (self.XG * X).sum(1), self.XG @ M.mT, self.MG @ M.mT

    def products(self, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Products of new rows [B, d] with themselves, support rows and means, in G."""
        x = new - self.origin
        return (x @ self.G * x).sum(1), x @ self.XG.mT, x @ self.MG.mT


def _diagonal(squares: Tensor) -> Tensor:
    return squares.diagonal(dim1=-2, dim2=-1).unsqueeze(1)
