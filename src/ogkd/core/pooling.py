"""From the logits of pictures to those of their bag: tau log mean exp(z / tau), class by class.

tau goes from 0 (the largest logit) to infinity (their mean). Softmax does not see a shift of all
logits of a picture, but pooling would, so they are first made relative to "nothing found", or to
all classes where no class means that. The largest of many logits is large by chance alone: a bias
of each class and one factor, fitted on held-out bags beside tau, take that into account. Pictures
of one bag have much in common (one anatomy, one stain), which is no finding: a multiple of their
mean is subtracted, which is fitted too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

TAUS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, math.inf)
_HEAT_SPREAD = 0.5  # prior standard deviation of the factor around 1
_USUAL_SPREAD = 1.0  # of the multiple of the mean around 0
_BIAS_SPREAD = 2.0  # and of biases around 0
_LEAST_HEAT = 0.05


@dataclass(frozen=True)
class Pooling:
    """How the logits of a bag follow from those of its pictures."""

    tau: float = 1.0
    heat: float = 1.0  # the factor on pooled logits
    bias: tuple[float, ...] = ()  # of each class; () for none
    normal: tuple[int, ...] = ()  # labels of the classes that mean "nothing found"
    usual: float = 0.0  # the factor on what is usual in the bag, which is subtracted

    def logits(self, z: Tensor, bag: Tensor) -> Tensor:
        """Logits [B, C] of bags; z [N, C] are those of pictures, bag [N] numbers their bags."""
        own = relative(z.double(), self.normal)
        found = self.heat * pooled(own, bag, self.tau) - self.usual * usual(own, bag)
        return found + found.new_tensor(self.bias) if self.bias else found

    def weights(self, z: Tensor, label: int) -> Tensor:
        """The share [N] that each picture of one bag has in its answer `label`; they sum to 1.

        It is that in the pooled logit: what is usual in the bag is no picture's own.
        For "nothing found", which no single picture decides: in the finding that came nearest.
        """
        own = relative(z.double(), self.normal)
        if label in self.normal:
            total = self.logits(z, torch.zeros(len(z), dtype=torch.long))[0]
            total[list(self.normal)] = -math.inf
            label = int(total.argmax()) if bool(total.isfinite().any()) else label
        return shares(own[:, label], torch.zeros(len(z), dtype=torch.long), self.tau)


def relative(z: Tensor, normal: Sequence[int] = ()) -> Tensor:
    """Logits [N, C] less the log of the summed exponentials of the normal classes, or of all.

    >>> relative(torch.tensor([[1.0, 4.0, 2.0]]), normal=(0,))
    tensor([[0., 3., 1.]])
    """
    some = z[:, list(normal)] if normal else z
    return z - some.logsumexp(1, keepdim=True)


def pooled(z: Tensor, bag: Tensor, tau: float) -> Tensor:
    """Tau log mean exp(z / tau) over the pictures of each bag: [B, C] of z [N, C] and bag [N].

    >>> pooled(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), math.inf)
    tensor([[1.],
            [5.]])
    """
    count = torch.bincount(bag).to(z).unsqueeze(1)  # [B, 1]
    index = bag.unsqueeze(1).expand_as(z)
    empty = z.new_zeros(len(count), z.shape[1])
    if math.isinf(tau):
        return empty.index_add(0, bag, z) / count
    top = empty.scatter_reduce(0, index, z, "amax", include_self=False)
    if tau == 0:
        return top
    summed = empty.index_add(0, bag, ((z - top[bag]) / tau).exp())
    return top + tau * (summed / count).log()


def usual(z: Tensor, bag: Tensor) -> Tensor:
    """What is usual in each bag [B, C]: (1 - 1 / N) times the mean of its N pictures.

    Of a picture that is alone nothing is known to be usual.

    >>> usual(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([[1.],
            [0.]])
    """
    return pooled(z, bag, math.inf) * (1 - 1 / torch.bincount(bag).to(z)).unsqueeze(1)


def shares(z: Tensor, bag: Tensor, tau: float) -> Tensor:
    """The derivative [N] of bags' pooled logits by those of their pictures, z [N]: they sum to 1.

    >>> shares(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([0, 0, 1]), 0.0)
    tensor([0., 1., 1.])
    """
    top = pooled(z.unsqueeze(1), bag, 0.0).squeeze(1)[bag]
    part = (z == top).to(z) if tau == 0 else ((z - top) / tau).exp()
    return part / part.new_zeros(int(bag.max()) + 1).index_add(0, bag, part)[bag]


def fit_pooling(z: Tensor, bag: Tensor, labels: Tensor, normal: Sequence[int] = ()) -> Pooling:
    """The tau, factors and biases that make the labels [B] of held-out bags likeliest.

    Times a prior, so that they are defined for a handful of bags. z [N, C] must come from a model
    that did not learn from these bags.
    """
    return best_pooling(z, bag, labels, normal)[0]


def best_pooling(
    z: Tensor, bag: Tensor, labels: Tensor, normal: Sequence[int] = ()
) -> tuple[Pooling, float]:
    """`fit_pooling` and its penalised loss."""
    own = relative(z.double(), normal)
    best, least, mean = Pooling(normal=tuple(normal)), math.inf, usual(own, bag)
    for tau in TAUS:
        (heat, less, *bias), loss = _scaled(pooled(own, bag, tau), mean, labels)
        if loss < least - 1e-9:
            least, best = loss, Pooling(tau, heat, tuple(bias), tuple(normal), less)
    return best, least


def _scaled(z: Tensor, mean: Tensor, labels: Tensor) -> tuple[list[float], float]:
    """Factors of pooled logits z and usual ones [B, C], then biases [C]; their penalised loss.

    It is convex.
    """
    from scipy.optimize import minimize

    values, less, y = z.numpy(), mean.numpy(), labels.numpy()
    rows = np.arange(len(y))
    classes = values.shape[1]
    centre = np.array([1.0, 0.0, *np.zeros(classes)])
    spread = np.array([_HEAT_SPREAD, _USUAL_SPREAD, *np.full(classes, _BIAS_SPREAD)])

    def loss(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = x[0] * values - x[1] * less + x[2:]
        scores -= scores.max(axis=1, keepdims=True)
        log_p = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
        error = np.exp(log_p)
        error[rows, y] -= 1
        away = (x - centre) / spread
        slope = np.array([(error * values).sum(), -(error * less).sum(), *error.sum(axis=0)])
        return float(away @ away / 2 - log_p[rows, y].sum()), slope + away / spread

    bounds = [(_LEAST_HEAT, None), (0.0, None), *[(None, None)] * classes]
    found = minimize(loss, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    return list(map(float, found.x)), float(found.fun)
