from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from ogkd import evaluate, load
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.calibrate import FEWEST, calibrate
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.decide import engine_note
from tiny_data import case_of, write_dataset
from world import fit

NAMES = ("bright spot", "dark field", "striped tissue")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("calibration")
    return write_dataset(root, NAMES, {"train": 2, "val": 8, "test": 1})


@pytest.fixture(scope="module")
def model(bert_backbone, data, module_cache):
    return fit(data, bert_backbone, method="clap", shots=2)


def validation(data, count=None, patients=lambda row: None):
    """Some validation images as a dataset, each of a patient."""
    dataset = read_dataset(data)
    cases = dataset.part("val")[:count]
    return dataset.with_cases(replace(c, group=patients(row)) for row, c in enumerate(cases))


def test_the_validation_part_is_calibrated_on(model, data, notes):
    calibration = calibrate(model, data)
    [question] = calibration.questions
    assert (calibration.cases, question.counts) == (24, (8, 8, 8))
    assert len(question.confidences) == 16
    assert calibration.weights_sha256 == model.weights_sha256
    assert not set(calibration.image_keys) & set(model.card.support_images)
    assert any("at most 5 % errors" in note for note in notes)


def test_how_many_more_images_it_takes_is_one_number_wherever_it_is_printed(model, data, notes):
    calibrated = copy.copy(model)
    calibrated.calibration = calibrate(model, data)
    rows = {row["max_risk"]: row for row in evaluate(calibrated, data, resamples=0)["abstain"]}
    for risk in (0.05, 0.1):
        assert f"Note: {rows[risk]['note']}" in notes
    task, keys = model.task, [f"{n:02}" for n in range(24)]
    good, chance = (
        Calibration.fit(task, 5.0 * np.eye(3)[answers], np.arange(24) % 3, keys).questions[0]
        for answers in (np.arange(24) % 3, np.zeros(24, dtype=int))
    )
    with pytest.raises(ConfigError, match=f"At least {good.missing(22)} more"):
        good.threshold(0.1)
    with pytest.raises(ConfigError, match="No number of images helps"):
        chance.threshold(0.1)


def test_images_that_were_used_for_fitting_are_refused(model, data):
    with pytest.raises(DataError) as error:
        calibrate(model, data, split="train")
    assert error.value.argument == "split"
    plain = read_dataset(data).map(lambda case: case_of(case.image, case.target))
    with pytest.raises(DataError, match="6 of the 33 images") as error:
        calibrate(model, plain)
    assert error.value.argument == "leave_out_used"
    assert calibrate(model, plain, leave_out_used=True).cases == 27
    # Settings were searched on validation images: they count as used.
    searched = fit(data, model.backbone, method="linear-probe", shots=2)
    with pytest.raises(DataError, match="6 of the 24 images"):
        calibrate(searched, data)


def test_too_few_images_and_one_patient_are_refused(model, data):
    with pytest.raises(DataError, match=f"label {FEWEST - 10} more"):
        calibrate(model, validation(data, 10))
    with pytest.raises(DataError):
        calibrate(model, validation(data, patients=lambda row: "p"))


def test_images_of_few_patients_and_absent_classes_are_noted(model, data, notes):
    two_classes = validation(data, 16, lambda row: f"p{row // 4}")
    calibrate(model, two_classes)
    assert any("16 images come from 4 patients" in note for note in notes)
    assert any("with 95 % probability need" in note for note in notes)
    assert any("no images of: striped tissue" in note for note in notes)


def test_a_calibrated_model_is_kept_and_read_with_its_calibration(model, data, tmp_path):
    model.save(tmp_path / "m")
    before = load(tmp_path / "m", backbone=model.backbone)
    assert before.calibration is None
    calibration = calibrate(before, data)
    scaled = calibration.questions[0].model_copy(update={"scale": 0.4, "reason": None})
    before.calibration = calibration.model_copy(update={"questions": (scaled,)})
    before.save(tmp_path / "m")
    after = load(tmp_path / "m", backbone=model.backbone)
    assert after.calibration == before.calibration
    features = after.support.features
    p = after.probabilities(features)
    np.testing.assert_allclose(p, scaled.probabilities(after.logits(features)), atol=1e-6)
    plain = load(tmp_path / "m", backbone=model.backbone, calibrated=False)
    assert plain.calibration is None
    expected = model.probabilities(features)
    np.testing.assert_allclose(plain.probabilities(features), expected, atol=1e-6)
    assert not np.allclose(plain.probabilities(features), p)


def test_a_model_fitted_again_over_the_folder_loses_the_calibration(model, data, tmp_path):
    options = {"method": "clap", "shots": 2, "out": tmp_path / "m", "restart": True}
    first = fit(data, model.backbone, **options)
    calibrate(first, data).write(tmp_path / "m" / "calibration.json")
    assert load(tmp_path / "m", backbone=model.backbone).calibration is not None
    fit(data, model.backbone, **options)
    assert not (tmp_path / "m" / "calibration.json").exists()


def test_patients_of_many_images_need_more_images_than_single_ones(model, data, notes):
    """13 images of which one patient has 11: too few stay beside the temperature's."""
    dataset = validation(data, FEWEST, lambda row: f"p{max(0, row - 10)}")
    calibration = calibrate(model, dataset)
    beside = len(calibration.questions[0].confidences)
    assert calibration.cases == FEWEST
    assert beside != FEWEST - FEWEST // 3
    assert any("with 90 % probability" in note for note in notes) is (beside < 9)


def test_the_engine_is_recorded_and_another_one_is_noted(model, data):
    calibration = calibrate(model, data)
    assert calibration.engine == "torch"
    same = Classifier(model.backbone, model.head, model.card, calibration=calibration)
    assert engine_note(same) == ""
    fast = copy.copy(model.backbone)
    fast.engine = "fp16"
    other = Classifier(fast, model.head, model.card, calibration=calibration)
    assert "engine torch, but here fp16 encodes" in engine_note(other)
    assert engine_note(Classifier(fast, model.head, model.card)) == ""  # nothing is guaranteed
    assert calibrate(other, data).engine == "fp16"


def test_what_the_task_cannot_guarantee_is_refused(model, data):
    for options in ({"sensitivity": 0.9}, {"confidence": 0.8}):
        with pytest.raises(ConfigError) as error:
            calibrate(model, data, **options)
        assert error.value.argument == "sensitivity"
