"""Findings, exams and volumes on the command line, also those that something is wrong with."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import ogkd as library
from ogkd.data.phantoms import write_volumes
from tiny_data import write_exams
from tiny_images import dicom

nibabel = pytest.importorskip("nibabel")
FINDINGS = ("spot", "streak")


@dataclass(frozen=True)
class World:
    """A table of several findings, and a model of it that no test changes."""

    table: Path
    model: Path


@pytest.fixture(scope="module")
def films(clip, tmp_path_factory):
    folder = tmp_path_factory.mktemp("films")
    table = write_exams(folder, per_class=12, images=1, splits="train,val,test", findings=True)
    library.fit(table, backbone=clip, out=folder / "model")
    return World(table, folder / "model")


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("volumes") / "ct"
    splits = {"train": 2, "test": 1}
    return write_volumes("us-breast", folder, splits=splits, slices=6, share=0.5, size=128)


@pytest.fixture
def fit(clip, tmp_path):
    return lambda data, *more: (
        *("fit", data, "--backbone", clip, "--method", "gda", "--out", tmp_path / "model"),
        *more,
    )


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_table_of_exams_is_divided_whole_started_with_and_answered(ogkd, clip, tmp_path):
    table = write_exams(tmp_path / "exams", per_class=36, images=3, findings=True)
    plain, new = (table.with_name(name) for name in ("plain.csv", "new.csv"))
    lines = [line.rsplit(",", 1)[0] for line in table.read_text().splitlines()]
    plain.write_text("\n".join(lines), encoding="utf-8")
    words = ("--cases", "exam")
    assert "spot" in ogkd("data", "check", plain, *words).out
    divided = ogkd("data", "split", plain, "--out", tmp_path / "split.csv", *words)
    assert divided.code == 0, divided.err
    parts = {}
    for row in rows((tmp_path / "split.csv").read_text(encoding="utf-8")):
        parts.setdefault(row["case"], set()).add(row["split"])
    assert len(parts) == 72
    assert {part for (part,) in parts.values()} == {"train", "val", "test"}
    out = tmp_path / "out"
    started = ogkd("start", plain, "--yes", "--backbone", clip, "--out", out, *words)
    assert started.code == 0, started.err
    assert (out / "report.html").is_file()
    table.with_name("bad.png").write_bytes(b"no image")
    images = [f"{row['path']},{row['exam']}" for row in rows(table.read_text())[:9]]
    new.write_text("\n".join(["path,exam", *images, "bad.png,bad"]), encoding="utf-8")
    answer = ogkd("predict", out / "model", new)
    assert answer.code == 1
    *good, broken = rows(answer.out)
    assert [row["images"] for row in good] == ["3"] * 3
    assert (broken["prediction"], bool(broken["error"])) == ("", True)
    assert "--cases" in ogkd("predict", out / "model", table.parent / "train").err


def test_findings_are_named_where_a_table_also_has_classes(ogkd, refused, films, data):
    head, *lines = films.table.read_text(encoding="utf-8").splitlines()
    both = films.table.with_name("both.csv")
    lines = [f"{head},label", *(f"{line},{'ab'[n % 2]}" for n, line in enumerate(lines))]
    both.write_text("\n".join(lines), encoding="utf-8")
    for other in (both, data):
        assert "--findings" in refused("evaluate", films.model, other)
    named, expected = (
        ogkd("evaluate", films.model, *words, "--json", "--resamples", 0)
        for words in ((both, "--findings", ",".join(FINDINGS)), (films.table,))
    )
    assert named.code == 0, named.err
    assert json.loads(named.out)["per_finding"] == json.loads(expected.out)["per_finding"]


def test_a_finding_that_never_varies_is_left_out_with_a_warning(ogkd, films, clip, tmp_path):
    head, *lines = films.table.read_text(encoding="utf-8").splitlines()
    more = films.table.with_name("more.csv")
    more.write_text("\n".join([f"{head},never,always", *(f"{line},0,1" for line in lines)]))
    outcome = ogkd("fit", more, "--backbone", clip, "--out", tmp_path / "m")
    assert outcome.code == 0, outcome.err
    for name in ("never", "always"):
        assert f"'{name}' is left out" in outcome.err
    assert library.load(tmp_path / "m").class_names == FINDINGS
    checked = ogkd("data", "check", more)
    assert checked.code == 1
    assert "No images to learn from for: never" in checked.out
    assert "known to be without: always" in checked.out


def test_options_of_the_other_task_are_refused(refused, films, clip, data, fitted, tmp_path):
    out = ("--backbone", clip, "--out", tmp_path / "m")
    for option, value in (
        ("--method", "zero-shot"),
        ("--findings", "oedema"),
        ("--unlabelled", data),
        ("--normal", FINDINGS[0]),
    ):
        assert option in refused("fit", films.table, option, value, *out)
    for model, option in (
        (films.model, "--max-risk"),
        (films.model, "--sensitivity"),  # it is not calibrated
        (fitted, "--sensitivity"),
    ):
        assert option in refused("predict", model, data, option, 0.9)
    assert "--sensitivity" in refused(
        "calibrate", fitted, data, "--split", "test", "--sensitivity", 0.9
    )
    assert "findings" in refused("evaluate", fitted, films.table)


def test_a_volume_without_a_usable_slice_is_named_and_skipped_on_request(
    ogkd, fit, volumes, tmp_path
):
    scans = shutil.copytree(volumes, tmp_path / "scans")
    bad = {split: scans / split / "simple_cyst" / "0000.nii.gz" for split in ("train", "test")}
    for path in bad.values():
        empty = np.full((20, 24, 6), np.nan, np.float32)
        nibabel.save(nibabel.Nifti1Image(empty, np.eye(4)), path)
    refused = ogkd(*fit(scans, "--slices", "all"))
    assert refused.code == 2
    assert str(bad["train"]) in refused.err
    outcome = ogkd(*fit(scans, "--slices", "all", "--on-error", "skip"))
    assert outcome.code == 0, outcome.err
    assert "7 cases of" in outcome.out
    predicted = ogkd("predict", tmp_path / "model", scans / "test")
    assert predicted.code == 1
    answers = rows(predicted.out)
    assert len(answers) == 4
    assert [str(bad["test"]) in row["error"] for row in answers] == [
        row["path"] == str(bad["test"]) for row in answers
    ]


@pytest.mark.filterwarnings("default::ogkd.errors.OgkdWarning")
def test_an_irregular_series_is_a_warning_of_fit_and_predict(ogkd, fit, tmp_path):
    rng = np.random.default_rng(0)
    for uid, (name, numbers) in enumerate({"cyst": [1, 2, 2], "stone": [1, 4]}.items()):
        folder = tmp_path / "scans" / name
        folder.mkdir(parents=True)
        for position, number in enumerate(numbers):
            pixels = rng.integers(0, 255, (20, 20)).astype(np.uint8)
            elements = {"SeriesInstanceUID": f"1.2.{uid}", "InstanceNumber": number}
            dicom(folder / f"{position}.dcm", pixels, **elements)
    fitted = ogkd(*fit(tmp_path / "scans", "--cases", "series"))
    assert fitted.code == 0, fitted.err
    predicted = ogkd("predict", tmp_path / "model", tmp_path / "scans", "--format", "jsonl")
    assert [json.loads(line)["images"] for line in predicted.out.splitlines()] == [3, 2]
    for err in (fitted.err, predicted.err):
        assert "series 1.2.0: instances are missing or occur more than once" in err
        assert "series 1.2.1: instances are missing or occur more than once" in err
        assert "warnings.warn" not in err
