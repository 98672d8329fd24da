from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from ogkd.datasets.manifest import Manifest

import ogkd
from ogkd.datasets.read import read_manifest
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.calibrate import FEWEST, calibrate
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.engine_note import engine_note
from tiny_data import item_of, write_dataset

NAMES = ("bright spot", "dark field", "striped tissue")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("calibration")
    return write_dataset(root, NAMES, {"train": 2, "val": 8, "test": 1})


@pytest.fixture(scope="module")
def model(bert_backbone, data, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return ogkd.fit(data, backbone=bert_backbone, method="logistic", shots=2)


def test_the_validation_part_is_calibrated_on(model, data):
    notes = []
    found = calibrate(model, data, say=notes.append)
    assert (found.images, found.counts) == (24, (8, 8, 8))
    assert len(found.confidences) == 16
    assert found.weights_sha256 == model.weights_sha256
    assert not set(found.image_keys) & set(model.card.support_images)
    assert any("max_risk 0.05" in note and "more" in note for note in notes)


def test_images_that_were_used_for_fitting_are_refused_by_number(model, data):
    with pytest.raises(DataError, match="All 6 images were used for fitting"):
        calibrate(model, data, split="train")
    plain = Manifest(
        tuple(item_of(item.image, item.label) for item in read_manifest(data).items), NAMES
    )
    with pytest.raises(DataError, match="learned from 6 of the 33 images") as error:
        calibrate(model, plain)
    assert "other 27" in str(error.value)
    assert calibrate(model, plain, leave_out_used=True).images == 27


def test_images_that_settings_were_searched_on_count_as_used(bert_backbone, data):
    searched = ogkd.fit(data, backbone=bert_backbone, method="linear-probe", shots=2)
    with pytest.raises(DataError, match="6 of the 24 images"):
        calibrate(searched, data)


def test_a_copy_under_another_name_is_still_the_image_that_was_used(model, data, tmp_path):
    place = tmp_path / "copy.png"
    item = read_manifest(data).part("train")[0]
    place.write_bytes(item.image.file.read_bytes())
    items = (*read_manifest(data).part("val"), item_of(place, item.label, "val"))
    with pytest.raises(DataError, match="1 of the 25 images"):
        calibrate(model, Manifest(tuple(items), NAMES))


def test_too_few_images_are_refused_with_how_many_more(model, data):
    val = read_manifest(data).part("val")
    with pytest.raises(
        DataError, match=f"Too few images to calibrate on: 10.* label {FEWEST - 10} more"
    ):
        calibrate(model, Manifest(tuple(val[:10]), NAMES))


def test_images_of_few_patients_and_absent_classes_are_told(model, data):
    notes = []
    val = read_manifest(data).part("val")[:16]  # of two classes
    items = tuple(item_of(i.image, i.label, "val", f"p{n // 4}") for n, i in enumerate(val))
    calibrate(model, Manifest(items, NAMES), say=notes.append)
    assert any("16 images come from 4 patients" in note for note in notes)
    assert any("too few for prediction sets with 95 % coverage" in note for note in notes)
    assert any("no images of: striped tissue" in note for note in notes)


def test_a_calibrated_model_is_kept_and_read_with_its_calibration(model, data, tmp_path):
    model.save(tmp_path / "m")
    before = ogkd.load(tmp_path / "m", backbone=model.backbone)
    assert before.calibration is None
    found = calibrate(before, data).model_copy(update={"temperature": 2.5})
    before.calibration = found
    before.save(tmp_path / "m")
    after = ogkd.load(tmp_path / "m", backbone=model.backbone)
    assert after.calibration == found
    features = after.support.features
    p = after.probabilities(features)
    np.testing.assert_allclose(p, found.probabilities(after.logits(features)), atol=1e-6)
    plain = ogkd.load(tmp_path / "m", backbone=model.backbone, calibrated=False)
    assert plain.calibration is None
    expected = model.probabilities(features)
    np.testing.assert_allclose(plain.probabilities(features), expected, atol=1e-6)
    assert not np.allclose(plain.probabilities(features), p)


def test_a_model_fitted_again_over_the_folder_loses_the_calibration(model, data, tmp_path):
    def fit_again():
        options = {"method": "logistic", "shots": 2, "out": tmp_path / "m", "restart": True}
        return ogkd.fit(data, backbone=model.backbone, **options)

    calibrate(fit_again(), data).write(tmp_path / "m" / "calibration.json")
    assert ogkd.load(tmp_path / "m", backbone=model.backbone).calibration is not None
    fit_again()
    assert not (tmp_path / "m" / "calibration.json").exists()


def test_a_calibration_of_other_weights_is_refused(model, data, tmp_path):
    model.save(tmp_path / "m")
    other = calibrate(model, data).model_copy(update={"weights_sha256": "0" * 64})
    other.write(tmp_path / "m" / "calibration.json")
    with pytest.raises(ConfigError, match="other weights"):
        ogkd.load(tmp_path / "m", backbone=model.backbone)


def test_patients_of_many_images_need_more_images_than_single_ones(model, data):
    """13 images of which one patient has 11: too few stay beside the temperature's."""
    val = read_manifest(data).part("val")[:FEWEST]
    items = tuple(item_of(i.image, i.label, "val", f"p{max(0, n - 10)}") for n, i in enumerate(val))
    notes = []
    found = calibrate(model, Manifest(items, NAMES), say=notes.append)
    beside = len(found.confidences)
    assert found.images == FEWEST
    assert beside != FEWEST - FEWEST // 3
    assert any("90 % coverage" in note for note in notes) is (beside < 9)


def test_the_engine_is_noted_and_another_one_is_told(model, data, tmp_path):
    found = calibrate(model, data)
    assert found.engine == "torch"
    same = Classifier(model.backbone, model.head, model.card, calibration=found)
    assert engine_note(same) == ""
    fast = copy.copy(model.backbone)
    fast.engine = "int8"
    other = Classifier(fast, model.head, model.card, calibration=found)
    assert "made with the encoder engine torch, but here int8 encodes" in engine_note(other)
    assert engine_note(Classifier(fast, model.head, model.card)) == ""  # nothing is promised
    assert calibrate(other, data).engine == "int8"
    assert "but here onnx" in engine_note(same, engine="onnx")
    # A file of before says nothing: the engine was that of the fit.
    content = found.model_dump(mode="json")
    del content["engine"]
    (tmp_path / "old.json").write_text(json.dumps(content))
    old = Calibration.read(tmp_path / "old.json")
    same.calibration = other.calibration = old
    assert engine_note(same) == ""
    assert "the encoder engine torch" in engine_note(other)
