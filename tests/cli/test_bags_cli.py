"""Volumes and exams on the command line, from beginning to end."""

from __future__ import annotations

import csv
import io
import json

import pytest

from ogkd.datasets.phantoms.volumes import render_volume, write_volumes

FIT = ("--backbone", "builtin", "--shots", "2")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("volumes") / "ct"
    splits = {"train": 2, "test": 1}
    return write_volumes("ct-kidney", folder, splits=splits, slices=6, share=0.5, size=128)


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_volumes_are_fitted_and_answered_with_the_slices_that_decided(ogkd, volumes, tmp_path):
    model = tmp_path / "model"
    fitted = ogkd("fit", volumes, "--slices", "N=3", "--out", model, *FIT)
    assert fitted.code == 0, fitted.err
    assert "8 bags of 24 pictures" in fitted.out
    report = tmp_path / "report.html"
    judged = ogkd("evaluate", model, volumes, "--report", report, "--resamples", 0)
    assert judged.code == 0, judged.err
    assert "4 bags" in judged.out
    assert "the picture that decided (axis=2,index=" in report.read_text(encoding="utf-8")
    said = ogkd("predict", model, volumes / "test")
    assert (said.code, len(rows(said.out))) == (0, 4)
    for row in rows(said.out):
        assert row["pictures"] == "3"
        assert row["decided_by"].startswith(f"{row['path']}#axis=2,index=")
    both = ogkd("predict", model, volumes / "test", "--pictures", "--format", "jsonl")
    lines = [json.loads(line) for line in both.out.splitlines()]
    assert [line["pictures"] for line in lines] == [3, None, None, None] * 4
    assert sum(line["weight"] for line in lines[1:4]) == pytest.approx(1)
    maps = tmp_path / "maps"
    assert ogkd("predict", model, volumes / "test", "--explain", maps).code == 0
    assert len(list(maps.iterdir())) == 4


def test_a_table_of_new_exams_needs_no_labels(ogkd, volumes, tmp_path):
    model, table = tmp_path / "model", volumes / "slices.csv"
    assert ogkd("fit", table, "--bags", "exam", "--out", model, *FIT).code == 0
    new = volumes / "new.csv"
    lines = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()]
    test = [line for line in lines[1:] if line[-2] == "test"]
    text = "\n".join(f"{line[0]},{line[1]},{line[-1]}" for line in test)
    new.write_text(f"path,exam\n{text}", encoding="utf-8")
    said = ogkd("predict", model, new)
    assert said.code == 0, said.err
    assert [row["path"] for row in rows(said.out)] == list(dict.fromkeys(r[-1] for r in test))
    files = ogkd("predict", model, volumes / "test")
    assert files.code == 2
    assert "column 'exam'" in files.err
    assert "--bags" in files.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--slices", "some"), "does not name slices"),
        (("--bags", "exam"), "no column 'exam'"),
        (("--bags", "series"), "not a DICOM file"),
        (("--slices", "all", "--slice", "axis=2,index=1"), "for single images"),
    ],
)
def test_what_cannot_be_is_one_message(ogkd, volumes, tmp_path, options, words):
    refused = ogkd("fit", volumes, "--out", tmp_path / "model", *FIT, *options)
    assert refused.code == 2
    assert words in refused.err
    assert not (tmp_path / "model").exists()


def test_single_images_have_no_bags(ogkd, fitted, data):
    refused = ogkd("predict", fitted, data / "test", "--pictures")
    assert refused.code == 2
    assert "answers single images" in refused.err


def test_the_finding_is_in_as_many_neighbouring_slices_as_asked_for():
    drawn = render_volume("ct-kidney", 1, seed=1, index=0, slices=12, share=0.3, size=64)
    assert len(drawn.affected) == 3
    assert not drawn.voxels[:, :, [0, -1]].any()
    again = render_volume("ct-kidney", 1, seed=1, index=0, slices=12, share=0.3, size=64)
    assert (drawn.voxels == again.voxels).all()
    assert not render_volume("ct-kidney", 0, seed=1, index=0, size=64, slices=4).affected
