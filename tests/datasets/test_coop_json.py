from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import base_and_novel
from ogkd.errors import DataError
from tiny_data import item_of

GOOD = {
    "train": [["b/1.png", 1, "stone"], ["a/1.png", 0, "cyst"]],
    "val": [["a/2 ä.png", 0, "cyst"]],
    "test": [["b/2.png", 1, "stone"]],
}


def write(folder: Path, content: Any) -> Path:
    path = folder / "split.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(DataError) as error:
        read_manifest(path, **options)
    return str(error.value)


def test_a_split_file_is_read_in_its_own_order(tmp_path):
    found = read_manifest(write(tmp_path, GOOD))
    assert found.class_names == ("cyst", "stone")
    assert found.items == (
        item_of(tmp_path / "b" / "1.png", 1, "train"),
        item_of(tmp_path / "a" / "1.png", 0, "train"),
        item_of(tmp_path / "a" / "2 ä.png", 0, "val"),
        item_of(tmp_path / "b" / "2.png", 1, "test"),
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "not a split file"),
        ({}, "not a split file"),
        ({"cyst": ["a text"], "stone": ["a text"]}, "it has the parts cyst, stone"),
        ({"train": [], "Training": []}, "it has the parts train, Training"),
        ({"train": []}, "no images"),
        ({"train": {"a": 1}}, "'train' is not a list"),
        ({"train": ["a.png"]}, "train[0]: not [path, label, class name] but 'a.png'"),
        ({"train": [["a.png", 0]]}, "train[0]: not [path"),
        ({"train": [["a.png", 0, "x", 1]]}, "train[0]: not [path"),
        ({"train": [[5, 0, "x"]]}, "the path must be text, but is 5"),
        ({"train": [[" ", 0, "x"]]}, "the path must be text"),
        ({"train": [["a", "0", "x"]]}, "the label must be a whole number from 0 on, but is '0'"),
        ({"train": [["a", 0.0, "x"]]}, "the label must be"),
        ({"train": [["a", True, "x"]]}, "the label must be"),
        ({"train": [["a", -1, "x"]]}, "the label must be"),
        ({"train": [["a", 0, None]]}, "the class name must be text, but is None"),
        ({"train": [["a", 0, "x"], ["b", 0, "y"]]}, "label 0 is 'y' here, but 'x' before"),
        ({"train": [["a", 0, "x"]], "test": [["b", 0, "y"]]}, "test[0]: label 0 is 'y'"),
        ({"train": [["a", 0, "x"], ["b", 1, "X"]]}, "differ only in case"),
        ({"train": [["a", 0, "x"], ["b", 1, " "]]}, "underscores only"),
        ({"train": [["a", 0, "x"]]}, "1 class(es)"),
        ({"train": [["a", 0, "x"], ["b", 2, "y"]]}, "none with label 1"),
        ({"train": [["a", 0, "x"], ["b", 10**30, "y"]]}, "none with label 1"),
        ({"train": [["a", 0, "x"], ["./a", 1, "y"]]}, "train[0] and train[1], with another label"),
        (
            {"train": [["a", 0, "x"], ["b", 1, "y"]], "test": [["a", 0, "x"]]},
            "train[0] and test[0]",
        ),
    ],
)
def test_what_is_not_a_split_file_is_refused_with_the_place(tmp_path, content, words):
    assert words in refusal(write(tmp_path, content))


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
    message = refusal(write(tmp_path, {"train": [[name, 0, "x"], ["b", 1, "y"]]}))
    assert "leaves the data folder" in message
    assert "train[0]" in message


def test_names_with_dots_are_no_way_out(tmp_path):
    rows = [["..a/x..png", 0, "x"], ["b...png", 1, "y"]]
    assert len(read_manifest(write(tmp_path, {"train": rows})).items) == 2


def test_a_class_list_must_agree_with_the_file(tmp_path):
    path = write(tmp_path, GOOD)
    assert read_manifest(path, class_names=["cyst", "stone"]).class_names == ("cyst", "stone")
    assert "in the file's order" in refusal(path, class_names=["stone", "cyst"])
    assert "in the file's order" in refusal(path, class_names=["cyst", "stone", "tumor"])
    assert "outside the class list: stone" in refusal(path, class_names=["cyst", "tumor"])


def test_another_encoding_is_refused(tmp_path):
    path = tmp_path / "split.json"
    path.write_bytes('{"train": [["ä", 0, "x"]]}'.encode("latin-1"))
    assert "not JSON in UTF-8" in refusal(path)


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=4) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
rows = st.lists(
    st.tuples(st.text(max_size=5), st.integers(-1, 2), st.sampled_from(["x", "y", "X", ""]))
    | values,
    max_size=5,
)


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
    found = read_manifest(path, root=tmp_path)
    names, counts = OFFICIAL[name]
    assert found.class_names == names
    split_counts = Counter(item.split for item in found.items)
    assert tuple(split_counts[split] for split in ("train", "val", "test")) == counts
    # The folder says the class too: a second, independent witness of each label.
    for item in found.items:
        folder = item.image.file.relative_to(tmp_path).parts[0]
        assert folder.replace("_", " ").lower() == names[item.label].lower()


@pytest.mark.shared
def test_the_official_order_decides_base_and_novel(shared, tmp_path):
    found = read_manifest(shared / "splits" / "split_RETINA.json", root=tmp_path)
    base, novel = base_and_novel(found.class_names)
    assert [found.class_names[label] for label in base] == ["diabetic retinopathy", "glaucoma"]
    assert [found.class_names[label] for label in novel] == ["cataract", "normal retina"]
