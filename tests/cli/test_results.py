"""What `embed`, `evaluate`, `calibrate` and `data split` write; tests/golden has their numbers."""

from __future__ import annotations

import csv
import json
import shutil

import pytest
from safetensors import safe_open
from safetensors.torch import load_file

import ogkd as library
from ogkd.data.read import read_dataset
from tiny_data import write_dataset, write_image


@pytest.fixture
def bad(data, tmp_path):
    """Data with two files that cannot be read."""
    folder = shutil.copytree(data, tmp_path / "bad")
    for name in ("bad.png", "worse.png"):
        (folder / "test" / "normal_lung" / name).write_bytes(b"no image")
    return folder


def test_features_are_written_in_the_order_of_their_files(ogkd, clip, bad, tmp_path):
    out = tmp_path / "new" / "f.safetensors"
    words = ("embed", bad / "test", "-b", clip, "-o", out, "--on-error", "skip")
    outcome = ogkd(*words)
    assert outcome.code == 0, outcome.err
    assert "worse.png" in outcome.err
    tensors = load_file(out)
    with safe_open(out, "pt") as file:
        files = json.loads(file.metadata()["files"])
        assert file.metadata()["digest"] == library.load_backbone(clip, device="cpu").digest
    assert files == sorted(map(str, (bad / "test").rglob("[0-9].png")))
    assert {name: len(rows) for name, rows in tensors.items()} == {"globals": 6}


def test_an_evaluation_is_the_librarys_in_json_and_on_the_page(ogkd, fitted, data, tmp_path):
    out, page = tmp_path / "new" / "r.json", tmp_path / "r.html"
    words = ("evaluate", fitted, data, "--resamples", 50, "--json", "--out", out, "--report", page)
    outcome = ogkd(*words)
    expected = library.evaluate(library.load(fitted), data, resamples=50)
    warnings = "".join(f"WARNING: {warning}\n" for warning in expected["warnings"])
    assert (outcome.code, outcome.err) == (0, warnings)
    assert json.loads(outcome.out) == json.loads(out.read_text()) == expected
    text = page.read_text(encoding="utf-8")
    assert "data:image/jpeg" in text
    assert "does not say which images come from the same patient" in text  # the data check ran
    assert str(data) not in text
    assert ".png" not in text
    assert ogkd(*words, "--names").code == 0
    assert ".png" in page.read_text(encoding="utf-8")
    assert ogkd(*words, "--no-images").code == 0
    assert "data:image" not in page.read_text(encoding="utf-8")


def test_images_that_were_used_or_cannot_be_read_are_left_out(ogkd, fitted, bad, tmp_path):
    used = write_dataset(tmp_path / "d", splits={"": 4})  # nine of twelve are those of train
    page = tmp_path / "r.html"
    words = ("evaluate", fitted, used, "--resamples", 0, "--leave-out-used", "--json")
    outcome = ogkd(*words, "--report", page)
    assert "Left out 9 images that the model learned from or was calibrated on; 3" in outcome.err
    result = json.loads(outcome.out)
    assert (result["images"], result["left_out"], result["learned_from"]) == (3, 9, 0)
    assert "Left out: 9 images that the model learned from" in page.read_text(encoding="utf-8")
    words = ("evaluate", fitted, bad, "--resamples", 0, "--report", page, "--on-error", "skip")
    outcome = ogkd(*words)
    assert outcome.code == 0
    assert "bad.png" in outcome.err
    assert "Left out: 2 files that cannot be read." in page.read_text(encoding="utf-8")


def test_a_calibration_of_another_engine_is_noted_and_a_damaged_one_replaced(
    ogkd, model, data, tmp_path
):
    others = write_dataset(tmp_path / "others", splits={"train": 1, "val": 8})
    file, image = model / "calibration.json", next((data / "test").rglob("*.png"))
    outcome = ogkd("calibrate", model, others)
    assert outcome.code == 0, outcome.err
    assert "Note: No threshold gives at most 10 % errors" in outcome.err
    assert str(others) not in file.read_text()
    content = json.loads(file.read_text())
    del content["sha256"]
    file.write_text(json.dumps(content | {"engine": "int8"}))
    note = "calibration were encoded with the engine int8, but here torch"
    assert note in ogkd("predict", model, image).err
    file.write_text("{")
    assert "calibration.json is damaged" in ogkd("predict", model, image).err
    assert ogkd("calibrate", model, others).code == 0
    assert note not in ogkd("predict", model, image).err


def test_a_split_is_written_once_and_read_back_as_it_is(ogkd, tmp_path):
    names = ["=cmd|' C calc'!A0", "'=q", "Zyste ä, groß", "'quoted'", "-1", "+plus"]
    data, left = tmp_path / "data", tmp_path / "left.csv"
    for label, name in enumerate(names):
        for number, file in enumerate([" a.png", "=b.png", "ü #1.png", 'x;y,"z".png', "'=c.png"]):
            write_image(data / name / file, 10 * label + number)
    before = read_dataset(data)
    (data / "-1" / "bad.png").write_bytes(b"not an image")
    table = data / "=b.csv"
    words = ("data", "split", data, "--shares", "80,20", "--out", table)
    outcome = ogkd(*words, "--left-out", left)
    assert outcome.code == 0, outcome.err
    assert "Left out 1 images: 1 unreadable." in outcome.err
    assert "bad.png" in left.read_text()
    with table.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert {row["split"] for row in rows} == {"train", "test"}
    for row in rows:
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
    after = read_dataset(table)
    assert set(after.names) == set(before.names) == set(names)
    first, second = (
        {(case.image.file.resolve(), dataset.task.text(case.target)) for case in dataset.cases}
        for dataset in (before, after)
    )
    assert first == second
    written = table.read_bytes()
    assert ogkd(*words).code == 0  # the same again
    outcome = ogkd(*words, "--seed", 2)
    assert outcome.code == 2
    assert "exists and has other content" in outcome.err
    assert table.read_bytes() == written


def test_subgroups_are_columns_of_the_table(ogkd, refused, fitted, data, tmp_path):
    lines = ["path,label,Sex"]
    for number, file in enumerate(sorted((data / "test").rglob("*.png"))):
        lines.append(f"{file},{file.parent.name.replace('_', ' ')},{'mf'[number % 2]}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    place = tmp_path / "r.html"
    words = ("evaluate", fitted, table, "--resamples", 50, "--report", place, "--by")
    out = ogkd(*words, "sex").out
    assert "Subgroups" in out
    assert "sex: m" in out
    assert "sex: m" in place.read_text(encoding="utf-8")
    assert "sex (option --by)" in refused(*words, "sex,site")
