"""Logistic regression and a linear SVM as scikit-learn fits them: what a practitioner tries first.

Text is not used, nothing is searched, and there is no released baseline to compare with.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from ogkd.methods import FeatureMethod, Head, LinearHead, MethodConfig, Rows, TextSide, register


class LogisticConfig(MethodConfig):
    """`C` and `class_weight` are scikit-learn's."""

    C: float = Field(default=100.0, ge=1e-9, le=1e9)  # the solvers take for ever far outside
    class_weight: Literal["balanced"] | None = None


@register
class Logistic(FeatureMethod[LogisticConfig]):
    """min of 1/2 |W|^2 + C sum_i CE(W v_i + b, y_i), on L2-normalised image features.

    The same model as `linear-probe` with l2 = 1 / (C N), but with C fixed.
    """

    name = "logistic"
    summary = "scikit-learn's logistic regression on image features"
    citation = "Pedregosa et al., scikit-learn, JMLR 2011"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        from sklearn.linear_model import LogisticRegression

        C, class_weight = self.config.C, self.config.class_weight
        model = LogisticRegression(C=C, class_weight=class_weight, max_iter=2000, tol=1e-6)
        return _fit(model, rows)


class SVMConfig(LogisticConfig):
    """`sharpness` multiplies the margins."""

    C: float = Field(default=1.0, ge=1e-9, le=1e9)
    sharpness: float = Field(default=3.0, gt=0)


@register
class SVM(FeatureMethod[SVMConfig]):
    """One against the rest: min of 1/2 |w|^2 + C sum_i max(0, 1 - y_i (w v_i + b))^2 per class.

    An SVM gives margins, not probabilities. The logits are the margins times `sharpness`: their
    order is the SVM's, but the probabilities are not calibrated. Solved in the primal, which has
    no randomness.
    """

    name = "svm"
    summary = "scikit-learn's linear support vector machine on image features"
    citation = "Fan et al., LIBLINEAR, JMLR 2008"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        from sklearn.svm import LinearSVC

        C, class_weight = self.config.C, self.config.class_weight
        model = LinearSVC(C=C, class_weight=class_weight, dual=False, max_iter=5000, tol=1e-6)
        return _fit(model, rows, self.config.sharpness)


def _fit(model: Any, rows: Rows, factor: float = 1.0) -> LinearHead:
    """Fit a linear model of scikit-learn, which for two classes has one row of weights."""
    model.fit(rows.features.double().numpy(), rows.labels.numpy())
    W, b = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(W) == 1:
        W, b = np.stack([-W[0], W[0]]) / 2, np.array([-b[0], b[0]]) / 2
    return LinearHead(factor * torch.from_numpy(W).float(), factor * torch.from_numpy(b).float())
