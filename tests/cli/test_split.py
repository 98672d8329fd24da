"""`ogkd data split`: a table that other commands read."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import pytest

from ogkd import read_dataset
from tiny_data import write_dataset, write_image


@pytest.fixture
def images(tmp_path):
    return write_dataset(tmp_path / "images", splits={"": 10})


def rows_of(file):
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_odd_names_are_read_back_as_they_are(ogkd, tmp_path):
    names = ["=cmd|' C calc'!A0", "'=q", "Zyste ä, groß", "'quoted'", "-1", "+plus"]
    for label, name in enumerate(names):
        for number, file in enumerate([" a.png", "=b.png", "ü #1.png", 'x;y,"z".png', "'=c.png"]):
            write_image(tmp_path / "data" / name / file, 10 * label + number)
    table = tmp_path / "data" / "=b.csv"
    assert ogkd("data", "split", tmp_path / "data", "--out", table).code == 0
    for row in rows_of(table):
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row.values())
    found, before = read_dataset(table), read_dataset(tmp_path / "data")
    assert set(found.names) == set(before.names) == set(names)
    labels = [
        {(case.image.file.resolve(), dataset.task.text(case.target)) for case in dataset.cases}
        for dataset in (found, before)
    ]
    assert labels[0] == labels[1]


def test_the_same_split_may_be_written_again_but_no_other(ogkd, images, tmp_path):
    words = ("data", "split", images, "--out", tmp_path / "s.csv")
    assert ogkd(*words).code == 0
    before = (tmp_path / "s.csv").read_bytes()
    assert ogkd(*words).code == 0
    outcome = ogkd(*words, "--seed", 2)
    assert outcome.code == 2
    assert "exists and has other content" in outcome.err
    assert (tmp_path / "s.csv").read_bytes() == before


def test_what_is_left_out_is_said_and_listed(ogkd, images, tmp_path):
    (images / "normal_lung" / "0.png").write_bytes(b"not an image")
    left = tmp_path / "left.csv"
    outcome = ogkd("data", "split", images, "--out", tmp_path / "s.csv", "--left-out", left)
    assert "Left out 1 images: 1 unreadable." in outcome.err
    assert [Path(row["path"]).name for row in rows_of(left)] == ["0.png"]


def test_shares_are_sizes_in_any_unit(ogkd, refused, images, tmp_path):
    assert ogkd("data", "split", images, "--out", tmp_path / "s.csv", "--shares", "80,20").code == 0
    assert Counter(row["split"] for row in rows_of(tmp_path / "s.csv")) == {"train": 24, "test": 6}
    for wrong in ("1", "a,b", "1,0", "1,1,1,1", "nan,1"):
        said = refused("data", "split", images, "--out", tmp_path / "t.csv", "--shares", wrong)
        assert "--shares" in said
