from __future__ import annotations

import json

import pytest

import ogkd as library
from tiny_data import edit_sealed, write_dataset


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Images that the model has not seen: 24 in val, 6 in test."""
    return write_dataset(
        tmp_path_factory.mktemp("others"), splits={"train": 1, "val": 8, "test": 2}
    )


def test_a_calibration_appears_in_the_folder_and_changes_no_prediction(ogkd, model, others):
    before = library.load(model)
    outcome = ogkd("calibrate", model, others)
    assert outcome.code == 0, outcome.err
    assert "Calibrated on 24 images\n8 for the temperature, 16 for the sets" in outcome.out
    assert "Note: 24 images are too few for guaranteeing at most 10 % errors" in outcome.err
    assert "more are needed." in outcome.err
    after = library.load(model)
    assert after.calibration.cases == 24
    files = sorted((others / "test").rglob("*.png"))
    assert after.predict(files) == before.predict(files)
    text = (model / "calibration.json").read_text()
    assert ".png" not in text
    assert str(others) not in text


def test_evaluate_shows_before_and_after_and_warns_of_calibration_images(ogkd, model, others):
    assert ogkd("calibrate", model, others).code == 0
    place = model / "calibration.json"
    edit_sealed(place, lambda content: content["questions"][0].update(scale=1 / 1.5, reason=None))
    outcome = ogkd("evaluate", model, others, "--resamples", 0, "--all")
    assert outcome.code == 0
    for words in ("Before calibration", "After calibration", "LAC", "at most 1 %, 2 %, 5 %"):
        assert words in outcome.out
    outcome = ogkd("evaluate", model, others, "--resamples", 0, "--split", "val")
    assert "calibrated on 24 of these 24 images" in outcome.err


def test_another_engine_than_the_calibration_s_is_told(ogkd, model, others, tmp_path):
    assert ogkd("calibrate", model, others).code == 0
    place = model / "calibration.json"
    content = json.loads(place.read_text())
    assert content["engine"] == "torch"
    file = next((others / "test").rglob("*.png"))
    page = tmp_path / "r.html"
    commands = [
        ("predict", model, file),
        ("evaluate", model, others, "--resamples", 0),
        ("evaluate", model, others, "--resamples", 0, "--no-images", "--report", page),
    ]
    said = "The images of the calibration were encoded with the engine int8, but here torch"
    assert [said in ogkd(*words).err for words in commands] == [False] * 3
    edit_sealed(place, lambda content: content.update(engine="int8"))
    assert [said in ogkd(*words).err for words in commands] == [True] * 3
    assert said in page.read_text()


def test_what_cannot_work_is_refused_and_writes_nothing(refused, model, data, others, tmp_path):
    assert "Too few images to calibrate on: 6" in refused(
        "calibrate", model, data, "--split", "test"
    )
    assert "no split 'val'" in refused("calibrate", model, data)
    assert "option --split" in refused("calibrate", model, data, "--split", "train")
    assert not (model / "calibration.json").exists()
    assert "not a model folder" in refused("calibrate", others, others)
    write_dataset(tmp_path / "d", ["benign tumor", "stone"], {"val": 8})
    assert "does not know: stone" in refused("calibrate", model, tmp_path / "d")


def test_a_damaged_calibration_is_told_and_a_new_one_mends_it(ogkd, refused, model, others):
    (model / "calibration.json").write_text("{")
    file = next((others / "test").rglob("*.png"))
    assert "calibration.json is damaged" in refused("predict", model, file)
    assert ogkd("calibrate", model, others).code == 0
    assert ogkd("predict", model, file).code == 0
    content = json.loads((model / "calibration.json").read_text())
    (model / "calibration.json").write_text(json.dumps(content | {"schema_version": 9}))
    assert "newer ogkd" in refused("predict", model, file)
