"""scikit-learn's checks of estimators, which need tables: here a row of numbers is an image."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from ogkd import OGKDClassifier


class Rows(OGKDClassifier):
    """The estimator, of rows of numbers: each number is the brightness of a stripe."""

    def fit(self, X, y):
        return super().fit(_stripes(X), y)

    def _probabilities(self, X):
        return super()._probabilities(_stripes(X))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        tags.input_tags.three_d_array = tags.input_tags.string = False
        return tags


Rows.__init__.__signature__ = OGKDClassifier.__init__.__signature__


def _stripes(X):
    """[N, F] -> images [N, 32, 32], whose upper quarter is the same in all: none is blank."""
    rows = np.asarray(X, dtype=np.float64)
    levels = 255 / (1 + np.exp(-rows))
    stripes = np.repeat(levels, -(-32 // rows.shape[1]), axis=1)[:, None, :32]
    images = np.repeat(stripes, 32, axis=1)
    images[:, :8] = np.arange(32)
    return images.astype(np.uint8)


EXPECTED = {
    **dict.fromkeys(
        (
            "check_estimator_sparse_tag",
            "check_estimator_sparse_array",
            "check_estimator_sparse_matrix",
        ),
        "Images are never sparse: the sentence is the one for anything that is not an image.",
    ),
    "check_fit2d_1sample": "The sentence counts classes ('y has 1'), not samples.",
}


@parametrize_with_checks([Rows("builtin", "gda")], expected_failed_checks=lambda _: EXPECTED)
@pytest.mark.filterwarnings("ignore")  # labels that are numbers, libraries
def test_scikit_learn_check(estimator, check):
    check(estimator)
