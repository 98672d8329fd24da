"""From the logits of images to those of their case: tau log mean exp(z / tau), class by class.

tau goes from 0 (the largest logit) to infinity (their mean). Softmax does not see a shift of all
logits of an image, but pooling would, so they are first made relative to "nothing found", or to
all classes where no class means that. The largest of many logits is large by chance alone: a bias
of each class and one factor, fitted on held-out cases beside tau, take that into account. Images
of one case have much in common (one anatomy, one stain), which is no finding: a multiple of their
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
_MEAN_SPREAD = 1.0  # of the multiple of the mean around 0
_BIAS_SPREAD = 2.0  # and of biases around 0
_LEAST_HEAT = 0.05


@dataclass(frozen=True)
class Pooling:
    """How the logits of a case follow from those of its images."""

    tau: float = 1.0
    heat: float = 1.0  # the factor on pooled logits
    bias: tuple[float, ...] = ()  # of each class; () for none
    normal: tuple[int, ...] = ()  # labels of the classes that mean "nothing found"
    mean_weight: float = 0.0  # the factor on what its images have in common, which is subtracted

    def logits(self, z: Tensor, case: Tensor) -> Tensor:
        """Logits [B, C] of cases; z [N, C] are those of images, case [N] numbers their cases."""
        scores = relative(z.double(), self.normal)
        common = self.mean_weight * common_part(scores, case)
        logits = self.heat * pooled(scores, case, self.tau) - common
        return logits + logits.new_tensor(self.bias) if self.bias else logits

    def weights(self, z: Tensor, label: int) -> Tensor:
        """The share [N] that each image of one case has in its answer `label`; they sum to 1.

        It is that in the pooled logit: what all images have in common belongs to none of them.
        For "nothing found", which no single image decides: in the finding that came nearest.
        """
        scores = relative(z.double(), self.normal)
        if label in self.normal:
            total = self.logits(z, torch.zeros(len(z), dtype=torch.long))[0]
            total[list(self.normal)] = -math.inf
            label = int(total.argmax()) if bool(total.isfinite().any()) else label
        return shares(scores[:, label], torch.zeros(len(z), dtype=torch.long), self.tau)


def is_pooled(case: Tensor) -> bool:
    """Whether any of the cases that case [N] numbers has several images."""
    return len(case) > 0 and len(case) > int(case.max()) + 1


def relative(z: Tensor, normal: Sequence[int] = ()) -> Tensor:
    """Logits [N, C] less the log of the summed exponentials of the normal classes, or of all.

    >>> relative(torch.tensor([[1.0, 4.0, 2.0]]), normal=(0,))
    tensor([[0., 3., 1.]])
    """
    reference = z[:, list(normal)] if normal else z
    return z - reference.logsumexp(1, keepdim=True)


def pooled(z: Tensor, case: Tensor, tau: float) -> Tensor:
    """Tau log mean exp(z / tau) over the images of each case: [B, C] of z [N, C] and case [N].

    >>> pooled(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), math.inf)
    tensor([[1.],
            [5.]])
    """
    count = torch.bincount(case).to(z).unsqueeze(1)  # [B, 1]
    index = case.unsqueeze(1).expand_as(z)
    empty = z.new_zeros(len(count), z.shape[1])
    if math.isinf(tau):
        return empty.index_add(0, case, z) / count
    top = empty.scatter_reduce(0, index, z, "amax", include_self=False)
    if tau == 0:
        return top
    summed = empty.index_add(0, case, ((z - top[case]) / tau).exp())
    return top + tau * (summed / count).log()


def common_part(z: Tensor, case: Tensor) -> Tensor:
    """What the images of each case have in common [B, C]: (1 - 1 / N) times the mean of N images.

    A single image has nothing in common with others.

    >>> common_part(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 1]))
    tensor([[1.],
            [0.]])
    """
    return pooled(z, case, math.inf) * (1 - 1 / torch.bincount(case).to(z)).unsqueeze(1)


def shares(z: Tensor, case: Tensor, tau: float) -> Tensor:
    """The derivative [N] of cases' pooled logits by those of their images, z [N]: they sum to 1.

    >>> shares(torch.tensor([0.0, 2.0, 5.0]), torch.tensor([0, 0, 1]), 0.0)
    tensor([0., 1., 1.])
    """
    top = pooled(z.unsqueeze(1), case, 0.0).squeeze(1)[case]
    part = (z == top).to(z) if tau == 0 else ((z - top) / tau).exp()
    return part / part.new_zeros(int(case.max()) + 1).index_add(0, case, part)[case]


def fit_pooling(z: Tensor, case: Tensor, labels: Tensor, normal: Sequence[int] = ()) -> Pooling:
    """The tau, factors and biases that make the labels [B] of held-out cases likeliest.

    Times a prior, so that they are defined for a handful of cases. z [N, C] must come from a model
    that did not learn from these cases.
    """
    return best_pooling(z, case, labels, normal)[0]


def best_pooling(
    z: Tensor, case: Tensor, labels: Tensor, normal: Sequence[int] = ()
) -> tuple[Pooling, float]:
    """`fit_pooling` and its penalised loss."""
    scores = relative(z.double(), normal)
    best, least, mean = Pooling(normal=tuple(normal)), math.inf, common_part(scores, case)
    import scipy.optimize  # noqa: F401  # whose threads are limited, too
    from threadpoolctl import threadpool_limits

    # A handful of numbers gains nothing by threads, and waits for them on a busy machine.
    with threadpool_limits(1, user_api="blas"):
        for tau in TAUS:
            (heat, less, *bias), loss = _scaled(pooled(scores, case, tau), mean, labels)
            if loss < least - 1e-9:
                least, best = loss, Pooling(tau, heat, tuple(bias), tuple(normal), less)
    return best, least


def _scaled(z: Tensor, mean: Tensor, labels: Tensor) -> tuple[list[float], float]:
    """Factors of pooled logits z and of common parts [B, C], then biases [C]; their loss.

    The loss is penalised and convex.
    """
    from scipy.optimize import minimize

    values, less, y = z.numpy(), mean.numpy(), labels.numpy()
    rows = np.arange(len(y))
    classes = values.shape[1]
    centre = np.array([1.0, 0.0, *np.zeros(classes)])
    spread = np.array([_HEAT_SPREAD, _MEAN_SPREAD, *np.full(classes, _BIAS_SPREAD)])

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
    best = minimize(loss, centre, jac=True, method="L-BFGS-B", bounds=bounds)
    return list(map(float, best.x)), float(best.fun)
