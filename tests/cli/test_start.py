"""`ogkd start`: what it writes, says, resumes and refuses."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import openpyxl
import pytest
import typer

from dying import die_after
from messy import LEFT_OUT, make_messy
from ogkd.data.phantoms import write_folder
from ogkd.images import decode
from tiny_data import CLASSES, write_dataset, write_image

FILES = {
    *("check.html", "check.json", "evaluation.json", "left-out.csv"),
    *("model", "report.html", "split.csv", "start.json"),
}


@pytest.fixture
def images(tmp_path):
    return write_dataset(tmp_path / "images", splits={"": 10})


def rows_of(file):
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def contents(folder):
    """All files but for what contains the time, and the report's command."""
    found = {}
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith("."):
            text = file.read_bytes()
            if file.name in ("report.html", "check.html"):
                text = re.sub(rb"Created on [^<]*|ogkd (start|evaluate) [^<]*", b"", text)
            found[file.relative_to(folder).as_posix()] = text
    return found


def test_one_command_leads_from_a_folder_to_a_report(ogkd, clip, images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = ogkd("start", "images", "--yes", "--backbone", clip)
    assert outcome.code == 0, outcome.err
    out = tmp_path / "images-ogkd"
    assert {path.name for path in out.iterdir()} == FILES
    lines = outcome.out.splitlines()
    assert [line[:5] for line in lines if line.startswith("[")] == [f"[{n}/7]" for n in range(1, 8)]
    assert "18 to learn from, 6 to calibrate on, 6 to test on" in outcome.out
    assert "skipped: Too few images to calibrate on: 6." in outcome.out
    assert "does not say which images show the same patient" in outcome.out
    assert "guessing" in outcome.out
    assert "ogkd predict images-ogkd/model" in lines[-1]
    before = contents(out)
    (out / ".model.training").mkdir()  # as a kill just after the fit leaves it
    (out / ".model.training" / "training.jsonl").touch()
    again = ogkd("start", "images", "--yes", "--backbone", clip)
    assert again.code == 0
    assert {path.name for path in out.iterdir()} == FILES
    assert again.out.count("already done") == 5  # not reading, nor the calibration that cannot be
    assert contents(out) == before


def test_a_table_with_other_headings_is_used_by_every_command(ogkd, clip, images, tmp_path):
    table = tmp_path / "Tabelle.xlsx"
    files = sorted(images.rglob("*.png"))
    book = openpyxl.Workbook()
    for row in [("Bild", "Diagnose"), *((str(file), file.parent.name) for file in files)]:
        book.active.append(row)
    book.save(table)
    columns = ("--columns", "path=Bild,label=Diagnose")
    split, model = tmp_path / "split.xlsx", tmp_path / "model"
    for words in (
        ("start", table, "--yes", "--backbone", clip, "--out", tmp_path / "results"),
        ("data", "check", table),
        ("data", "split", table, "--out", split),
        ("fit", table, "--out", model, "--backbone", clip, "--method", "gda"),
        ("evaluate", model, table),
    ):
        outcome = ogkd(*words, *columns)
        assert outcome.code == 0, outcome.err
    assert ogkd("fit", split, "--out", model, "--backbone", clip, "--restart").code == 0
    assert len(rows_of(tmp_path / "results" / "split.csv")) == len(files)


def test_other_options_or_data_are_refused_and_nothing_is_overwritten(ogkd, clip, images, tmp_path):
    out = tmp_path / "out"
    assert ogkd("start", images, "-y", "-b", clip, "-o", out).code == 0
    before = contents(out)
    for words, what in (
        (["--normal", "normal lung"], "another start: normal differ"),
        (["--method", "gda"], "another start: method differ"),
    ):
        outcome = ogkd("start", images, "-y", "-b", clip, "-o", out, *words)
        assert outcome.code == 2
        assert what in outcome.err
        assert "--out" in outcome.err
    write_image(images / "benign_tumor" / "0.png", 999)
    outcome = ogkd("start", images, "-y", "-b", clip, "-o", out)
    assert outcome.code == 2
    assert "another start: data differ" in outcome.err
    assert contents(out) == before
    (out / "notes.md").write_text("of the user")
    words = ("start", images, "-y", "-b", clip, "-o", out, "--method", "gda", "--restart")
    assert ogkd(*words).code == 0
    assert json.loads((out / "model" / "model.json").read_text())["method"] == "gda"
    assert (out / "notes.md").is_file()


def test_images_without_class_folders_are_for_the_studio(ogkd, tmp_path):
    write_image(tmp_path / "flat" / "a.png")
    outcome = ogkd("start", tmp_path / "flat", "--yes")
    assert outcome.code == 2
    assert f"ogkd studio {tmp_path / 'flat'}" in outcome.err


def test_an_option_that_was_wrong_can_be_corrected_until_it_has_been_used(
    ogkd, clip, images, tmp_path
):
    words = ("start", images, "-y", "-o", tmp_path / "out")
    for wrong in (["-b", tmp_path / "absent"], ["-b", clip, "--method", "fuse"]):
        outcome = ogkd(*words, *wrong)
        assert outcome.code == 2
        assert outcome.err.count("Error") == 1
        assert (tmp_path / "out" / "split.csv").is_file()
    outcome = ogkd(*words, "-b", clip)
    assert outcome.code == 0, outcome.err
    assert outcome.out.count("already done") == 2


def test_it_asks_before_it_leaves_images_out(ogkd, clip, tmp_path, monkeypatch):
    data = write_dataset(tmp_path / "data", CLASSES[:2], splits={"": 8})
    (data / "benign_tumor" / "bad.png").write_bytes(b"not an image")
    asked, answers = [], [False, True]
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", lambda words, **_: asked.append(words) or answers.pop(0))
    words = ("start", data, "-b", clip, "-o", tmp_path / "out")
    outcome = ogkd(*words)
    assert outcome.code == 130
    assert "Stopped" in outcome.err
    assert not (tmp_path / "out" / "split.csv").exists()
    assert ogkd(*words).code == ogkd(*words).code == 0
    assert len(asked) == 2
    for question in asked:
        assert "1 unreadable" in question
        assert question.endswith("Continue with the other 16 images?")


def test_existing_splits_are_used_and_leaks_leave_the_training_part(
    ogkd, clip, tmp_path, monkeypatch
):
    data = write_dataset(tmp_path / "data", splits={"Training": 8, "Testing": 4})
    copy = data / "Training" / "benign_tumor" / "copy.png"
    copy.write_bytes((data / "Testing" / "benign_tumor" / "0.png").read_bytes())
    names = []
    read = decode._read_file
    monkeypatch.setattr(decode, "_read_file", lambda ref: names.append(ref.file.name) or read(ref))
    outcome = ogkd("start", data, "-y", "-b", clip, "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert len(names) == len(list(data.rglob("*.png")))  # every file is decoded once
    rows = rows_of(tmp_path / "out" / "split.csv")
    counts = Counter(row["split"] for row in rows)
    assert counts == {"train": 18, "val": 6, "test": 12}
    left = rows_of(tmp_path / "out" / "left-out.csv")
    assert [(Path(row["path"]).name, row["why"]) for row in left] == [("copy.png", "copy")]


def test_a_start_that_is_killed_again_and_again_ends_with_the_same_bits(clip, tmp_path):
    write_dataset(tmp_path / "images", splits={"": 30})
    words = ["start", "images", "-y", "-b", str(clip), "-o"]
    command = [sys.executable, "-m", "ogkd", *words]
    subprocess.run([*command, "whole"], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "whole" / "model" / "calibration.json").is_file()
    for reached in ("check.json", "model", "evaluation.json"):
        die_after([*words, "killed"], f"*killed/{reached}", cwd=tmp_path)
        assert (tmp_path / "killed" / reached).exists()
    assert not (tmp_path / "killed" / "report.html").exists()
    subprocess.run([*command, "killed"], cwd=tmp_path, check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_messy_folder_ends_in_an_honest_result(ogkd, tmp_path):
    write_folder("us-breast", tmp_path / "clean", splits={"train": 15}, seed=3, size=128)
    data = make_messy(tmp_path / "clean" / "train", tmp_path / "messy")
    out = tmp_path / "out"
    outcome = ogkd("start", data, "--yes", "--backbone", "builtin", "--out", out)
    assert outcome.code == 0, outcome.err
    assert "Left out 7 images: 3 unreadable, 2 with more than one label, 2 repeated." in outcome.out
    assert "WARNING: Few images of" in outcome.out
    assert "simple cyst (1)" in outcome.out
    assert "Left out: 3 unreadable, 2 with more" in (out / "report.html").read_text("utf-8")
    left = rows_of(out / "left-out.csv")
    assert Counter(row["why"] for row in left) == LEFT_OUT
    result = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    assert set(result["class_names"]) == {
        *("=Größer als 2 cm", "Zyste (gutartig) ä", "normal breast tissue", "simple cyst"),
    }
    assert result["learned_from"] == result["calibrated_on"] == 0
    assert "Größer" in (out / "report.html").read_text(encoding="utf-8")


def test_what_more_labels_would_give_is_said_in_the_verdict_and_the_report(ogkd, tmp_path):
    write_folder("us-breast", tmp_path / "us", splits={"train": 8, "test": 6}, seed=1)
    out = tmp_path / "out"
    outcome = ogkd("start", tmp_path / "us", "--yes", "--out", out)
    sentence = re.compile(r"refits on fewer labels: another \d+ labels per class would give \d+ to")
    assert len(sentence.findall(" ".join(outcome.out.split()))) == 1
    assert sentence.search(json.loads((out / "evaluation.json").read_text())["verdict"]["text"])
    assert sentence.search(" ".join((out / "report.html").read_text().split()))
