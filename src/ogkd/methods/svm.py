"""A linear support vector machine on image features."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ogkd.methods.base import MethodConfig, TextSide
from ogkd.methods.feature_method import FeatureMethod, Rows
from ogkd.methods.heads import Head, LinearHead
from ogkd.methods.logistic import linear_head
from ogkd.methods.registry import register


class SVMConfig(MethodConfig):
    """`C` and `class_weight` are scikit-learn's; `sharpness` multiplies the margins."""

    C: float = Field(default=1.0, gt=0)
    class_weight: Literal["balanced"] | None = None
    sharpness: float = Field(default=3.0, gt=0)


@register
class SVM(FeatureMethod[SVMConfig]):
    """One against the rest: min of 1/2 |w|^2 + C sum_i max(0, 1 - y_i (w v_i + b))^2 per class.

    An SVM gives margins, not probabilities. The logits are the margins times `sharpness`: their
    order is the SVM's, but the probabilities are not calibrated. Text is not used. Solved in
    the primal, which has no randomness. There is no released baseline to compare with.
    """

    name = "svm"
    summary = "scikit-learn's linear support vector machine on image features"
    citation = "Fan et al., LIBLINEAR, JMLR 2008"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        from sklearn.svm import LinearSVC

        config = self.config
        model = LinearSVC(
            C=config.C, class_weight=config.class_weight, dual=False, max_iter=5000, tol=1e-6
        )
        model.fit(rows.features.double().numpy(), rows.labels.numpy())
        head = linear_head(model)
        return LinearHead(config.sharpness * head.W, config.sharpness * head.b)
