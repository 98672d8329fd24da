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
FIT = ("--backbone", "builtin", "--shots", "2")


@dataclass(frozen=True)
class World:
    """A table, the options that read it, and a model of it that no test changes."""

    table: Path
    model: Path
    images: int
    findings: bool

    @property
    def options(self) -> tuple[str, ...]:
        return ("--cases", "exam") if self.images > 1 else ()


def new_world(clip, folder, *, images, findings):
    table = write_exams(
        folder, per_class=12, images=images, splits="train,val,test", findings=findings
    )
    world = World(table, folder / "model", images, findings)
    library.fit(table, backbone=clip, out=world.model, cases="exam" if images > 1 else None)
    return world


@pytest.fixture(scope="module", params=[(1, True), (3, False), (3, True)], ids=str)
def world(request, clip, tmp_path_factory):
    images, findings = request.param
    folder = tmp_path_factory.mktemp("world")
    return new_world(clip, folder, images=images, findings=findings)


@pytest.fixture(scope="module")
def films(clip, tmp_path_factory):
    """Single images with several findings."""
    return new_world(clip, tmp_path_factory.mktemp("films"), images=1, findings=True)


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


# Either task, one image or several


def test_a_fit_says_what_it_learns_from_and_is_not_repeated(ogkd, world, clip):
    words = ("fit", world.table, "--backbone", clip, *world.options, "--out")
    again = ogkd(*words, world.model)
    assert again.code == 0, again.err
    assert "nothing to do" in again.err
    few = ogkd(*words, world.table.parent / "few", "--shots", 4)
    assert few.code == 0, few.err
    assert ("(present/absent/unknown): spot 12/12/0" in few.err) == world.findings
    assert ("exams of" in few.out) == (world.images > 1)
    card = library.load(world.table.parent / "few").card
    assert all(count >= 4 for count in card.support_counts)


def test_predictions_have_a_row_for_each_case_in_either_format(ogkd, world, tmp_path):
    new, bad = world.table.with_name("new.csv"), world.table.with_name("bad.png")
    bad.write_bytes(b"no image")
    tested = [row for row in rows(world.table.read_text()) if row["split"] == "test"]
    lines = [f"{row['path']},{row['exam']}" for row in tested]
    new.write_text("\n".join(["path,exam", *lines, "bad.png,bad"]), encoding="utf-8")
    outcome = ogkd("predict", world.model, new)
    assert outcome.code == 1
    *good, broken = rows(outcome.out)
    assert len(good) == 24
    assert broken["error"]
    assert broken["prediction"] == ""
    entries = [
        json.loads(line)
        for line in ogkd("predict", world.model, new, "--format", "jsonl").out.splitlines()
    ]
    for row, entry in zip(good, entries, strict=False):
        assert row["prediction"] == entry["prediction"]
        for name, share in entry["probabilities"].items():
            column = f"{name} probability" if world.findings else name
            assert float(row[column]) == pytest.approx(share, abs=1e-5)
            if world.findings:
                assert row[name] == entry["answers"][name]
    if world.images > 1:
        assert {row["images"] for row in good} == {"3"}
        assert "--cases" in ogkd("predict", world.model, world.table.parent / "test").err


def test_a_calibrated_model_is_evaluated_with_numbers_and_a_report(ogkd, world, tmp_path):
    model = shutil.copytree(world.model, tmp_path / "calibrated")
    guarantee = ("--sensitivity", 0.8) if world.findings else ()
    outcome = ogkd("calibrate", model, world.table, *guarantee)
    assert outcome.code == 0, outcome.err
    written, page = tmp_path / "result.json", tmp_path / "report.html"
    files = ("--out", written, "--report", page)
    outcome = ogkd("evaluate", model, world.table, "--json", "--resamples", 0, *files)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result == json.loads(written.read_text(encoding="utf-8"))
    assert result["images"] == 24
    if world.findings:
        assert result["sensitivity"] == 0.8
        assert list(result["per_finding"]) == list(FINDINGS)
    assert str(world.table.parent) not in page.read_text(encoding="utf-8")


def test_a_table_is_checked_divided_whole_and_started_with(ogkd, world, clip, tmp_path):
    plain = world.table.with_name("plain.csv")
    lines = [line.rsplit(",", 1) for line in world.table.read_text().splitlines()]
    plain.write_text("\n".join(line for line, _ in lines), encoding="utf-8")
    checked = ogkd("data", "check", plain, *world.options)
    assert "spot" in checked.out
    divided = ogkd("data", "split", plain, "--out", tmp_path / "split.csv", *world.options)
    assert divided.code == 0, divided.err
    parts = {}
    for row in rows((tmp_path / "split.csv").read_text(encoding="utf-8")):
        parts.setdefault(row.get("case", row["path"]), set()).add(row["split"])
    assert len(parts) == 72
    assert {part for (part,) in parts.values()} == {"train", "val", "test"}
    words = ("start", plain, "--yes", "--backbone", clip, "--out", tmp_path / "out")
    started = ogkd(*words, *world.options)
    assert started.code == 0, started.err
    assert (tmp_path / "out" / "report.html").is_file()


# Findings


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


# Exams and volumes


def test_volumes_are_fitted_and_answered_with_the_slices_that_decided(ogkd, volumes, tmp_path):
    model = tmp_path / "model"
    fitted = ogkd("fit", volumes, "--slices", "N=3", "--out", model, *FIT)
    assert fitted.code == 0, fitted.err
    assert "8 cases of 24 images" in fitted.out
    report = tmp_path / "report.html"
    judged = ogkd("evaluate", model, volumes, "--report", report, "--resamples", 0)
    assert judged.code == 0, judged.err
    assert "4 cases" in judged.out
    assert "axis=2,index=" in report.read_text(encoding="utf-8")
    predicted = ogkd("predict", model, volumes / "test")
    assert (predicted.code, len(rows(predicted.out))) == (0, 4)
    for row in rows(predicted.out):
        assert row["images"] == "3"
        assert row["decided_by"].startswith(f"{row['path']}#axis=2,index=")
    both = ogkd("predict", model, volumes / "test", "--format", "jsonl")
    lines = [json.loads(line) for line in both.out.splitlines()]
    assert [len(line["weights"]) for line in lines] == [line["images"] for line in lines] == [3] * 4
    for line in lines:
        assert sum(image["weight"] for image in line["weights"]) == pytest.approx(1, abs=1e-5)
    maps = tmp_path / "maps"
    assert ogkd("predict", model, volumes / "test", "--explain", maps).code == 0
    assert len(list(maps.iterdir())) <= 4  # those that mark what the answer rests on


@pytest.mark.parametrize("command", ["fit", "check", "split"])
def test_exams_that_contradict_themselves_are_named(refused, fit, tmp_path, command):
    data = tmp_path / "exams.csv"
    lines = ["path,label,exam,split", "a.png,cyst,1,train", "b.png,stone,1,train"]
    data.write_text("\n".join(lines), encoding="utf-8")
    words = {
        "fit": fit(data, "--cases", "exam"),
        "check": ("data", "check", data, "--cases", "exam"),
        "split": ("data", "split", data, "--out", tmp_path / "split.csv", "--cases", "exam"),
    }[command]
    message = refused(*words)
    assert "labels cyst, stone" in message
    assert "--cases" in message


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
        assert "1.2.0: instance 2 occurs more than once" in err
        assert "1.2.1: instance 2, 3 is missing" in err
        assert "warnings.warn" not in err
