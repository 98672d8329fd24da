"""Every layout that a dataset may have, and what is refused in it."""

from __future__ import annotations

import csv
import json
import os
import pickle
import unicodedata
import zipfile
from pathlib import Path, PureWindowsPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from tiny_data import case_of, rows_of, write_dataset, write_image


def refuse(source: Path, **options: Any) -> None:
    with pytest.raises(DataError):
        read_dataset(source, **options)


# Folders


def test_class_folders_become_sorted_names_and_labels(tmp_path):
    write_dataset(tmp_path, ["normal lung", "benign tumor"], {"": 2})
    dataset = read_dataset(tmp_path)
    assert dataset.names == ("benign tumor", "normal lung")
    assert [(c.image.file.parent.name, c.image.name, c.target) for c in dataset.cases] == [
        ("benign_tumor", "0.png", 0),
        ("benign_tumor", "1.png", 0),
        ("normal_lung", "0.png", 1),
        ("normal_lung", "1.png", 1),
    ]
    assert dataset.splits == [""]
    assert not dataset.has_splits
    assert dataset.part("test") == list(dataset.cases)


@pytest.mark.parametrize(
    ("train", "test"), [("train", "test"), ("Training", "Testing"), ("TRAIN", "testing")]
)
def test_split_folders_give_each_case_its_split_however_they_are_spelt(tmp_path, train, test):
    write_dataset(tmp_path, ["a", "b"], {train: 2, test: 1, "validation": 1})
    (tmp_path / "notes").mkdir()  # not meant as a split
    dataset = read_dataset(str(tmp_path))
    assert dataset.names == ("a", "b")
    assert [len(dataset.part(split)) for split in ("train", "val", "test")] == [4, 2, 2]
    assert dataset.part("Validation") == dataset.part("val")
    assert all(c.image.file.is_relative_to(tmp_path / test) for c in dataset.part("test"))
    with pytest.raises(DataError) as error:
        dataset.part("holdout")
    assert error.value.argument == "split"


def test_images_are_found_at_any_depth_hidden_ones_passed_over_and_other_formats_counted(tmp_path):
    deep = write_image(tmp_path / "a" / "patient 1" / "left" / "x.PNG")
    write_image(tmp_path / "a" / ".thumbnails" / "y.png")
    write_image(tmp_path / ".cache" / "z.png")
    write_image(tmp_path / "loose.png")
    other = write_image(tmp_path / "b" / "x.jpg")
    for name in ("x.GIF", "deep/y.gif", "z.heic", "notes.txt", ".hidden.gif", ".deep/x.gif"):
        file = tmp_path / "a" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    dataset = read_dataset(tmp_path)
    assert [image.file for image in dataset.images] == [deep, other]
    assert dataset.ignored[0][0].endswith(": 2 .gif, 1 .heic.")


def test_a_class_may_be_absent_from_a_split(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 1})
    write_image(tmp_path / "test" / "b" / "0.png")
    (tmp_path / "test" / "a").mkdir()
    assert [case.target for case in read_dataset(tmp_path).part("test")] == [1]


@pytest.mark.parametrize(
    "files",
    [
        [],
        ["only/0.png"],
        ["archive/a/0.png", "archive/b/0.png"],  # one folder around everything
        ["a/0.png", "b/0.png", "no_images/notes.txt"],
        ["a/0.png", "b/0.png", "only_hidden/.a.png"],
        ["train/Cyst/0.png", "train/x/0.png", "test/cyst/0.png"],
        ["train/kidney_stone/0.png", "train/x/0.png", "test/Kidney stone/0.png"],
        ["train/l\u00e9sion/0.png", "train/x/0.png", "test/le\u0301sion/0.png"],
        ["__/0.png", "b/0.png"],
        ["train/a/0.png", "train/b/0.png", "tset/a/0.png", "tset/b/0.png"],
        ["train/a/0.png", "train/b/0.png", "holdout/a/0.png"],
    ],
)
def test_folders_that_cannot_be_read_as_classes_are_refused(tmp_path, files):
    for name in files:
        write_image((tmp_path / name).with_suffix(".png")).rename(tmp_path / name)
    refuse(tmp_path)


def test_a_class_list_gives_the_order_of_folders(tmp_path):
    write_dataset(tmp_path, ["a_tumor", "b"], {"": 1})
    dataset = read_dataset(tmp_path, class_names=["B", "c", "a tumor"])
    assert dataset.names == ("B", "c", "a tumor")
    assert [(case.image.file.parent.name, case.target) for case in dataset.cases] == [
        ("a_tumor", 2),
        ("b", 0),
    ]
    refuse(tmp_path, class_names=["b", "c"])


# Tables


def table(folder: Path, text: str, *, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize(("encoding", "newline"), [("utf-8", "\n"), ("utf-8-sig", "\r\n")])
@pytest.mark.parametrize("column", ["patient", "Lesion", "group_id"])
def test_tables_of_any_spreadsheet_are_read(tmp_path, delimiter, encoding, newline, column):
    """Paths count from the table's folder; cells may be quoted, and lines blank or short."""
    absolute = tmp_path / "elsewhere" / "x.png"
    lines = [
        [" Path ", "LABEL", "split", column, "note"],
        ["../a b/ä.png", '"größer, left;right"', "Training", "p1", ""],
        [""],
        ["", "", "", "", ""],
        [str(absolute), "benign_tumor", "test2", "", "hello"],  # not a misspelt split
        ["c.png", "kleiner", "test"],
    ]
    text = newline.join(map(delimiter.join, lines))
    dataset = read_dataset(table(tmp_path, text, encoding=encoding))
    assert dataset.names == ("benign tumor", "größer, left;right", "kleiner")
    assert rows_of(dataset.cases) == [
        (str(tmp_path / ".." / "a b" / "ä.png"), 1, "train", "p1"),
        (str(absolute), 0, "test2", None),
        (str(tmp_path / "c.png"), 2, "test", None),
    ]
    assert [case.columns["note"] for case in dataset.cases] == ["", "hello", ""]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "file,class\na,b\n",
        "path|label\na|b\n",
        "path,label\n",
        "path,label\n , \n",
        "path,label\na,x\nb,x\n",
        "path,label\na,x\n\nb,\n",
        "path,label\na,x\nb,  \n",
        "path,label\na,x\n,y\n",
        "path,label\na,x\nb\n",
        "path,label\na,x\nb,c.png,y\n",
        "path,label,split\na,x,train\nb,y,\n",
        "path,label\na,x\nb,X\n",
        *(f"path,label\na,x\nb,y\nc,{empty}\n" for empty in ("nan", "NaN", "<NA>", "null")),
        *(f"path,label,split\na,x,train\nb,y,{near}\n" for near in ("trian", "tset", "tests")),
        "path,label,patient,lesion\na,x,1,2\nb,y,1,2\n",
        *(
            f"path,label,split,patient,{column}\na,x,train,1,b\nb,y,train,2,c\n"
            for column in ("path", "label", "split", "patient")
        ),
        "path,label\na.png,x\na.png,x\nb.png,y\n",
        "path,label\na.png,x\n./sub/../a.png,y\nb.png,y\n",
        "path,label\na\0b,x\nb,y\n",
        'path,label\n"a,x\n' + "b,y\n" * 50_000,
        "Datei;Diagnose;Patient\na.png;x;1\n",
        "PK\x03\x04 a spreadsheet",
        "path,label\nC:\\Users\\a.png,x\nb,y\n",
        "path,label\nD:/a.png,x\nb,y\n",
        "path,label\n\\\\server\\share\\a.png,x\nb,y\n",
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, text):
    refuse(table(tmp_path, text))


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_a_split_file_in_another_encoding_is_refused(tmp_path, encoding):
    refuse(table(tmp_path, '{"train": [["ä", 0, "x"]]}', name="s.json", encoding=encoding))


def test_slices_of_one_volume_are_one_group_unless_the_patient_is_known(tmp_path):
    paths = ["v.nii.gz#axis=2,index=3", "v.nii.gz#axis=2,index=9", "w.dcm#index=1", "w.dcm"]
    text = "\n".join(["path;label", *(f"{row};{'xy'[n % 2]}" for n, row in enumerate(paths))])
    groups = [case.group for case in read_dataset(table(tmp_path, text)).cases]
    assert groups == ["v.nii.gz", "v.nii.gz", "w.dcm", None]
    text = "path,label,patient\nv.dcm#index=3,x,p\nw.dcm#index=3,y,p\n"
    assert {case.group for case in read_dataset(table(tmp_path, text)).cases} == {"p"}


def test_a_class_list_gives_the_labels_of_a_table(tmp_path):
    path = table(tmp_path, "path,label\na,Normal_Lung\nb,cyst\nc,2\n")
    dataset = read_dataset(path, class_names=["cyst", "tumor", "normal lung"])
    assert dataset.names == ("cyst", "tumor", "normal lung")
    assert [case.target for case in dataset.cases] == [2, 0, 2]
    refuse(path, class_names=["cyst", "tumor"])


def test_a_table_from_windows_finds_its_files(tmp_path):
    (tmp_path / "left eye").mkdir()
    (tmp_path / "left eye" / "a.png").touch()
    text = "path,label\nleft eye\\a.png,x\nleft eye\\absent.png,y\n"
    first, second = read_dataset(table(tmp_path, text)).cases
    assert first.image.file == tmp_path / "left eye" / "a.png"
    assert second.image.file == tmp_path / "left eye\\absent.png"  # as written, for the message


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)


EMPTY = ("", "nan", "null", "#n/a")  # read as an empty cell


def clean(name: str) -> str:
    return " ".join(unicodedata.normalize("NFC", name.replace("_", " ")).split())


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            words.filter(lambda path: not PureWindowsPath(path).drive),
            st.integers(0, 3),
            st.sampled_from(["train", "test"]),
        ),
        min_size=1,
        unique_by=lambda row: os.path.normpath(f"/x/{row[0]}"),
    ),
    names=st.lists(
        words.filter(lambda name: clean(name).casefold() not in EMPTY),
        min_size=4,
        max_size=4,
        unique_by=lambda name: clean(name).casefold(),
    ),
    delimiter=st.sampled_from(",;\t"),
)
def test_whatever_a_table_says_is_read_back(tmp_path_factory, rows, names, delimiter):
    folder = tmp_path_factory.mktemp("table")
    with (folder / "t.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(["label", "split", "path"])
        writer.writerows([names[label], split, path] for path, label, split in rows)
    if len({label for _, label, _ in rows}) < 2:
        refuse(folder / "t.csv")
        return
    dataset = read_dataset(folder / "t.csv")
    assert [
        (Path(str(case.image)), dataset.task.text(case.target), case.split)
        for case in dataset.cases
    ] == [(folder / path, clean(names[label]), split) for path, label, split in rows]
    assert list(dataset.names) == [
        clean(name) for name in sorted({names[label] for _, label, _ in rows})
    ]


# Split files

SPLIT = {
    "train": [["b/1.png", 1, "stone"], ["a/1.png", 0, "cyst"]],
    "val": [["a/2 ä.png", 0, "cyst"], ["..a/x..png", 1, "stone"]],
    "test": [["b/2.png", 1, "stone"]],
}


def split_file(folder: Path, content: Any) -> Path:
    return table(
        folder, content if isinstance(content, str) else json.dumps(content), name="s.json"
    )


def test_a_split_file_is_read_in_its_own_order(tmp_path):
    path = split_file(tmp_path, SPLIT)
    dataset = read_dataset(path)
    assert dataset.names == ("cyst", "stone")
    assert dataset.cases == tuple(
        case_of(tmp_path / name, label, split)
        for split, rows in SPLIT.items()
        for name, label, _ in rows
    )
    assert read_dataset(path, class_names=["cyst", "stone"]).names == ("cyst", "stone")
    for names in (["stone", "cyst"], ["cyst", "stone", "tumor"], ["cyst", "tumor"]):
        refuse(path, class_names=names)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[" * 100_000,
        [],
        {},
        {"cyst": ["a text"], "stone": ["a text"]},
        {"train": [["a", 0, "x"]], "Training": [["b", 1, "y"]]},
        {"train": []},
        {"train": {"a": 1}},
        *({"train": [row, ["b", 1, "y"]]} for row in (
            "a.png", ["a", 0], ["a", 0, "x", 1], [5, 0, "x"], ["", 0, "x"], ["a", "0", "x"],
            ["a", 0.0, "x"], ["a", True, "x"], ["a", -1, "x"], ["a", 0, None], ["a", 0, "Y"],
            ["a", 0, " "], ["a", 1, "x"], ["a", 2, "x"], ["a", 10**30, "x"], ["./b", 0, "x"],
            ["/etc/passwd", 0, "x"], ["../x.png", 0, "x"], ["a/../../x.png", 0, "x"],
            ["a/..", 0, "x"], ["..\\x.png", 0, "x"], ["C:\\x.png", 0, "x"],
            ["\\\\host\\x", 0, "x"], ["a\0b", 0, "x"],
        )),
        {"train": [["a", 0, "x"]]},
        {"train": [["a", 0, "x"], ["b", 1, "y"]], "test": [["a", 0, "x"]]},
    ],
)  # fmt: skip
def test_what_is_not_a_split_file_or_leaves_its_folder_is_refused(tmp_path, content):
    refuse(split_file(tmp_path, content))


def test_a_root_moves_the_paths_of_tables_and_split_files(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    table(tmp_path, "path,label\na.png,x\nb.png,y\n")
    split_file(tmp_path, {"train": [["a.png", 0, "x"], ["b.png", 1, "y"]]})
    for name in ("t.csv", "s.json"):
        dataset = read_dataset(tmp_path / name, root=root)
        assert [image.file for image in dataset.images] == [root / "a.png", root / "b.png"]
        refuse(tmp_path / name, root=tmp_path / "gone")
    folders = write_dataset(tmp_path / "folders", ["a", "b"], {"": 1})
    for options in ({"root": root}, {"findings": ["a"]}):
        with pytest.raises(ConfigError) as error:
            read_dataset(folders, **options)
        assert error.value.argument in options


# MedMNIST archives


def archive(folder: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {}
    for split, labels in (("train", [0, 2, 1, 2]), ("val", [1]), ("test", [2, 0])):
        arrays[f"{split}_images"] = np.zeros((len(labels), 28, 28), np.uint8)
        arrays[f"{split}_labels"] = np.array(labels, np.uint8)[:, None]
    path = folder / "toymnist.npz"
    kept = {name: value for name, value in (arrays | changes).items() if value is not None}
    np.savez_compressed(path, **kept)
    return path


def test_rows_of_an_archive_become_addresses_with_splits_and_labels(tmp_path):
    path = archive(tmp_path)
    dataset = read_dataset(path)
    assert dataset.names == ("class 0", "class 1", "class 2")
    assert [case.target for case in dataset.part("train")] == [0, 2, 1, 2]
    assert dataset.part("test") == [
        case_of(Path(f"{path}#test/0"), 2, "test"),
        case_of(Path(f"{path}#test/1"), 0, "test"),
    ]
    for shape in ((4, 64, 64, 3), (4, 28, 28, 1)):
        images, labels = np.zeros(shape, np.uint8), np.array([0, 1, 1, 0])
        other = read_dataset(archive(tmp_path, train_images=images, train_labels=labels))
        assert [case.target for case in other.part("train")] == [0, 1, 1, 0]
    names = ["basophil", "eosinophil", "platelet", "never seen"]
    assert read_dataset(path, class_names=names).names == tuple(names)
    refuse(path, class_names=["a", "b"])


def test_the_pixels_of_an_archive_are_never_read(tmp_path):
    """Behind the header of the images there is nothing at all, and the labels are still read."""
    path = tmp_path / "huge.npz"
    header = {"descr": "|u1", "fortran_order": False, "shape": (4, 20_000, 20_000)}
    with zipfile.ZipFile(path, "w") as file:
        with file.open("train_images.npy", "w") as entry:
            np.lib.format.write_array_header_1_0(entry, header)
        with file.open("train_labels.npy", "w") as entry:
            np.lib.format.write_array(entry, np.array([[0], [1], [0], [1]]))
    assert len(read_dataset(path).cases) == 4


class Hostile:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("hostile-was-here"),))


@pytest.mark.parametrize(
    "changes",
    [
        {"train_labels": np.zeros((4, 14), np.uint8)},
        {"train_labels": np.zeros((3, 1), np.uint8)},
        {"train_labels": np.zeros((4, 0), np.uint8)},
        {"train_labels": np.uint8(3)},
        {"train_labels": np.zeros((4, 1))},
        {"train_labels": np.array(["a"] * 4)},
        {"train_labels": np.array([[-1], [0], [1], [1]])},
        {"train_labels": np.array([[10**9], [0], [1], [1]])},
        {"test_labels": None},
        {"train_images": np.zeros((4, 28, 28, 28), np.uint8)},
        {"train_images": np.zeros((4, 28), np.uint8)},
        {"train_labels": np.array([Hostile()] * 4)},
        {f"{split}_images": None for split in ("train", "val", "test")},
        {f"{split}_labels": np.zeros((n, 1), int) for split, n in (("train", 4), ("val", 1),
         ("test", 2))},
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit_are_refused(tmp_path, monkeypatch, changes):
    monkeypatch.chdir(tmp_path)
    refuse(archive(tmp_path, **changes))
    assert not Path("hostile-was-here").exists()


def test_what_is_not_a_dataset_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pickled = tmp_path / "x.npz"
    pickled.write_bytes(pickle.dumps(Hostile()))
    for source in (tmp_path / "gone", write_image(tmp_path / "a.png"), pickled):
        refuse(source)
    assert not Path("hostile-was-here").exists()
