from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ogkd.data.read import read_dataset
from ogkd.data.splits import base_and_novel
from ogkd.errors import DataError
from tiny_data import case_of

GOOD = {
    "train": [["b/1.png", 1, "stone"], ["a/1.png", 0, "cyst"]],
    "val": [["a/2 ä.png", 0, "cyst"]],
    "test": [["b/2.png", 1, "stone"]],
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refuse(path: Path, **options: Any) -> None:
    with pytest.raises(DataError):
        read_dataset(path, **options)


def test_a_split_file_is_read_in_its_own_order(tmp_path):
    dataset = read_dataset(write(tmp_path, GOOD))
    assert dataset.names == ("cyst", "stone")
    assert dataset.cases == (
        case_of(tmp_path / "b" / "1.png", 1, "train"),
        case_of(tmp_path / "a" / "1.png", 0, "train"),
        case_of(tmp_path / "a" / "2 ä.png", 0, "val"),
        case_of(tmp_path / "b" / "2.png", 1, "test"),
    )


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        [],
        {},
        {"cyst": ["a text"], "stone": ["a text"]},
        {"train": [], "Training": []},
        {"train": []},
        {"train": {"a": 1}},
        {"train": ["a.png"]},
        {"train": [["a.png", 0]]},
        {"train": [["a.png", 0, "x", 1]]},
        {"train": [[5, 0, "x"]]},
        {"train": [[" ", 0, "x"]]},
        {"train": [["a", "0", "x"]]},
        {"train": [["a", 0.0, "x"]]},
        {"train": [["a", True, "x"]]},
        {"train": [["a", -1, "x"]]},
        {"train": [["a", 0, None]]},
        {"train": [["a", 0, "x"], ["b", 0, "y"]]},
        {"train": [["a", 0, "x"]], "test": [["b", 0, "y"]]},
        {"train": [["a", 0, "x"], ["b", 1, "X"]]},
        {"train": [["a", 0, "x"], ["b", 1, " "]]},
        {"train": [["a", 0, "x"]]},
        {"train": [["a", 0, "x"], ["b", 2, "y"]]},
        {"train": [["a", 0, "x"], ["b", 10**30, "y"]]},
        {"train": [["a", 0, "x"], ["./a", 1, "y"]]},
        {"train": [["a", 0, "x"], ["b", 1, "y"]], "test": [["a", 0, "x"]]},
    ],
)
def test_what_is_not_a_split_file_is_refused(tmp_path, content):
    refuse(write(tmp_path, content))


@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../x.png",
        "a/../../x.png",
        "a/..",
        "..\\x.png",
        "C:\\x.png",
        "\\\\host\\x",
        "a\0b",
    ],
)
def test_paths_that_leave_the_root_are_refused(tmp_path, name):
    refuse(write(tmp_path, {"train": [[name, 0, "x"], ["b", 1, "y"]]}))


def test_names_with_dots_are_no_way_out(tmp_path):
    rows = [["..a/x..png", 0, "x"], ["b...png", 1, "y"]]
    assert len(read_dataset(write(tmp_path, {"train": rows})).cases) == 2


def test_a_class_list_must_agree_with_the_file(tmp_path):
    path = write(tmp_path, GOOD)
    assert read_dataset(path, class_names=["cyst", "stone"]).names == ("cyst", "stone")
    refuse(path, class_names=["stone", "cyst"])
    refuse(path, class_names=["cyst", "stone", "tumor"])
    refuse(path, class_names=["cyst", "tumor"])


def test_another_encoding_is_refused(tmp_path):
    path = tmp_path / "split.json"
    path.write_bytes('{"train": [["ä", 0, "x"]]}'.encode("latin-1"))
    refuse(path)


OFFICIAL = {  # classes in label order and images of train, val, test (fidelity.md, datasets)
    "BTMRI": (
        ("glioma tumor", "meningioma tumor", "pituitary tumor", "normal brain"),
        (2854, 1141, 1717),
    ),
    "BUSI": (("benign tumor", "malignant tumor", "normal scan"), (389, 155, 236)),
    "Kvasir": (
        (
            "dyed lifted polyps",
            "dyed resection margins",
            "esophagitis",
            "normal cecum",
            "normal pylorus",
            "normal z line",
            "polyps",
            "ulcerative colitis",
        ),
        (2000, 800, 1200),
    ),
    "RETINA": (
        ("diabetic retinopathy", "glaucoma", "cataract", "normal retina"),
        (2108, 841, 1268),
    ),
}


@pytest.mark.shared
@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_an_official_split_is_read_with_its_classes_and_counts(shared, tmp_path, name):
    path = shared / "splits" / f"split_{name}.json"
    dataset = read_dataset(path, root=tmp_path)
    names, counts = OFFICIAL[name]
    assert dataset.names == names
    split_counts = Counter(case.split for case in dataset.cases)
    assert tuple(split_counts[split] for split in ("train", "val", "test")) == counts
    # The folder says the class too: a second, independent witness of each label.
    for case in dataset.cases:
        folder = case.image.file.relative_to(tmp_path).parts[0]
        assert folder.replace("_", " ").lower() == names[case.target].lower()


@pytest.mark.shared
def test_the_official_order_decides_base_and_novel(shared, tmp_path):
    dataset = read_dataset(shared / "splits" / "split_RETINA.json", root=tmp_path)
    base, novel = base_and_novel(dataset.names)
    assert [dataset.names[label] for label in base] == ["diabetic retinopathy", "glaucoma"]
    assert [dataset.names[label] for label in novel] == ["cataract", "normal retina"]
