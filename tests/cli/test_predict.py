from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from PIL import Image

import ogkd as library
import ogkd.features.encode as extract
import ogkd.images as images
from ogkd.cli import main
from ogkd.model import explain
from ogkd.model.calibration import Calibration
from ogkd.model.decide import Decider
from tiny_data import CLASSES, edit_sealed, write_dataset, write_image

FIXED = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
TWO = "normal lung, benign tumor"


def named(text):
    """Rows as mappings from column to cell."""
    return list(csv.DictReader(io.StringIO(text)))


def rows(text):
    return list(csv.reader(io.StringIO(text)))


def test_unreadable_files_get_a_row_with_the_reason_and_code_1(ogkd, fitted, tmp_path):
    good = write_image(tmp_path / "b, good.png")
    (tmp_path / "a.png").write_bytes(b"not an image")
    (tmp_path / "c.png").write_bytes(good.read_bytes()[:200])
    (tmp_path / "d.gif").touch()
    outcome = ogkd("predict", fitted, tmp_path)
    assert outcome.code == 1
    assert "2 of 3 file(s)" in outcome.err
    assert "not read: 1 .gif" in outcome.err
    _, first, second, third = rows(outcome.out)
    assert (second[0], second[6]) == (str(good), "")
    for row in (first, third):
        assert row[1:6] == [""] * 5
        assert row[0] in row[6]
        assert row[7:] == ["", "", ""]


def test_rows_are_written_while_later_images_are_unread(ogkd, fitted, data, monkeypatch):
    """However many images, no more than two batches of them are ever under way."""
    look_at, started, most = extract.look_at, [0], [0]

    def reading(path, **options):
        started[0] += 1
        most[0] = max(most[0], started[0] - (written.getvalue().count("\n") - 1))
        return look_at(path, **options)

    files = sorted((data / "test").rglob("*.png")) * 30
    written = io.StringIO()
    monkeypatch.setattr(extract, "look_at", reading)
    monkeypatch.setattr(images, "find_images", lambda _: [images.ImageRef(file) for file in files])
    monkeypatch.setattr(sys, "stdout", written)
    assert ogkd("predict", fitted, data).code == 0
    assert len(written.getvalue().splitlines()) == 1 + len(files)
    assert started[0] == len(files) == 180
    assert 32 <= most[0] <= 65


@pytest.mark.skipif(sys.platform != "linux", reason="names are bytes on Linux only")
def test_a_file_name_that_is_no_text_is_printed_as_it_is(
    fitted, tmp_path, monkeypatch, capfdbinary
):
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.png"))
    write_image(tmp_path / "a.png").rename(odd)
    for content, code in ((None, 0), (b"not an image", 1)):
        if content is not None:
            odd.write_bytes(content)
        monkeypatch.setattr(sys, "argv", ["ogkd", "predict", str(fitted), str(odd)])
        with pytest.raises(SystemExit) as stop:
            main()
        assert (stop.value.code or 0) == code
        assert b"/caf\xe9.png" in capfdbinary.readouterr().out.splitlines()[1]


def test_json_lines_hold_the_same_fields(ogkd, fitted, data, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"not an image")
    words = (fitted, data / "test", bad)
    table = named(ogkd("predict", *words).out)
    outcome = ogkd("predict", *words, "--format", "jsonl")
    assert outcome.code == 1
    entries = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(entries) == len(table) == 7
    assert list(table[0]) == [*FIXED, *CLASSES]
    expected = library.load(fitted).predict_proba([row["path"] for row in table[:-1]])
    probabilities = np.array([[float(row[name]) for name in CLASSES] for row in table[:-1]])
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
    for entry, row in zip(entries, table, strict=True):
        assert list(entry) == [*FIXED, "probabilities", "model", "ogkd"]
        assert (len(entry["model"]), entry["ogkd"]) == (12, version("ogkd"))
        assert entry["path"] == row["path"]
        assert (entry["prediction"] or "") == row["prediction"]
        assert (entry["error"] or "") == row["error"]
        assert entry["abstain"] is None
        assert entry["set"] is None
        shares = entry["probabilities"] or dict.fromkeys(CLASSES)
        assert shares == {name: float(row[name]) if row[name] else None for name in CLASSES}


def test_rows_go_to_a_file_whole_or_not_at_all(ogkd, fitted, data, tmp_path, monkeypatch):
    printed = ogkd("predict", fitted, data / "test").out
    out = tmp_path / "new" / "rows.csv"
    outcome = ogkd("predict", fitted, data / "test", "--out", out)
    assert (outcome.code, outcome.out) == (0, "")
    assert out.read_text() == printed

    def broken(*_, **__):
        raise library.DataError("half way")

    monkeypatch.setattr(Decider, "decide", broken)
    assert ogkd("predict", fitted, data / "test", "--out", out).code == 2
    assert out.read_text() == printed
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_only_new_images_are_added_to_a_table(ogkd, fitted, data, tmp_path, monkeypatch, format):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "in" / "a.png")
    write_image(tmp_path / "=b.png")
    out = tmp_path / f"rows.{format}"
    words = ("predict", fitted, "in", "=b.png", "--out", out, "--format", format, "--only-new")
    assert "2 of 2 are not in" in ogkd(*words).err
    first = out.read_text()
    assert "0 of 2 are not in" in ogkd(*words).err
    assert out.read_text() == first
    write_image(tmp_path / "in" / "c.png")
    out.write_text(first.rstrip("\n"))
    assert ogkd(*words).code == 0
    after = out.read_text()
    assert after.startswith(first)
    assert len(after.splitlines()) == len(first.splitlines()) + 1
    assert "c.png" in after.removeprefix(first)


@pytest.mark.parametrize("format", ["csv", "jsonl"])
def test_a_table_of_another_model_gets_no_rows(ogkd, refused, fitted, data, tmp_path, format):
    image, out = write_image(tmp_path / "a.png"), tmp_path / f"rows.{format}"
    ending = ("--out", out, "--format", format, "--only-new")
    assert ogkd("predict", "--zero-shot", TWO, "-b", "builtin", image, *ending).code == 0
    before = out.read_text()
    assert "another model" in refused("predict", fitted, data / "test", *ending)
    assert out.read_text() == before
    out.write_text("[1]\n" if format == "jsonl" else "")
    outcome = ogkd("predict", fitted, data / "test", *ending)
    assert outcome.code == (2 if format == "jsonl" else 0)
    assert "--only-new" in refused("predict", fitted, image, "--only-new")
    assert "--only-new" in refused("predict", fitted, image, "--only-new", "--out", "rows.xlsx")


def test_the_digest_of_a_model_is_that_of_its_folder(data, tmp_path):
    fitted = library.fit(data, method="gda", backbone="builtin")
    digests = {fitted.digest}
    random, labels = np.random.default_rng(0), np.arange(60) % 3
    logits = random.normal(size=(60, 3)) + np.eye(3)[labels]
    fitted.calibration = Calibration.fit(fitted.task, logits, labels, [str(i) for i in range(60)])
    digests.add(fitted.digest)
    fitted.save(tmp_path / "model")
    digests.add(library.load(tmp_path / "model").digest)
    assert len(digests) == 2


def test_a_sheet_has_the_rows_of_the_csv(ogkd, refused, fitted, data, tmp_path):
    table, out = tmp_path / "t.csv", tmp_path / "rows.xlsx"
    files = sorted((data / "test").rglob("*.png"))[:3]
    lines = "\n".join(f"{number};{file}" for number, file in enumerate(files))
    table.write_text(f"Nr;Bild\n{lines}\n", encoding="utf-16")
    words = ("predict", fitted, table, "--columns", "path=Bild")
    printed = rows(ogkd(*words).out)
    assert ogkd(*words, "--out", out).code == 0
    sheet = openpyxl.load_workbook(out).active.iter_rows(values_only=True)
    as_text = [[f"{c:.6f}" if isinstance(c, float) else c or "" for c in row] for row in sheet]
    assert as_text == printed
    assert len(printed) == 4
    assert "--format" in refused(*words, "--out", out, "--format", "jsonl")
    assert "--columns" in refused("predict", fitted, table)
    assert "--columns" in refused("predict", fitted, data, *words[3:])
    assert "--columns" in refused(*words[:-1], "Bild")
    assert "--columns" in refused(*words[:-1], "path=Foto")


def test_evidence_maps_that_hold_are_named_by_row_and_stay_in_their_folder(
    ogkd, model, tmp_path, monkeypatch
):
    (model / "support.safetensors").unlink()  # no image is unfamiliar
    holds = iter([True, True, False, True])
    check = lambda *_: explain.EvidenceCheck(float(next(holds)), 0.5)  # noqa: E731
    monkeypatch.setattr(explain, "check_evidence", check)
    names = ("a/same.png", "b/same.png", "b/" + "x" * 200 + ".png", "b/ödd; name$(x).png")
    for seed, name in enumerate(names):
        write_image(tmp_path / "in" / name, seed)
    (tmp_path / "in" / "a" / "bad.png").write_bytes(b"not an image")
    files, read, look_at = tmp_path / "in", [], extract.look_at
    plain = ogkd("predict", model, files).out
    monkeypatch.setattr(
        extract, "look_at", lambda image, **how: read.append(image) or look_at(image, **how)
    )
    outcome = ogkd("predict", model, files, "--explain", tmp_path / "maps" / "here")
    assert (outcome.code, outcome.out) == (1, plain)
    assert "No evidence map for 1 of 5 image(s)" in outcome.err
    assert len(read) == 5  # each file once
    drawn = sorted(file.name for file in (tmp_path / "maps" / "here").iterdir())
    assert [int(name[:6]) for name in drawn] == [2, 3, 5]
    assert all(name.isascii() and " " not in name and len(name) < 80 for name in drawn)
    with Image.open(tmp_path / "maps" / "here" / drawn[0]) as picture:
        assert picture.width > picture.height > 672  # image, map and words


def test_no_cell_is_a_formula_to_a_spreadsheet(ogkd, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_image(tmp_path / "=1+1.png")
    (tmp_path / "@bad.png").write_bytes(b"not an image")
    image = tmp_path / "=1+1.png"
    assert ogkd("predict", model, image, "--out", image).code == 2  # an input is not overwritten
    evil = ["=cmd()", "-2", "normal lung"]
    change(model, asks={"kind": "classes", "names": evil, "normal": []})
    table = rows(ogkd("predict", model, "=1+1.png", "@bad.png").out)
    assert [row[0] for row in table[1:]] == ["./=1+1.png", "./@bad.png"]  # still these files
    cells = [cell for row in table for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@"))]
    assert table[0][7:] == ["'=cmd()", "'-2", "normal lung"]
    lines = ogkd("predict", model, "=1+1.png", "--format", "jsonl").out
    assert list(json.loads(lines)["probabilities"]) == evil  # there they are as they are


def change(model, **values):
    edit_sealed(model / "model.json", lambda card: card.update(values))


def test_a_prediction_imports_no_heavy_package_that_it_does_not_need(fitted, data, clip):
    file = next((data / "test").rglob("*.png"))
    heavy = ["transformers", "sklearn", "scipy", "matplotlib", "torch._dynamo", "huggingface_hub"]
    seen = f"print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    code = f"import atexit, sys, ogkd.cli; atexit.register(lambda: {seen}); ogkd.cli.main()"
    words = [sys.executable, "-c", code, "predict", fitted, file, "-b", clip]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_builtin_model_warns_on_every_output(ogkd, tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 3, "val": 6, "test": 2})
    model, loud = tmp_path / "m", "WARNING: The built-in model"
    outcome = ogkd("fit", data, "-b", "builtin", "-m", "clap", "-o", model)
    assert loud in outcome.err
    outcome = ogkd("predict", model, data / "test")
    assert loud in outcome.err
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert {row["unfamiliar"] for row in rows} == {"yes"}
    page = tmp_path / "r.html"
    outcome = ogkd("evaluate", model, data, "--report", page)
    assert loud in outcome.err
    assert "The built-in model knows only" in page.read_text()
    assert loud in ogkd("calibrate", model, data).err
    outcome = ogkd("predict", "--zero-shot", TWO, "-b", "builtin", data / "test")
    assert outcome.err.count(loud) == 1


def test_a_class_name_may_contain_a_comma(ogkd, tmp_path):
    words = ("predict", "--zero-shot", '"mass, benign", cyst', "-b", "builtin")
    written = ogkd(*words, write_image(tmp_path / "a.png")).out
    assert rows(written)[0][-2:] == ["mass, benign", "cyst"]
