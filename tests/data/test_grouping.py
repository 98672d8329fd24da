"""Images that share one answer: which belong together, their target, their splits."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ogkd.data.case import Case, Dataset, unlabelled_cases
from ogkd.data.grouping import Grouping
from ogkd.data.names import normal_labels
from ogkd.data.read import read_dataset
from ogkd.data.splits import shortfalls, support_and_val
from ogkd.data.tables import table_text
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.images import ImageRef
from tiny_data import write_image
from tiny_images import dicom, volume


def table(folder: Path, *lines: str) -> Path:
    path = folder / "exams.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def grouped(path: Path, by: str = "exam") -> Dataset:
    dataset = read_dataset(path)
    return Grouping.parse(by).apply(dataset.with_normal(normal_labels(dataset.names, None)))


def summary(dataset: Dataset) -> list[tuple[Any, ...]]:
    return [
        (case.name, " ".join(image.name for image in case.images), case.target, case.image_targets)
        for case in dataset.cases
    ]


@pytest.mark.parametrize(
    ("by", "lines", "expected"),
    [
        (  # images of a case have its label
            "exam",
            ["path,label,exam", "a,cyst,1", "b,normal,2", "c,cyst,1", "d,normal,2"],
            [("1", "a c", 0, None), ("2", "b d", 1, None)],
        ),
        (  # or labels of their own, among which one is not normal
            "exam",
            ["path,label,exam", "a,cyst,1", "b,normal,1", "c,normal,2", "d,normal,2"],
            [("1", "a b", 0, (0, 1)), ("2", "c d", 1, (1, 1))],
        ),
        (  # a case shows a finding if one of its images does
            "exam",
            ["path,edema,mass,exam", "a,1,0,1", "b,0,0,1", "c,0,,2", "d,0,0,2", "e,,1,2"],
            [
                ("1", "a b", (1, 0), ((1, 0), (0, 0))),
                ("2", "c d e", (-1, 1), ((0, -1), (0, 0), (-1, 1))),
            ],
        ),
        (
            "patient",
            ["path,label,patient", "a,cyst,A", "b,cyst,A", "c,stone,C"],
            [("A", "a b", 0, None), ("C", "c", 1, None)],
        ),
    ],
)
def test_a_column_says_which_images_belong_together(tmp_path, by, lines, expected) -> None:
    dataset = grouped(table(tmp_path, *lines), by)
    assert summary(dataset) == expected
    assert dataset.unit == by
    assert Grouping.parse(by).apply(dataset) == dataset
    again = tmp_path / "again.csv"
    again.write_text(table_text(dataset, tmp_path), encoding="utf-8")
    assert [row[:3] for row in summary(grouped(again, by))] == [row[:3] for row in expected]


@pytest.mark.parametrize(
    "lines",
    [
        ["path,label,exam", "a,cyst,1", "b,stone,1"],
        ["path,label,exam,split", "a,cyst,1,train", "b,cyst,1,test", "c,stone,2,test"],
        ["path,label,exam", "a,cyst,", "b,stone,2"],
        ["path,label,exam,patient", "a,cyst,1,A", "b,cyst,1,B", "c,stone,2,C"],
        ["path,label,visit", "a,cyst,1", "b,stone,2"],
    ],
)
def test_cases_that_contradict_themselves_or_have_no_name_are_refused(tmp_path, lines) -> None:
    with pytest.raises(DataError) as error:
        grouped(table(tmp_path, *lines))
    assert error.value.argument == "cases"


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"by": " "}, "cases"),
        ({"slices": "all", "slice": "index=1"}, "slice"),
        ({"slice": "middle"}, "slice"),
    ],
)
def test_invalid_groupings_are_refused(options, argument) -> None:
    with pytest.raises(ConfigError) as error:
        Grouping.parse(**options)
    assert error.value.argument == argument


def test_an_image_may_be_in_two_cases() -> None:
    scout, other = ImageRef(Path("scout.png")), ImageRef(Path("other.png"))
    rows = [(scout, 0, "1"), (scout, 1, "2"), (other, 1, "2")]
    cases = tuple(Case.single(image, label, columns={"exam": e}) for image, label, e in rows)
    dataset = Grouping.parse("exam").apply(Dataset(cases, OneOf(("cyst", "stone"))))
    assert [(c.images, c.target) for c in dataset.cases] == [((scout,), 0), ((scout, other), 1)]
    both = [Case(f"exam {n}", (scout, ImageRef(Path(f"{n}.png"))), (n % 2,)) for n in range(4)]
    task = Findings(("mass",))
    assert len(support_and_val(task, both, (), 2, 1)[0]) == 4


def test_each_folder_of_a_class_can_be_a_case(tmp_path) -> None:
    for name in ("cyst/p1/a.png", "cyst/p1/b.png", "cyst/p2/a.png", "stone/p3/a.png"):
        write_image(tmp_path / name)
    dataset = grouped(tmp_path, by="folder")
    assert [Path(case.name).name for case in dataset.cases] == ["p1", "p2", "p3"]
    with pytest.raises(DataError) as error:  # folders have no columns
        grouped(tmp_path)
    assert error.value.argument == "cases"


def test_a_volume_is_a_case_by_itself(tmp_path) -> None:
    for name in ("cyst", "stone"):
        (tmp_path / name).mkdir()
        volume(tmp_path / name / "scan.nii.gz")
    every = Grouping.parse(slices="every=4")
    dataset = every.apply(read_dataset(tmp_path))
    assert [len(case.images) for case in dataset.cases] == [4, 4]
    assert every.apply(dataset) == dataset


def test_shots_count_cases_and_give_all_their_images() -> None:
    cases = tuple(
        Case(f"exam {n}", tuple(ImageRef(Path(f"{n}-{k}.png")) for k in range(3)), n % 2)
        for n in range(20)
    )
    dataset = Dataset(cases, OneOf(("a", "b")))
    drawn = support_and_val(dataset.task, cases, (), 3, 1)[0]
    assert Counter(case.target for case in drawn) == {0: 3, 1: 3}
    assert all(len(case.images) == 3 for case in drawn)
    few = support_and_val(dataset.task, cases[:8], (), 6, 1)[0]
    assert shortfalls(dataset.task, few, 6) == {"a": 4, "b": 4}


def series(folder: Path, numbers: list[int], *, uid: str = "1.2.3", **elements: Any) -> None:
    side = elements.pop("side", 16)
    for position, number in enumerate(numbers):
        dicom(
            folder / f"{uid}-{position:03}{side}.dcm",
            np.arange(side * side, dtype=np.uint8).reshape(side, side),
            **{
                "SeriesInstanceUID": uid,
                "StudyInstanceUID": "1.2",
                "InstanceNumber": number,
                "ImagePositionPatient": [0, 0, number],
                "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
                "Modality": "CT",
                **elements,
            },
        )


def by_header(folder: Path, by: str) -> dict[str, list[int]]:
    cases = unlabelled_cases(ImageRef(file) for file in sorted(folder.iterdir()))
    merged = Grouping.parse(by).merge(cases)
    return {case.name: [int(image.file.stem[-5:-2]) for image in case.images] for case in merged}


def test_a_dicom_folder_is_grouped_by_series_in_the_order_of_its_slices(tmp_path) -> None:
    series(tmp_path, [3, 1, 2])
    series(tmp_path, [1, 2], uid="1.2.4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = by_header(tmp_path, "series")
    assert cases == {"1.2.3": [1, 2, 0], "1.2.4": [0, 1]}
    assert set(by_header(tmp_path, "study")) == {"1.2"}
    write_image(tmp_path / "a.png")
    with pytest.raises(DataError) as error:  # it has no series
        by_header(tmp_path, "series")
    assert error.value.argument == "cases"


@pytest.mark.parametrize(
    ("numbers", "other", "words"),
    [
        ([1, 2, 5], {}, "missing or occur more than once"),
        ([1, 2, 2], {}, "missing or occur more than once"),
        ([1, 2], {"ImageOrientationPatient": [0, 1, 0, 0, 0, -1]}, "more than one orientation"),
        ([1, 2], {"Modality": "MR"}, "modalities (CT, MR)"),
        ([1, 2], {"side": 20}, "sizes (16 x 16, 20 x 20)"),
    ],
)
def test_irregular_series_are_named_and_used(tmp_path, numbers, other, words) -> None:
    series(tmp_path, numbers)
    if other:
        series(tmp_path, [3], **{"side": 17, **other})
    with pytest.warns(OgkdWarning) as caught:
        cases = by_header(tmp_path, "series")
    assert words in str(caught[0].message)
    assert len(cases["1.2.3"]) == 3
