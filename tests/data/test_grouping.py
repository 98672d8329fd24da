"""Images that share one answer: which belong together, their target, their splits."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from ogkd.data.case import Case, Dataset, unlabelled_cases
from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.data.splits import few_shot, shortfalls
from ogkd.data.tables import table_text
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.images import ImageRef
from tiny_data import write_image
from tiny_images import dicom, volume

EXAM = Grouping.parse("exam")


def table(folder: Path, rows: list[str], header: str = "path,label,exam") -> Path:
    for row in rows:
        write_image(folder / row.split(",")[0])
    path = folder / "exams.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return path


def grouped(path: Path, *, by: str = "exam", normal: tuple[int, ...] = ()) -> Dataset:
    return Grouping.parse(by).apply(read_dataset(path).with_normal(normal))


def images_by_case(dataset: Dataset) -> dict[str, list[str]]:
    return {case.name: [image.name for image in case.images] for case in dataset.cases}


def test_a_column_says_which_images_belong_together(tmp_path: Path) -> None:
    rows = ["a.png,cyst,1", "b.png,normal,2", "c.png,cyst,1", "d.png,normal,2"]
    dataset = grouped(table(tmp_path, rows))
    assert images_by_case(dataset) == {"1": ["a.png", "c.png"], "2": ["b.png", "d.png"]}
    assert all(case.image_targets is None for case in dataset.cases)
    assert dataset.unit == "exam"
    assert EXAM.apply(dataset) == dataset


def test_images_with_labels_of_their_own_give_their_case_the_finding(tmp_path: Path) -> None:
    rows = ["a.png,cyst,1", "b.png,normal,1", "c.png,normal,2", "d.png,normal,2"]
    dataset = grouped(table(tmp_path, rows), normal=(1,))
    assert [(case.target, case.image_targets) for case in dataset.cases] == [
        (0, (0, 1)),
        (1, (1, 1)),
    ]
    assert EXAM.apply(dataset) == dataset


def test_a_case_shows_a_finding_if_one_of_its_images_does(tmp_path: Path) -> None:
    rows = ["a.png,1,0,1", "b.png,0,0,1", "c.png,0,,2", "d.png,0,0,2", "e.png,,1,2"]
    dataset = grouped(table(tmp_path, rows, "path,edema,mass,exam"))
    assert dataset.task == Findings(("edema", "mass"))
    assert [case.target for case in dataset.cases] == [(1, 0), (-1, 1)]
    assert dataset.cases[0].image_targets == ((1, 0), (0, 0))


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        (["a.png,cyst,1", "b.png,stone,1"], "path,label,exam"),
        (
            ["a.png,cyst,1,train", "b.png,cyst,1,test", "c.png,stone,2,test"],
            "path,label,exam,split",
        ),
        (["a.png,cyst,", "b.png,stone,2"], "path,label,exam"),
        (["a.png,cyst,1,A", "b.png,cyst,1,B", "c.png,stone,2,C"], "path,label,exam,patient"),
        (["a.png,cyst,1", "b.png,stone,2"], "path,label,visit"),
    ],
)
def test_cases_that_contradict_themselves_or_have_no_name_are_refused(
    tmp_path: Path, rows: list[str], header: str
) -> None:
    with pytest.raises(DataError) as error:
        grouped(table(tmp_path, rows, header))
    assert error.value.argument == "cases"


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"by": " "}, "cases"),
        ({"slices": "all", "slice": "index=1"}, "slice"),
        ({"slice": "middle"}, "slice"),
    ],
)
def test_invalid_groupings_are_refused(options: dict[str, str], argument: str) -> None:
    with pytest.raises(ConfigError) as error:
        Grouping.parse(**options)
    assert error.value.argument in (argument, None)


def test_an_image_may_be_in_two_cases() -> None:
    scout, other = ImageRef(Path("scout.png")), ImageRef(Path("other.png"))
    rows = [(scout, 0, "1"), (scout, 1, "2"), (other, 1, "2")]
    cases = tuple(Case.single(image, label, columns={"exam": e}) for image, label, e in rows)
    dataset = EXAM.apply(Dataset(cases, OneOf(("cyst", "stone"))))
    assert [(c.name, c.images, c.target) for c in dataset.cases] == [
        ("1", (scout,), 0),
        ("2", (scout, other), 1),
    ]


def test_cases_that_share_their_first_image_are_drawn_both() -> None:
    scout = ImageRef(Path("scout.png"))
    cases = [Case(f"exam {n}", (scout, ImageRef(Path(f"{n}.png"))), (n % 2,)) for n in range(4)]
    dataset = Dataset(tuple(cases), Findings(("mass",)))
    assert len(few_shot(dataset, dataset.cases, 2, 1)) == 4


def test_the_patient_can_be_the_case(tmp_path: Path) -> None:
    rows = ["a.png,cyst,A", "b.png,cyst,A", "c.png,stone,C"]
    dataset = grouped(table(tmp_path, rows, "path,label,patient"), by="patient")
    assert [(case.name, case.group) for case in dataset.cases] == [("A", "A"), ("C", "C")]


def test_each_folder_of_a_class_can_be_a_case(tmp_path: Path) -> None:
    for name in ("cyst/p1/a.png", "cyst/p1/b.png", "cyst/p2/a.png", "stone/p3/a.png"):
        write_image(tmp_path / name)
    dataset = grouped(tmp_path, by="folder")
    assert [Path(case.name).name for case in dataset.cases] == ["p1", "p2", "p3"]
    with pytest.raises(DataError) as error:  # folders have no columns
        grouped(tmp_path)
    assert error.value.argument == "cases"


def test_a_volume_is_a_case_by_itself(tmp_path: Path) -> None:
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
    drawn = few_shot(dataset, cases, 3, 1)
    assert Counter(case.target for case in drawn) == {0: 3, 1: 3}
    assert all(len(case.images) == 3 for case in drawn)
    assert shortfalls(dataset.task, few_shot(dataset, cases[:8], 6, 1), 6) == {"a": 4, "b": 4}


def test_a_written_table_keeps_the_cases(tmp_path: Path) -> None:
    dataset = grouped(table(tmp_path, ["a.png,cyst,1", "b.png,stone,2", "c.png,stone,2"]))
    again = tmp_path / "again.csv"
    again.write_text(table_text(dataset, tmp_path), encoding="utf-8")
    assert images_by_case(grouped(again)) == images_by_case(dataset)


def series(folder: Path, numbers: list[int], *, uid: str = "1.2.3", **elements: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for position, number in enumerate(numbers):
        dicom(
            folder / f"{uid}-{position:03}.dcm",
            rng.integers(0, 255, (16, 16)).astype(np.uint8),
            **{
                "SeriesInstanceUID": uid,
                "StudyInstanceUID": "1.2",
                "InstanceNumber": number,
                "ImagePositionPatient": [0, 0, number],
                "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
                **elements,
            },
        )


def by_header(folder: Path, by: str) -> dict[str, list[str]]:
    cases = unlabelled_cases(ImageRef(file) for file in sorted(folder.iterdir()))
    merged = Grouping.parse(by).merge(cases)
    return {case.name: [image.file.stem[-3:] for image in case.images] for case in merged}


def test_a_dicom_folder_is_grouped_by_series_in_the_order_of_its_slices(tmp_path: Path) -> None:
    series(tmp_path, [3, 1, 2])
    series(tmp_path, [1, 2], uid="1.2.4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = by_header(tmp_path, "series")
    assert cases == {"1.2.3": ["001", "002", "000"], "1.2.4": ["000", "001"]}
    assert set(by_header(tmp_path, "study")) == {"1.2"}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([1, 2, 5], "instance 3, 4 is missing"), ([1, 2, 2], "instance 2 occurs more than once")],
)
def test_irregular_series_are_named_and_used(
    tmp_path: Path, numbers: list[int], words: str
) -> None:
    series(tmp_path, numbers)
    with pytest.warns(OgkdWarning, match=words):
        assert len(by_header(tmp_path, "series")["1.2.3"]) == 3


def test_two_orientations_modalities_and_sizes_in_one_series_are_named(tmp_path: Path) -> None:
    series(tmp_path, [1, 2], Modality="CT")
    other = {"ImageOrientationPatient": [0, 1, 0, 0, 0, -1], "Modality": "MR"}
    dicom(
        tmp_path / "x.dcm",
        np.arange(400, dtype=np.uint8).reshape(20, 20),
        SeriesInstanceUID="1.2.3",
        InstanceNumber=3,
        **other,
    )
    with pytest.warns(OgkdWarning) as caught:
        by_header(tmp_path, "series")
    text = "\n".join(str(warning.message) for warning in caught)
    for words in ("more than one orientation", "modalities (CT, MR)", "sizes (16 x 16, 20 x 20)"):
        assert words in text


def test_other_files_have_no_series(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    with pytest.raises(DataError) as error:
        by_header(tmp_path, "series")
    assert error.value.argument == "cases"
