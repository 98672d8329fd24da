"""The learning curve: refits on fewer labels, and a forecast for more."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

import ogkd
from ogkd.data.case import Dataset
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from ogkd.fitting.learning_curve import LearningCurve, learning_curve


def simulated(errors, images, repeats=8, seed=0, spread=0.0):
    """Images that are right by chance, with a share of errors for each number of labels."""
    rng = np.random.default_rng(seed)
    shares = np.array(errors)[:, None, None] + spread * rng.normal(size=(len(errors), repeats, 1))
    right = (rng.random((len(errors), repeats, images)) > shares).astype(float)
    return LearningCurve(tuple(2**n for n in range(len(errors))), right)


def test_curve_of_a_dataset_has_each_number_of_labels_and_judges_unseen_images(
    bert_backbone, pictures
):
    curve = learning_curve(pictures, backbone=bert_backbone, repeats=3)
    assert curve.labels == (1, 2, 4)  # of six, a quarter is always held out
    assert curve.right.shape == (3, 3, 18)
    for row, labels in enumerate(curve.labels):
        judged = (~np.isnan(curve.right[row])).sum(axis=1)
        assert (judged == 18 - 3 * labels).all()
    assert [record["labels"] for record in curve.rows()] == [1, 2, 4]
    assert "labels per class" in str(curve)
    assert ogkd.learning_curve is learning_curve


def test_images_of_a_patient_who_was_learned_from_judge_nothing(bert_backbone, pictures):
    whole = read_dataset(pictures)
    cases = [
        case if case.split == "test" else type(case)(**{**vars(case), "group": f"p{number // 2}"})
        for number, case in enumerate(whole.cases)
    ]
    curve = learning_curve(Dataset(tuple(cases), whole.task), backbone=bert_backbone, repeats=3)
    seen = ~np.isnan(curve.right[0])
    assert curve.groups is not None
    for repeat in seen:
        learned = set(curve.groups[~repeat])
        assert not learned & set(curve.groups[repeat])


def test_power_law_is_continued():
    curve = simulated([0.4, 0.2, 0.1], images=20_000)
    estimate, low, high = curve.forecast(8)
    assert low < estimate < high
    assert estimate == pytest.approx(0.95, abs=0.01)
    assert curve.forecast(4)[0] == pytest.approx(0.9, abs=0.01)


def test_more_labels_never_promise_less():
    curve = simulated([0.2, 0.25, 0.3], images=200)
    assert curve.forecast(64)[0] == pytest.approx(curve.forecast(8)[0])


@pytest.mark.parametrize("spread", [0.0, 0.04])
def test_interval_contains_what_a_later_fit_reaches(spread):
    """In nine of ten: the fit with twice the labels is drawn as the others were."""
    hits, rng = 0, np.random.default_rng(5)
    for seed in range(60):
        curve = simulated([0.4, 0.28, 0.2], images=60, seed=seed, spread=spread)
        low, high = curve.forecast(8)[1:]
        hits += low <= 1 - (0.2 * 0.2**0.5 / 0.4**0.5 + spread * rng.normal()) <= high
    assert hits >= 49


def test_few_images_and_wrong_requests_are_refused(bert_backbone, pictures):
    with pytest.raises(DataError):
        learning_curve(pictures, backbone=bert_backbone, shots=2)
    for options, argument in (
        ({"repeats": 1}, "repeats"),
        ({"method": "zero-shot"}, "method"),
        ({"method": "coop"}, "method"),
        ({"cases": "folder"}, "data"),
    ):
        with pytest.raises(ConfigError) as error:
            learning_curve(pictures, backbone=bert_backbone, **options)
        assert error.value.argument == argument


def test_curve_is_drawn(bert_backbone, pictures):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    curve = learning_curve(pictures, backbone=bert_backbone, repeats=2)
    axes = curve.plot(pyplot.figure().add_subplot())
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2", "4", "8"]
    pyplot.close("all")


def test_copy_of_an_image_that_was_learned_from_judges_nothing(bert_backbone, pictures, tmp_path):
    data = shutil.copytree(pictures / "train", tmp_path / "data")
    for folder in data.iterdir():
        shutil.copy(folder / "0.png", folder / "copy.png")
    curve = learning_curve(data, backbone=bert_backbone, repeats=4)
    assert curve.groups is not None
    assert len(set(curve.groups)) == 18 < len(curve.groups)
    for repeat in ~np.isnan(curve.right[0]):
        assert not set(curve.groups[~repeat]) & set(curve.groups[repeat])
