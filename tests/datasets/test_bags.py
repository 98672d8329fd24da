"""Pictures that share one answer: who belongs together, their label, their splits."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from ogkd.datasets.bags import BagRule, grouped, in_bags
from ogkd.datasets.manifest import Item, Manifest, by_bag

from ogkd.datasets.divide import split_items
from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import few_shot, shortfalls
from ogkd.datasets.tables import table_text
from ogkd.errors import DataError, OgkdWarning
from ogkd.images import ImageRef
from tiny_data import write_image
from tiny_images import dicom, volume

EXAM = BagRule("exam")


def table(folder: Path, rows: list[str], header: str = "path,label,exam") -> Path:
    for row in rows:
        write_image(folder / row.split(",")[0])
    path = folder / "exams.csv"
    path.write_text("\n".join([header, *rows]), encoding="utf-8")
    return path


def bags_in(path: Path, *, by: str = "exam", normal: tuple[int, ...] = ()) -> Manifest:
    rule = BagRule(by)
    return in_bags(read_manifest(path, bags=by), rule, normal=normal)


def exams(count: int, pictures: int = 3) -> list[Item]:
    """Exams of two classes in turn, each with some pictures."""
    return [
        Item(ImageRef(Path(f"{exam}-{n}.png")), exam % 2, bag=f"exam {exam}")
        for exam in range(count)
        for n in range(pictures)
    ]


def test_a_column_says_which_pictures_belong_together(tmp_path: Path) -> None:
    rows = ["a.png,cyst,1", "b.png,normal,2", "c.png,cyst,1", "d.png,normal,2"]
    found = bags_in(table(tmp_path, rows))
    assert [(item.bag, item.image.name) for item in found.items] == [
        *(("1", "a.png"), ("1", "c.png"), ("2", "b.png"), ("2", "d.png"))
    ]
    assert all(item.shows is None for item in found.items)
    assert in_bags(found, EXAM) == found


def test_pictures_with_labels_of_their_own_give_their_bag_the_finding(tmp_path: Path) -> None:
    rows = ["a.png,cyst,1", "b.png,normal,1", "c.png,normal,2", "d.png,normal,2"]
    found = bags_in(table(tmp_path, rows), normal=(1,))
    assert [(item.label, item.shows) for item in found.items] == [(0, 0), (0, 1), (1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["a.png,cyst,1,train", "b.png,stone,1,train"], "labels cyst, stone"),
        (["a.png,cyst,1,train", "b.png,cyst,1,test", "c.png,stone,2,test"], "splits test, train"),
        (["a.png,cyst,,train", "b.png,stone,2,train"], "have no bag"),
    ],
)
def test_what_contradicts_itself_is_named(tmp_path: Path, rows: list[str], words: str) -> None:
    with pytest.raises(DataError, match=words):
        bags_in(table(tmp_path, rows, "path,label,exam,split"))


def test_a_picture_may_be_in_two_bags() -> None:
    scout, other = ImageRef(Path("scout.png")), ImageRef(Path("other.png"))
    pairs = [(scout, 0, "1"), (scout, 1, "2"), (other, 1, "2")]
    items = tuple(Item(image, label, bag=bag) for image, label, bag in pairs)
    found = in_bags(Manifest(items, ("cyst", "stone")), EXAM)
    assert [(item.image, item.label, item.bag) for item in found.items] == pairs


def test_a_bag_of_two_patients_is_refused(tmp_path: Path) -> None:
    rows = ["a.png,cyst,1,A", "b.png,cyst,1,B", "c.png,stone,2,C"]
    with pytest.raises(DataError, match="patients A, B"):
        bags_in(table(tmp_path, rows, "path,label,exam,patient"))


def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no column 'visit'.*path, label, exam"):
        bags_in(table(tmp_path, ["a.png,cyst,1", "b.png,stone,2"]), by="visit")


def test_class_folders_have_no_columns(tmp_path: Path) -> None:
    for name in ("cyst/a.png", "stone/b.png"):
        write_image(tmp_path / name)
    with pytest.raises(DataError, match=r"no column 'exam'.*folder, study, series"):
        bags_in(tmp_path)


def test_the_patient_can_be_the_bag(tmp_path: Path) -> None:
    rows = ["a.png,cyst,A", "b.png,cyst,A", "c.png,stone,C"]
    found = bags_in(table(tmp_path, rows, "path,label,patient"), by="patient")
    assert [(item.bag, item.group) for item in found.items] == [("A", "A"), ("A", "A"), ("C", "C")]


def test_each_folder_of_a_class_can_be_a_bag(tmp_path: Path) -> None:
    for name in ("cyst/p1/a.png", "cyst/p1/b.png", "cyst/p2/a.png", "stone/p3/a.png"):
        write_image(tmp_path / name)
    found = bags_in(tmp_path, by="folder")
    assert Counter(Path(bag).name for bag in by_bag(found.items)) == {"p1": 1, "p2": 1, "p3": 1}


def test_a_volume_is_a_bag_by_itself(tmp_path: Path) -> None:
    for name in ("cyst", "stone"):
        (tmp_path / name).mkdir()
        volume(tmp_path / name / "scan.nii.gz")
    rule = BagRule.of(None, "every=4")
    assert rule is not None
    found = in_bags(read_manifest(tmp_path), rule)
    assert len(by_bag(found.items)) == 2
    assert len(found.items) == 8
    assert in_bags(found, rule) == found


def test_shots_count_bags_and_give_all_their_pictures() -> None:
    drawn = few_shot(exams(20), 3, 1)
    assert Counter(item.label for item in drawn) == {0: 9, 1: 9}
    assert all(len(mine) == 3 for mine in by_bag(drawn).values())
    assert shortfalls(["a", "b"], few_shot(exams(8), 6, 1), 6) == {"a": 4, "b": 4}


def test_a_division_never_cuts_a_bag() -> None:
    divided = split_items(Manifest(tuple(exams(30, 5)), ("a", "b")), {"train": 0.5, "test": 0.5}, 3)
    for mine in by_bag(divided.items).values():
        assert len({item.split for item in mine}) == 1
    assert {item.split for item in divided.items} == {"train", "test"}


def test_a_written_table_keeps_the_bags(tmp_path: Path) -> None:
    found = bags_in(table(tmp_path, ["a.png,cyst,1", "b.png,stone,2"]))
    again = tmp_path / "again.csv"
    again.write_text(table_text(found, tmp_path), encoding="utf-8")
    assert [item.bag for item in bags_in(again).items] == ["1", "2"]


def series(folder: Path, numbers: list[int], *, uid: str = "1.2.3", **elements: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for place, number in enumerate(numbers):
        pixels = rng.integers(0, 255, (16, 16)).astype(np.uint8)
        dicom(
            folder / f"{uid}-{place:03}.dcm",
            pixels,
            **{
                "SeriesInstanceUID": uid,
                "StudyInstanceUID": "1.2",
                "InstanceNumber": number,
                "ImagePositionPatient": [0, 0, number],
                "ImageOrientationPatient": [1, 0, 0, 0, 1, 0],
                **elements,
            },
        )


def files(folder: Path) -> list[tuple[ImageRef, None]]:
    return [(ImageRef(file), None) for file in sorted(folder.iterdir())]


def test_a_dicom_folder_is_grouped_by_series_in_the_order_of_its_slices(tmp_path: Path) -> None:
    series(tmp_path, [3, 1, 2])
    series(tmp_path, [1, 2], uid="1.2.4")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = grouped(files(tmp_path), BagRule("series"))
    assert [(bag, part.file.stem[-3:]) for bag, part in found] == [
        *(("1.2.3", "001"), ("1.2.3", "002"), ("1.2.3", "000"), ("1.2.4", "000"), ("1.2.4", "001"))
    ]
    assert {bag for bag, _ in grouped(files(tmp_path), BagRule("study"))} == {"1.2"}


@pytest.mark.parametrize(
    ("numbers", "words"),
    [([1, 2, 5], "instance 3, 4 is missing"), ([1, 2, 2], "instance 2 occurs more than once")],
)
def test_odd_series_are_named_and_used(tmp_path: Path, numbers: list[int], words: str) -> None:
    series(tmp_path, numbers)
    with pytest.warns(OgkdWarning, match=words):
        assert len(grouped(files(tmp_path), BagRule("series"))) == 3


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
    with pytest.warns(OgkdWarning) as said:
        grouped(files(tmp_path), BagRule("series"))
    text = "\n".join(str(one.message) for one in said)
    for words in ("more than one orientation", "modalities (CT, MR)", "sizes (16 x 16, 20 x 20)"):
        assert words in text


def test_other_files_have_no_series(tmp_path: Path) -> None:
    write_image(tmp_path / "a.png")
    with pytest.raises(DataError, match="not a DICOM file"):
        grouped(files(tmp_path), BagRule("series"))
