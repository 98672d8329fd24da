from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ogkd as library
import ogkd.features.extract as extract
import ogkd.images as images
from ogkd.cli import main
from tiny_data import CLASSES, write_image

COLUMNS = ["path", "prediction", "probability", "error", *CLASSES]


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def test_each_image_gets_a_row_with_its_probabilities(ogkd, fitted, data):
    outcome = ogkd("predict", fitted, data / "test", "--batch-size", 4)
    assert (outcome.code, outcome.err) == (0, "")
    header, *table = rows(outcome.out)
    assert header == COLUMNS
    files = sorted((data / "test").rglob("*.png"))
    assert [row[0] for row in table] == [str(file) for file in files]
    model = library.load(fitted)
    expected = model.predict_proba(files)
    np.testing.assert_allclose(np.array([row[4:] for row in table], float), expected, atol=1e-5)
    assert [row[1] for row in table] == model.predict(files)
    assert [float(row[2]) for row in table] == [max(map(float, row[4:])) for row in table]


def test_unreadable_files_get_a_row_with_the_reason_and_code_1(ogkd, fitted, tmp_path):
    good = write_image(tmp_path / "b, good.png")
    (tmp_path / "a.png").write_bytes(b"no picture")
    (tmp_path / "c.png").write_bytes(good.read_bytes()[:200])
    outcome = ogkd("predict", fitted, tmp_path)
    assert outcome.code == 1
    assert "2 of 3 file(s)" in outcome.err
    _, first, second, third = rows(outcome.out)
    assert second[0] == str(good)
    assert second[3] == ""
    for row in (first, third):
        assert row[1:3] == ["", ""]
        assert row[0] in row[3]
        assert row[4:] == ["", "", ""]


def test_files_keep_the_order_in_which_they_were_named(ogkd, fitted, data):
    files = sorted((data / "test").rglob("*.png"))[::-1]
    outcome = ogkd("predict", fitted, *files)
    assert [row[0] for row in rows(outcome.out)[1:]] == [str(file) for file in files]


def test_rows_are_written_while_later_images_are_unread(ogkd, fitted, data, monkeypatch):
    """However many images, no more than two batches of them are ever under way."""
    read_image, started, most = extract.read_image, [0], [0]

    def reading(path):
        started[0] += 1
        most[0] = max(most[0], started[0] - (written.getvalue().count("\n") - 1))
        return read_image(path)

    files = sorted((data / "test").rglob("*.png")) * 30
    written = io.StringIO()
    monkeypatch.setattr(extract, "read_image", reading)
    monkeypatch.setattr(images, "find_images", lambda _: files)
    monkeypatch.setattr(sys, "stdout", written)
    assert ogkd("predict", fitted, data, "--batch-size", 5).code == 0
    assert len(written.getvalue().splitlines()) == 1 + len(files)
    assert started[0] == len(files) == 180
    assert 5 <= most[0] <= 11


def test_a_reader_that_has_seen_enough_is_no_error(fitted, data, tmp_path):
    source = next((data / "test").rglob("*.png"))
    for number in range(400):
        (tmp_path / f"{number:03}").mkdir()
        (tmp_path / f"{number:03}" / ("x" * 200 + ".png")).hardlink_to(source)
    process = subprocess.Popen(
        [sys.executable, "-m", "ogkd", "predict", str(fitted), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": ""},
    )
    assert process.stdout.readline().startswith(b"path,")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0
    process.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
def test_a_file_name_that_is_no_text_is_printed_as_it_is(
    fitted, tmp_path, monkeypatch, capfdbinary
):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    write_image(tmp_path / "a.png").rename(odd)
    for content, code in ((None, 0), (b"no picture", 1)):
        if content is not None:
            odd.write_bytes(content)
        monkeypatch.setattr(sys, "argv", ["ogkd", "predict", str(fitted), str(odd)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert (stop.value.code or 0) == code
        assert b"/caf\xe9.png" in capfdbinary.readouterr().out.splitlines()[1]


def change(model, **values):
    path = model / "model.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def newer(model):
    change(model, schema_version=99)


def corrupt(model):
    (model / "model.json").write_text("{")


def no_weights(model):
    (model / "weights.safetensors").unlink()


def tampered(model):
    content = bytearray((model / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (model / "weights.safetensors").write_bytes(content)


def gone(model):
    shutil.rmtree(model)


def moved_backbone(model):
    card = json.loads((model / "model.json").read_text())
    change(model, backbone={**card["backbone"], "name": "/no/such/folder"})


def other_backbone(model):
    card = json.loads((model / "model.json").read_text())
    change(model, backbone={**card["backbone"], "digest": "0" * 64})


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (newer, "newer ogkd"),
        (corrupt, "is damaged"),
        (no_weights, "missing or damaged"),
        (tampered, "not the file that model.json describes"),
        (gone, "not a model folder"),
        (moved_backbone, "pass its folder with --backbone"),
        (other_backbone, "fitted with another backbone"),
    ],
)
def test_a_model_that_cannot_be_used_is_refused(refused, model, data, harm, message):
    harm(model)
    assert message in refused("predict", model, data)


def test_images_that_are_not_there_are_refused(refused, fitted, tmp_path):
    assert "gone.png" in refused("predict", fitted, tmp_path / "gone.png")
    assert "No images found" in refused("predict", fitted, tmp_path)
    assert "images" in refused("predict", fitted).lower()


def test_a_backbone_that_moved_can_be_passed(ogkd, model, clip, data):
    expected = ogkd("predict", model, data).out
    moved_backbone(model)
    assert ogkd("predict", model, data, "--backbone", clip).out == expected
