"""Logistic regression as scikit-learn fits it: what a practitioner tries first."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from ogkd.methods.base import MethodConfig, TextSide
from ogkd.methods.feature_method import FeatureMethod, Rows
from ogkd.methods.heads import Head, LinearHead
from ogkd.methods.registry import register


class LogisticConfig(MethodConfig):
    """`C` and `class_weight` are scikit-learn's; C is fixed, nothing is searched."""

    C: float = Field(default=100.0, gt=0)
    class_weight: Literal["balanced"] | None = None


@register
class Logistic(FeatureMethod[LogisticConfig]):
    """min of 1/2 |W|^2 + C sum_i CE(W v_i + b, y_i), on L2-normalised image features.

    The same model as `linear-probe` with l2 = 1 / (C N), but with C fixed and no search; text
    is not used. There is no released baseline to compare with.
    """

    name = "logistic"
    summary = "scikit-learn's logistic regression on image features"
    citation = "Pedregosa et al., scikit-learn, JMLR 2011"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        from sklearn.linear_model import LogisticRegression

        config = self.config
        model = LogisticRegression(
            C=config.C, class_weight=config.class_weight, max_iter=2000, tol=1e-6
        )
        model.fit(rows.features.double().numpy(), rows.labels.numpy())
        return linear_head(model)


def linear_head(model: Any) -> LinearHead:
    """Turn a fitted linear model of scikit-learn into a head; for two classes it has one row."""
    W, b = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(W) == 1:
        W, b = np.stack([-W[0], W[0]]) / 2, np.array([-b[0], b[0]]) / 2
    return LinearHead(torch.from_numpy(W).float(), torch.from_numpy(b).float())
