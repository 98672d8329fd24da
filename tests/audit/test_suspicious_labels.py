from __future__ import annotations

import builtins
import sys

import numpy as np
import pytest

from ogkd.audit.labels import find_suspicious_labels, require_cleanlab
from ogkd.errors import ConfigError

NAMES = ("a", "b", "c")


def clusters(count: int, *, spread: float = 0.35) -> tuple[np.ndarray, list[str]]:
    """`count` points around each of three directions."""
    rng = np.random.default_rng(0)
    centres = np.eye(16)[:3]
    features = np.concatenate([c + spread * rng.normal(size=(count, 16)) / 4 for c in centres])
    return features.astype(np.float32), [name for name in NAMES for _ in range(count)]


def test_swapped_labels_are_found_and_come_first() -> None:
    features, labels = clusters(40)
    swapped = {3: "b", 50: "c", 100: "a"}
    for row, label in swapped.items():
        labels[row] = label
    numbers = list(range(1000, 1120))
    report = find_suspicious_labels(features, labels, list(range(120)), numbers)
    assert {one.image - 1000 for one in report.suspects[:3]} == set(swapped)
    assert len(report.suspects) <= 4
    by_image = {one.image: one for one in report.suspects}
    assert (by_image[1003].given, by_image[1003].suggested) == ("b", "a")
    assert by_image[1003].score < 0.5
    assert report.checked == 120
    assert report.accuracy is not None
    assert report.accuracy > 0.9


def test_copies_of_one_wrong_image_cannot_vouch_for_each_other() -> None:
    features, labels = clusters(30)
    features[:6] = features[0]
    labels[:6] = ["b"] * 6
    together = [0] * 6 + list(range(1, 85))
    report = find_suspicious_labels(features, labels, together, list(range(90)))
    assert {one.image for one in report.suspects} >= set(range(6))


def test_a_class_with_too_few_groups_is_left_out_and_named() -> None:
    features, labels = clusters(20)
    groups = list(range(40)) + [99] * 20  # all images of c are of one patient
    report = find_suspicious_labels(features, labels, groups, list(range(60)))
    assert report.left_out == ("c",)
    assert report.checked == 40


def test_nothing_is_judged_where_fewer_than_two_classes_are_left() -> None:
    features, labels = clusters(4)
    report = find_suspicious_labels(features, labels, list(range(12)), list(range(12)))
    assert (report.checked, report.suspects, report.accuracy) == (0, (), None)
    assert report.left_out == NAMES


def test_without_cleanlab_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name.startswith("cleanlab"):
            raise ImportError(name)
        return plain(name, *args, **kwargs)  # type: ignore[arg-type]

    for name in [name for name in sys.modules if name.startswith("cleanlab")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ConfigError, match=r"ogkd\[audit\]"):
        require_cleanlab()
