"""What a division leaves out, and why."""

from __future__ import annotations

import csv
import io
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ogkd import read_dataset
from ogkd.audit import audit_data
from ogkd.audit.divide import divide_checked, left_out_rows
from ogkd.data.case import Case, Dataset
from ogkd.data.tables import csv_text
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.images import ImageRef
from tiny_data import CLASSES, write_dataset, write_image


def divided(data, **options):
    dataset = read_dataset(data)
    return divide_checked(dataset, audit_data(dataset, root=data), **options)


@pytest.fixture
def data(tmp_path):
    return write_dataset(tmp_path / "data", splits={"": 10})


def test_a_sound_dataset_is_divided_and_nothing_is_left_out(data):
    found = divided(data)
    assert not found.left_out
    assert not found.lost
    assert found.reasons() == ""
    sizes = {part: count.total() for part, count in found.counts().items()}
    assert sizes == {"train": 18, "val": 6, "test": 6}
    assert found == divided(data)
    assert found != divided(data, seed=2)


def test_unreadable_repeated_and_contradictory_images_are_left_out(data):
    (data / "normal_lung" / "3.png").write_bytes(b"not an image")
    same = (data / "benign_tumor" / "0.png").read_bytes()
    (data / "malignant_tumor" / "x.png").write_bytes(same)
    (data / "benign_tumor" / "y.png").write_bytes((data / "benign_tumor" / "1.png").read_bytes())
    found = divided(data)
    assert found.reasons() == "1 unreadable, 2 with more than one label, 1 repeated"
    left = {one.image.name: one.kind for one in found.left_out}
    labels = dict.fromkeys(("0.png", "x.png"), "several labels")
    assert left == {**labels, "3.png": "unreadable", "y.png": "copy"}
    assert "malignant tumor" in next(one.reason for one in found.left_out if one.kind[0] == "s")
    rows = list(csv.DictReader(io.StringIO(csv_text(left_out_rows(found, data)))))
    assert {Path(row["path"]).name for row in rows} == set(left)


@pytest.mark.parametrize(
    ("answers", "reasons", "kept"),
    [
        (("1,", ",0", ","), "2 repeated", [(1, 0)]),
        (("1,", "0,0"), "2 with more than one label", []),
    ],
)
def test_equal_images_know_findings_together_unless_they_contradict(
    tmp_path, answers, reasons, kept
):
    lines = ["path,cyst,stone"]
    for number in range(30):
        write_image(tmp_path / f"{number}.png", number)
        lines.append(f"{number}.png,{number % 2},{number % 3 // 2}")
    for number, answer in enumerate(answers):
        write_image(tmp_path / f"copy {number}.png", 99)
        lines.append(f"copy {number}.png,{answer}")
    (tmp_path / "films.csv").write_text("\n".join(lines), encoding="utf-8")
    dataset = read_dataset(tmp_path / "films.csv")
    audit = audit_data(dataset, root=tmp_path)
    found = divide_checked(dataset, audit)
    assert found.reasons() == reasons
    cases = [case for case in found.dataset.cases if case.image.name.startswith("copy")]
    assert [case.target for case in cases] == kept
    kinds = {finding.kind for finding in audit.findings}
    assert kinds & {"exact", "exact-labels"} == {"exact" if kept else "exact-labels"}


def test_similar_images_stay_in_one_part(tmp_path):
    rng = np.random.default_rng(0)
    for number in range(40):
        pixels = np.kron(rng.integers(0, 255, (16, 16, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        for copy in range(2):  # brighter, so not the same pixels
            file = tmp_path / "data" / f"class {number % 2}" / f"{number}-{copy}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((pixels * 0.8 + 20 * copy).astype(np.uint8)).save(file)
    found = divided(tmp_path / "data")
    assert len(found.dataset.cases) == 80
    parts = {}
    for case in found.dataset.cases:
        parts.setdefault(case.image.name.split("-")[0], set()).add(case.split)
    assert all(len(part) == 1 for part in parts.values())
    assert Counter(case.split for case in found.dataset.cases)["test"] == 16


def test_of_equal_images_in_two_splits_the_tested_one_is_kept(tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 6, "val": 3, "test": 3})
    same = (data / "test" / "benign_tumor" / "0.png").read_bytes()
    (data / "train" / "benign_tumor" / "0.png").write_bytes(same)
    (one,) = divided(data).left_out
    assert one.image.file.is_relative_to(data / "train")


def test_too_few_images_to_calibrate_on_are_no_error(tmp_path):
    data = write_dataset(tmp_path / "data", CLASSES[:2], splits={"": 1})
    write_image(data / "benign_tumor" / "more.png", 50)
    found = divided(data)
    assert "too few images" in found.note
    sizes = {part: count.total() for part, count in found.counts().items()}
    assert sizes == {"train": 2, "val": 0, "test": 1}
    assert found.absent("test") == ["malignant tumor"]


def test_a_class_that_is_lost_is_named_and_one_class_is_too_few(tmp_path):
    data = write_dataset(tmp_path / "data", splits={"": 5})
    for file in (data / "normal_lung").iterdir():
        file.write_bytes(b"not an image")
    found = divided(data)
    assert found.lost == ("normal lung",)
    assert found.dataset.names == ("benign tumor", "malignant tumor")
    for file in (data / "benign_tumor").iterdir():
        file.write_bytes(b"not an image")
    with pytest.raises(DataError):
        divided(data)


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_file_name_that_is_not_text_is_left_out(data):
    file = write_image(data / "benign_tumor" / "a.png", 500)
    odd = Path(os.fsdecode(os.fsencode(file.parent) + b"/\xff.png"))
    file.rename(odd)
    found = divided(data)
    assert [one.kind for one in found.left_out] == ["file name"]
    assert "xff" in csv_text(left_out_rows(found, data)) or "udcff" in csv_text(
        left_out_rows(found, data)
    )


@pytest.mark.parametrize("by", ["patient", "case"])
def test_images_of_a_patient_or_case_stay_together(tmp_path, by):
    images = [ImageRef(write_image(tmp_path / f"{n}.png", n)) for n in range(40)]
    groups = [tuple(images[n : n + 4]) for n in range(0, 40, 4)]
    if by == "case":
        cases = [Case(f"c{n}", group, n % 2) for n, group in enumerate(groups)]
    else:
        cases = [
            Case.single(image, n % 2, group=f"p{n}")
            for n, group in enumerate(groups)
            for image in group
        ]
    dataset = Dataset(tuple(cases), OneOf(CLASSES[:2]))
    divided = divide_checked(dataset, audit_data(dataset, root=tmp_path)).dataset
    part = {case.image: case.split for case in divided.cases}
    assert len(part) == 40
    assert all(len({part[image] for image in group}) == 1 for group in groups)
