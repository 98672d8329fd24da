"""LP, the linear probe: multinomial logistic regression on image features alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from ogkd.methods import FeatureMethod, Head, LinearHead, Rows, TextSide, register
from ogkd.methods.feature_method import RivalConfig
from ogkd.methods.grid_search import Trial, choose, trials

# From strong to weak, so that each problem starts at its neighbour's solution.
GRID = tuple(math.pow(10, -k / 2) for k in range(2, 13))
DEFAULT = 1e-3
RELEASED_C = (1e6, 1e4, 1e2, 1.0, 1e-2, 1e-4, 1e-6)
_STEPS = 8  # of the released search after these

Array = NDArray[np.float64]


class LinearProbeConfig(RivalConfig):
    """`l2` is searched if None; at one shot without validation it is 0.001."""

    l2: float | None = Field(default=None, gt=0)  # weight of |W|^2; None: searched


@register
class LinearProbe(FeatureMethod[LinearProbeConfig]):
    """min over W, b of 1/N sum_i CE(W v_i + b, y_i) + l2/2 |W|^2, solved to its optimum.

    L-BFGS, and l2 chosen on validation images, as CLIP's paper probes; else by
    cross-validation. Named differences from the benchmark's code, unless fidelity is "released"
    (fidelity.md, 49): one augmented view of each image; C = 1 / (N l2) from seven values a
    hundredfold apart on validation images, then eight steps of halving; the last one's is used.
    """

    name = "linear-probe"
    summary = "linear classifier on image features, regularisation chosen (LP)"
    citation = "Radford et al. 2021, CLIP"
    uses_validation = True

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        l2 = self.config.l2
        if l2 is None:
            halve = self.as_benchmarked and rows.validation is not None
            l2 = _halve(rows) if halve else _choose(rows)
        W, b = probe_path(rows, (l2,))[0]
        return LinearHead(W.float(), b.float())


def _choose(rows: Rows) -> float:
    def logits(trial: Trial) -> Tensor:
        v = trial.features.double()
        path = probe_path(trial.rows, GRID, tolerance=1e-5)
        return torch.stack([v @ W.mT + b for W, b in path])  # [G, M, C]

    best = choose(rows, logits, most=4)
    return DEFAULT if best is None else GRID[best[0]]


def _halve(rows: Rows) -> float:
    """The strength that the released search ends at: of two C, the left one if they are equal."""
    (trial,) = trials(rows)
    N = len(rows.labels)

    def accuracies(*Cs: float) -> list[float]:
        path = probe_path(rows, [1 / (C * N) for C in Cs], tolerance=1e-5)
        right = [(trial.features.double() @ W.mT + b).argmax(-1) == trial.labels for W, b in path]
        return [float(row.double().mean()) for row in right]

    scores = accuracies(*RELEASED_C)
    peak = RELEASED_C[scores.index(max(scores))]
    left, right, last = 0.1 * peak, 10 * peak, peak
    for _ in range(_STEPS):
        low, high = accuracies(left, right)
        middle = math.sqrt(left * right)
        last, left, right = (right, middle, right) if low < high else (left, left, middle)
    return 1 / (last * N)


def probe_path(
    rows: Rows, strengths: Sequence[float], *, tolerance: float = 1e-8
) -> list[tuple[Tensor, Tensor]]:
    """Return the optimum W [C, d], b [C] for each strength, each started at the previous one."""
    from scipy.optimize import minimize  # here: every command imports all methods

    F = rows.features.double().numpy()  # [R, d]
    # At the optimum W lies in the span of the rows: work in its coordinates, exactly.
    Q, _ = np.linalg.qr(F.T)  # [d, r]
    X = F @ Q  # [R, r]
    L = rows.one_hot.double().numpy()
    C, r = L.shape[1], X.shape[1]
    theta = np.zeros(C * (r + 1))
    path = []
    for l2 in strengths:

        def value_and_slope(theta: Array, l2: float = l2) -> tuple[float, Array]:
            W, b = theta[: C * r].reshape(C, r), theta[C * r :]
            z = X @ W.T + b
            z -= z.max(axis=1, keepdims=True)
            log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
            G = (np.exp(log_p) - L) / len(X)
            value = -(L * log_p).sum() / len(X) + l2 / 2 * (W**2).sum()
            slope = np.concatenate([(G.T @ X + l2 * W).ravel(), G.sum(axis=0)])
            return float(value), slope

        options: Any = {"maxiter": 1000, "maxfun": 5000, "gtol": tolerance, "ftol": 1e-15}
        theta = minimize(value_and_slope, theta, jac=True, method="L-BFGS-B", options=options).x
        W, b = theta[: C * r].reshape(C, r), theta[C * r :]
        path.append((torch.from_numpy(W @ Q.T), torch.from_numpy(b.copy())))
    return path
