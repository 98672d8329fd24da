"""Labels that look wrong: each image judged by a classifier that has not learned from it.

Logistic regression on frozen features, cross-validated; cleanlab (Northcutt et al., confident
learning) decides which disagreements are more than a doubt. Needs the extra `audit`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogkd.audit.result import LabelReport, Suspect
from ogkd.errors import ConfigError

__all__ = ["FOLDS", "need_cleanlab", "suspicious_labels"]

FOLDS = 5
_STRENGTH = 0.01  # of the weights' freedom (C): more makes the probabilities too sure


def need_cleanlab() -> None:
    """Refuse where cleanlab is not installed, before any work is done."""
    try:
        import cleanlab.filter  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            'Suspicious labels are found with cleanlab: pip install "ogkd[audit]", '
            "or leave out --labels and --backbone."
        ) from error


def suspicious_labels(
    features: NDArray[np.float32],
    labels: Sequence[str],
    groups: Sequence[int],
    numbers: Sequence[int],
    *,
    seed: int = 0,
) -> LabelReport:
    """Judge images with features [N, d]; `numbers` are their numbers in the data.

    Images of one group (a patient, copies of one image) are judged together: a copy with the
    same wrong label would defend it. A class with fewer than FOLDS groups is left out.
    """
    sources = Counter(label for label, _ in set(zip(labels, groups, strict=True)))
    names = sorted(name for name, count in sources.items() if count >= FOLDS)
    left_out = tuple(sorted(set(sources) - set(names)))
    if len(names) < 2:
        return LabelReport((), 0, None, left_out)
    kept = [row for row, label in enumerate(labels) if label in set(names)]
    given = np.array([names.index(labels[row]) for row in kept])
    probabilities = _out_of_sample(
        np.asarray(features[kept], np.float64), given, np.array([groups[row] for row in kept]), seed
    )
    accuracy = float((probabilities.argmax(axis=1) == given).mean())
    suspects = tuple(
        Suspect(
            int(numbers[kept[row]]),
            names[given[row]],
            names[int(probabilities[row].argmax())],
            float(probabilities[row, given[row]]),
        )
        for row in _issues(given, probabilities)
    )
    return LabelReport(suspects, len(kept), accuracy, left_out)


def _out_of_sample(
    features: NDArray[np.float64], given: NDArray[np.intp], groups: NDArray[np.intp], seed: int
) -> NDArray[np.float64]:
    """Probabilities [N, C] of each image by a classifier fitted on other groups."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = int(given.max()) + 1
    result = np.full((len(given), classes), 1.0 / classes)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed)
    for learned, judged in folds.split(features, given, groups):
        if len(set(given[learned])) < classes or not len(judged):
            continue  # all groups of a class fell in this fold: no opinion, not a wrong one
        model = make_pipeline(
            StandardScaler(),
            LogisticRegression(C=_STRENGTH, class_weight="balanced", max_iter=1000),
        )
        model.fit(features[learned], given[learned])
        result[judged] = model.predict_proba(features[judged])
    return result


def _issues(given: NDArray[np.intp], probabilities: NDArray[np.float64]) -> list[int]:
    from cleanlab.filter import find_label_issues

    with warnings.catch_warnings():
        # It warns about classes that no image is predicted as; that is for it to allow for.
        warnings.simplefilter("ignore")
        found = find_label_issues(
            given, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
        )
    # Where the classifier agrees with the label there is nothing to look at.
    return [int(row) for row in found if probabilities[row].argmax() != given[row]]
