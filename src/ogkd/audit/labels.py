"""Labels that look wrong: each is checked by a classifier that has not learned from the image.

Logistic regression on frozen features, cross-validated; cleanlab (Northcutt et al., confident
learning) decides which disagreements are more than noise. Needs the extra `audit`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ogkd.audit.result import LabelReport, Suspect
from ogkd.errors import ConfigError

FOLDS = 5
_C = 0.01  # inverse regularisation: a larger C makes the probabilities overconfident


def require_cleanlab() -> None:
    """Raise a ConfigError if cleanlab is not installed, before any work is done."""
    try:
        import cleanlab.filter  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "Checking labels needs cleanlab, which is not installed. Install it with: "
            'pip install "ogkd[audit]", or run the check without labels.'
        ) from error


def find_suspicious_labels(
    features: NDArray[np.float32],
    labels: Sequence[str],
    groups: Sequence[int],
    numbers: Sequence[int],
) -> LabelReport:
    """Check the labels of images with features [N, d]; `numbers` are their numbers in the data.

    Images of one group (a patient, copies of one image) are checked together: a copy with the
    same wrong label would confirm it. A class with fewer than FOLDS groups is left out.
    """
    sources = Counter(label for label, _ in set(zip(labels, groups, strict=True)))
    names = sorted(name for name, count in sources.items() if count >= FOLDS)
    left_out = tuple(sorted(set(sources) - set(names)))
    if len(names) < 2:
        return LabelReport((), 0, None, left_out)
    kept = [row for row, label in enumerate(labels) if label in set(names)]
    given = np.array([names.index(labels[row]) for row in kept])
    together = np.array([groups[row] for row in kept])
    probabilities = _out_of_sample(features[kept].astype(np.float64), given, together)
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
    features: NDArray[np.float64], given: NDArray[np.intp], groups: NDArray[np.intp]
) -> NDArray[np.float64]:
    """Probabilities [N, C] for each image from a classifier fitted on other groups."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedGroupKFold
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    classes = int(given.max()) + 1
    result = np.full((len(given), classes), 1.0 / classes)
    folds = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=0)
    for learned, held_out in folds.split(features, given, groups):
        if len(set(given[learned])) < classes or not len(held_out):
            continue  # all groups of a class are in this fold: stay at chance, not at a wrong guess
        head = LogisticRegression(C=_C, class_weight="balanced", max_iter=1000)
        model = make_pipeline(StandardScaler(), head)
        model.fit(features[learned], given[learned])
        result[held_out] = model.predict_proba(features[held_out])
    return result


def _issues(given: NDArray[np.intp], probabilities: NDArray[np.float64]) -> list[int]:
    from cleanlab.filter import find_label_issues

    with warnings.catch_warnings():
        # It warns about classes that are never predicted, and handles them itself.
        warnings.simplefilter("ignore")
        rows = find_label_issues(
            given, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1
        )
    # Labels that the classifier agrees with are not worth a look.
    return [int(row) for row in rows if probabilities[row].argmax() != given[row]]
