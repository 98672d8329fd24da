"""What a user can get wrong about data ends in one message and exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ogkd.cli import main
from tiny_data import write_dataset, write_image

Fit = Callable[..., str]


@pytest.fixture
def fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fit:
    """`ogkd fit DATA ...`, which must be refused; gives the message."""

    def run(data: Path, *words: str) -> str:
        out = tmp_path / "model"
        monkeypatch.setattr(sys, "argv", ["ogkd", "fit", str(data), "--out", str(out), *words])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        assert stop.value.code == 2, said
        assert said.out == ""
        # Notes (on missing prompts, say) may stand before the one error.
        assert sum(line.startswith("Error: ") for line in said.err.splitlines()) == 1, said
        assert "Traceback" not in said.err
        assert not out.exists()
        return said.err

    return run


def test_no_shots_are_refused(fit, tmp_path):
    data = write_dataset(tmp_path / "data")
    assert "shots must be at least 1, but is 0" in fit(data, "--shots", "0")


def test_an_empty_folder_and_one_class_are_refused(fit, tmp_path):
    (tmp_path / "data").mkdir()
    assert "0 class folder(s)" in fit(tmp_path / "data")
    write_image(tmp_path / "data" / "cyst" / "0.png")
    assert "1 class folder(s)" in fit(tmp_path / "data")
    (tmp_path / "data" / "stone").mkdir()
    assert "No images in the class folder(s) stone" in fit(tmp_path / "data")


def test_names_that_differ_in_case_are_refused(fit, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("path,label\na.png,Cyst\nb.png,cyst\n")
    assert "differ only in case" in fit(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"image,diagnosis\na.png,x\n", "needs the columns path and label"),
        ("path;label\na.png;gr\u00f6\u00dfer\nb.png;x\n".encode("cp1252"), "line 2: not UTF-8"),
        (b"path,label\na.png,x\na.png,y\n", "line 2 and line 3, with another label"),
        (b"path,label\na.png,x\na.png,x\nb.png,y\n", "line 2 and line 3, with the same label"),
        ("path,label\nno such/\u00e4 b.png,x\nc.png,y\n".encode(), "no such/\u00e4 b.png"),
        (b"PK\x03\x04", "spreadsheet"),
    ],
)
def test_tables_are_refused(fit, tmp_path, content, words):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    assert words in fit(path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([["/etc/passwd", 0, "x"], ["b", 1, "y"]], "leaves the data folder"),
        ([["a", 0, "x"], ["b", 5, "y"]], "labels must count 0, 1, 2"),
        ([["a", 0, "x"], ["b", 1, "y"]], "2 file(s) of the data are missing"),
    ],
)
def test_split_files_are_refused(fit, tmp_path, rows, words):
    path = tmp_path / "split.json"
    path.write_text(json.dumps({"train": rows}))
    assert words in fit(path)


def test_archives_are_refused(fit, tmp_path):
    path = tmp_path / "chest.npz"
    images = np.zeros((3, 28, 28), np.uint8)
    np.savez(path, train_images=images, train_labels=np.zeros((3, 14), np.uint8))
    assert "not one label for each of 3 images" in fit(path)
    path.write_bytes(path.read_bytes()[:200])
    assert "damaged" in fit(path)
