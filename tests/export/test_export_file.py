from __future__ import annotations

import getpass
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export_world import TEMPERATURE, calibration, card_of, run, session_of
from test_example_script import write_images

from ogkd.export.metadata import file_metadata
from ogkd.export.write import in_batches
from ogkd.images import read_image, to_pixels
from ogkd.model.classifier import Classifier
from tiny_data import CLASSES
from tiny_images import png

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"


def test_probabilities_are_those_of_the_calibration_and_logits_are_not(exported, model, files):
    pixels = to_pixels([read_image(path) for path in files], model.backbone.preprocessing)
    outputs = run(session_of(exported.path), pixels)
    odds = np.exp(outputs["logits"] / TEMPERATURE)
    np.testing.assert_allclose(
        outputs["probabilities"], odds / odds.sum(axis=1, keepdims=True), atol=1e-5
    )
    plain = Classifier(model.backbone, model.head, model.card)
    assert np.abs(plain.predict_proba(files) - outputs["probabilities"]).max() > 0.01


def test_the_file_describes_itself(exported, model):
    card = card_of(exported.path)
    prep = model.backbone.preprocessing
    assert card["class_names"] == list(CLASSES)
    assert card["input"] == {
        "name": "pixels",
        "type": "float32",
        "shape": ["N", 3, 32, 32],
        "normalised": True,
    }
    shown = card["preprocessing"]
    assert (shown["size"], shown["resize"], shown["interpolation"]) == (32, "shortest", "bicubic")
    assert (shown["mean"], shown["std"]) == (list(prep.mean), list(prep.std))
    assert card["backbone"] == {"name": "secret-clip", "digest": model.backbone.digest}
    assert (card["method"], card["asks"]) == ("gda", "classes")
    assert [question["temperature"] for question in card["questions"]] == [TEMPERATURE]
    assert card["check"]["largest_difference"] == exported.largest_difference
    assert "not for autonomous clinical use" in card["caution"]


def test_sets_and_threshold_of_the_file_are_the_calibrations_own(exported, model):
    noted = card_of(exported.path)["calibration"]
    p = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], 200).astype(np.float32)
    least = noted["sets"]["least_probability"]
    limits = model.calibration.limits(model.task, noted["sets"]["coverage"])
    expected = model.task.plausible(p, limits)
    assert np.array_equal(p >= np.array(least[0]), expected)
    assert 0 < expected.mean() < 1
    assert noted["abstain"]["below"] == model.calibration.questions[0].threshold(0.5)


def test_too_few_calibration_images_give_no_sets_and_none_gives_nothing(model):
    few = Classifier(model.backbone, model.head, model.card, calibration=calibration(images=6))
    assert file_metadata(few)["calibration"]["sets"] is None
    plain = file_metadata(Classifier(model.backbone, model.head, model.card))
    assert (plain["questions"][0]["temperature"], plain["calibration"]) == (1.0, None)


@pytest.mark.parametrize(("engine", "kept"), [(None, True), ("torch", True), ("bf16", False)])
def test_promises_made_with_another_engine_are_left_out(model, engine, kept):
    made = model.calibration.model_copy(update={"engine": engine})
    noted = file_metadata(Classifier(model.backbone, model.head, model.card, calibration=made))
    assert (noted["calibration"]["sets"] is not None) is kept
    assert ("note" not in noted["calibration"]) is kept


def test_nothing_in_the_file_tells_where_it_was_made(exported, folder, files):
    model = onnx.load(exported.path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")  # weights may hold any bytes
    content = model.SerializeToString()
    words = [".py", "site-packages", str(folder), str(folder.parent), os.sep + "home"]
    words += [file.name for file in files]
    user = getpass.getuser()
    words += [os.sep + user + os.sep, os.sep + "tmp" + os.sep]
    assert [word for word in words if word.encode() in content] == []
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


def run_example(model, files):
    block = (
        "import runpy, sys; sys.modules.update(ogkd=None, torch=None, onnx=None); "
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    words = [sys.executable, "-c", block, EXAMPLE, model, *files]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True)


def example(model, files):
    """What the example prints: for each file, each class's probability."""
    done = run_example(model, files)
    assert done.returncode == 0, done.stderr
    rows = []
    for line, file in zip(done.stdout.splitlines(), files, strict=True):
        path, *ranked = line.split("\t")
        assert path == str(file)
        pairs = [entry.rsplit(" ", 1) for entry in ranked]
        shares = [float(share) for _, share in pairs]
        assert shares == sorted(shares, reverse=True)
        rows.append([float(dict(pairs)[name]) for name in CLASSES])
    return rows


def test_the_example_agrees_with_the_model_without_torch_and_ogkd(exported, model, files):
    np.testing.assert_allclose(example(exported.path, files), model.predict_proba(files), atol=1e-4)
    assert len(EXAMPLE.read_text().splitlines()) <= 110


def test_the_example_agrees_with_the_model_on_every_kind_of_file(exported, model, tmp_path):
    images = write_images(tmp_path)
    expected = model.predict_proba(images)
    np.testing.assert_allclose(example(exported.path, images), expected, atol=1e-4)


def test_the_example_refuses_what_it_cannot_read_and_goes_on(exported, files, tmp_path):
    bad = png(tmp_path / "deep.png", np.full((9, 9, 3), 4000, np.uint16))
    done = run_example(exported.path, [bad, files[0]])
    assert done.returncode == 1
    assert f"{bad} is not read: its 16-bit colours" in done.stderr
    assert done.stdout.startswith(str(files[0]))


def test_batches_come_in_the_sizes_that_are_checked():
    assert [len(batch) for batch in in_batches(range(26))] == [1, 2, 7, 7, 7, 2]
    assert [len(batch) for batch in in_batches(range(3), (1,))] == [1, 1, 1]
