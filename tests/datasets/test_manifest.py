from __future__ import annotations

import csv
import os
import shutil
import unicodedata
from dataclasses import replace
from pathlib import Path, PureWindowsPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ogkd.datasets.manifest import Manifest

from ogkd.datasets.read import read_manifest, require_files
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef
from tiny_data import item_of, write_dataset, write_image


def table(folder: Path, text: str, *, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_text(text, encoding=encoding)
    return path


def refusal(source: Path) -> str:
    with pytest.raises(DataError) as error:
        read_manifest(source)
    return str(error.value)


def test_class_folders_become_sorted_names_and_labels(tmp_path):
    write_dataset(tmp_path, ["normal lung", "benign tumor"], {"": 2})
    found = read_manifest(tmp_path)
    assert found.class_names == ("benign tumor", "normal lung")
    assert [(item.image.file.parent.name, item.image.name, item.label) for item in found.items] == [
        ("benign_tumor", "0.png", 0),
        ("benign_tumor", "1.png", 0),
        ("normal_lung", "0.png", 1),
        ("normal_lung", "1.png", 1),
    ]
    assert {item.split for item in found.items} == {""}
    assert not found.has_splits
    assert found.part("test") == list(found.items)


def test_split_folders_give_each_item_its_split(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 3, "val": 1, "test": 2})
    found = read_manifest(str(tmp_path))
    assert [len(found.part(split)) for split in ("train", "val", "test")] == [6, 2, 4]
    assert all(item.image.file.is_relative_to(tmp_path / "val") for item in found.part("val"))


@pytest.mark.parametrize(
    ("train", "test"), [("Training", "Testing"), ("TRAIN", "Test"), ("train", "testing")]
)
def test_other_spellings_of_splits_are_not_taken_for_classes(tmp_path, train, test):
    write_dataset(tmp_path, ["a", "b"], {train: 2, test: 1, "validation": 1})
    found = read_manifest(tmp_path)
    assert found.class_names == ("a", "b")
    assert [len(found.part(split)) for split in ("train", "val", "test")] == [4, 2, 2]
    assert found.part("Validation") == found.part("val")


def test_images_are_found_at_any_depth_and_hidden_ones_passed_over(tmp_path):
    deep = write_image(tmp_path / "a" / "patient 1" / "left" / "x.PNG")
    write_image(tmp_path / "a" / ".thumbnails" / "y.png")
    write_image(tmp_path / ".cache" / "z.png")
    write_image(tmp_path / "loose.png")
    other = write_image(tmp_path / "b" / "x.jpg")
    assert [item.image.file for item in read_manifest(tmp_path).items] == [deep, other]


def test_pictures_in_formats_that_are_not_read_are_counted(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 1})
    for name in ("x.GIF", "deep/y.gif", "z.heic", "notes.txt", ".hidden.gif", ".deep/x.gif"):
        file = tmp_path / "train" / "a" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    ((what, _),) = read_manifest(tmp_path).ignored
    assert what.endswith(": 2 .gif, 1 .heic.")


def test_a_class_may_be_absent_from_a_split(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 1})
    write_image(tmp_path / "test" / "b" / "0.png")
    (tmp_path / "test" / "a").mkdir()
    assert [item.label for item in read_manifest(tmp_path).part("test")] == [1]


def test_an_unknown_split_is_refused_with_those_there_are(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 1, "test": 1})
    with pytest.raises(DataError, match=r"no split 'val'.*has: test, train"):
        read_manifest(tmp_path).part("val")


@pytest.mark.parametrize("classes", [[], ["only"]])
def test_fewer_than_two_classes_are_refused_with_the_layout(tmp_path, classes):
    write_dataset(tmp_path, classes, {"": 1})
    message = refusal(tmp_path)
    assert f"{len(classes)} class folder(s)" in message
    assert f"{tmp_path}/benign/" in message


def test_a_class_folder_without_images_is_named(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"": 1})
    (tmp_path / "no_pictures").mkdir()
    (tmp_path / "no_pictures" / "notes.txt").write_text("x")
    write_image(tmp_path / "only_hidden" / ".a.png")
    message = refusal(tmp_path)
    assert "no_pictures, only_hidden" in message
    assert ".png" in message


@pytest.mark.parametrize("names", [("Cyst", "cyst"), ("kidney_stone", "Kidney stone")])
def test_names_that_differ_only_in_case_or_underscores_are_refused(tmp_path, names):
    write_dataset(tmp_path / "train", [names[0], "x"], {"": 1})
    folder = tmp_path / "test" / names[1]
    write_image(folder / "0.png")
    message = refusal(tmp_path)
    assert "differ only in case" in message
    assert names[0].replace("_", " ") in message


def test_a_name_of_underscores_is_refused(tmp_path):
    write_dataset(tmp_path, ["__", "b"], {"": 1})
    assert "underscores only" in refusal(tmp_path)


def test_what_is_not_there_is_refused(tmp_path):
    assert str(tmp_path / "gone") in refusal(tmp_path / "gone")


def test_a_table_gives_paths_from_its_own_folder(tmp_path):
    absolute = tmp_path / "elsewhere" / "x.png"
    text = (
        " Path ,LABEL,split,patient,note\n"
        f"sub/a.png,benign_tumor,Training,p1,\n\n,,,,\n{absolute},normal,test,,hello\n"
    )
    found = read_manifest(table(tmp_path, "\ufeff" + text))
    assert found.class_names == ("benign tumor", "normal")
    assert found.items == (
        item_of(tmp_path / "sub" / "a.png", 0, "train", "p1"),
        item_of(absolute, 1, "test", None),
    )


def test_a_tab_separated_table_and_short_lines_are_read(tmp_path):
    found = read_manifest(
        table(tmp_path, "path\tlabel\tpatient\na,b.png\tx\ny.png\tz\tp", name="t.tsv")
    )
    assert [(item.image.name, item.group) for item in found.items] == [
        ("a,b.png", None),
        ("y.png", "p"),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has: none"),
        ("file,class\na,b\n", "has: file, class"),
        ("path|label\na|b\n", "has: path|label"),
        ("path,label\n", "no rows"),
        ("path,label\n , \n", "no rows"),
        ("path,label\na,x\nb,x\n", "1 class(es) in its column label"),
        ("path,label\na,x\n\nb,\n", "line 4: label is empty"),
        ("path,label\na,x\nb,  \n", "line 3: label is empty"),
        ("path,label\na,x\n,y\n", "line 3: path is empty"),
        ("path,label\na,x\nb\n", "line 3: label is empty"),
        ("path,label\na,x\nb,c.png,y\n", "line 3: 3 cells, but the header has 2"),
        ("path,label,split\na,x,train\nb,y,\n", "line 3: split is empty"),
        ("path,label\na,x\nb,X\n", "differ only in case"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_with_the_place(tmp_path, text, words):
    message = refusal(table(tmp_path, text))
    assert words in message
    assert "t.csv" in message or "differ" in message


def test_a_table_in_another_encoding_is_refused(tmp_path):
    path = table(tmp_path, "path,label\na,zyste\nb,gesch\xe4digt\n", encoding="latin-1")
    assert "UTF-8" in refusal(path)


def test_a_picture_given_as_a_table_is_refused(tmp_path):
    assert "UTF-8" in refusal(write_image(tmp_path / "a.png"))


def test_a_root_moves_the_paths_of_tables_and_split_files(tmp_path):
    (tmp_path / "pictures").mkdir()
    (tmp_path / "t.csv").write_text("path,label\na.png,x\nb.png,y\n")
    (tmp_path / "s.json").write_text('{"train": [["a.png", 0, "x"], ["b.png", 1, "y"]]}')
    for name in ("t.csv", "s.json"):
        found = read_manifest(tmp_path / name, root=tmp_path / "pictures")
        assert [item.image.file for item in found.items] == [
            tmp_path / "pictures" / "a.png",
            tmp_path / "pictures" / "b.png",
        ]
        with pytest.raises(DataError, match="given as root"):
            read_manifest(tmp_path / name, root=tmp_path / "gone")


def test_a_root_is_refused_where_it_means_nothing(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"": 1})
    with pytest.raises(ConfigError, match="root is only for tables"):
        read_manifest(tmp_path, root=tmp_path)


def test_a_class_list_gives_the_order_of_folders(tmp_path):
    write_dataset(tmp_path, ["a_tumor", "b"], {"": 1})
    found = read_manifest(tmp_path, class_names=["B", "c", "a tumor"])
    assert found.class_names == ("B", "c", "a tumor")
    assert [(item.image.file.parent.name, item.label) for item in found.items] == [
        ("a_tumor", 2),
        ("b", 0),
    ]


def test_a_folder_outside_the_class_list_is_refused(tmp_path):
    write_dataset(tmp_path, ["a", "b", "docs"], {"": 1})
    with pytest.raises(DataError, match=r"outside the class list: docs\. The classes are: a, b\."):
        read_manifest(tmp_path, class_names=["a", "b"])


def test_one_folder_around_everything_is_pointed_out(tmp_path):
    write_dataset(tmp_path / "archive", ["a", "b"], {"": 1})
    assert f"did you mean {tmp_path / 'archive'}?" in refusal(tmp_path)


def test_a_name_in_two_forms_of_the_same_letters_is_one_name(tmp_path):
    write_image(tmp_path / "train" / "l\u00e9sion" / "0.png")
    write_image(tmp_path / "train" / "x" / "0.png")
    write_image(tmp_path / "test" / "le\u0301sion" / "0.png")
    if len({path.name for path in tmp_path.glob("*/l*")}) == 1:
        pytest.skip("this file system makes the two forms one")
    assert "differ only in case" in refusal(tmp_path)


def test_a_missing_file_is_named_once_however_many_of_its_images_are_used(tmp_path):
    rows = [item_of(tmp_path / f"gone.npz#train/{row}", 0) for row in range(3)]
    with pytest.raises(DataError, match=r"^1 file\(s\)") as error:
        require_files(rows)
    assert "gone.npz\n" in str(error.value)
    (tmp_path / "gone.npz").write_bytes(b"x")
    require_files(rows)


def test_all_missing_files_are_named_at_once(tmp_path):
    here = item_of(write_image(tmp_path / "here.png"), 0)
    gone = [item_of(tmp_path / f"gone{number:02}.png", 0) for number in range(22)]
    require_files([here])
    with pytest.raises(DataError) as error:
        require_files([here, *gone])
    message = str(error.value)
    assert message.startswith("22 file(s)")
    assert all(f"gone{number:02}.png" in message for number in range(20))
    assert "... and 2 more" in message
    assert "here.png" not in message


words = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=8)


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
        words.filter(clean), min_size=4, max_size=4, unique_by=lambda name: clean(name).casefold()
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
        assert "at least 2" in refusal(folder / "t.csv")
        return
    found = read_manifest(folder / "t.csv")
    assert isinstance(found, Manifest)
    assert [
        (Path(str(item.image)), found.class_names[item.label], item.split) for item in found.items
    ] == [(folder / path, clean(names[label]), split) for path, label, split in rows]
    assert list(found.class_names) == [
        clean(name) for name in sorted({names[label] for _, label, _ in rows})
    ]


def small(root="/data", **change):
    items = [
        item_of(f"{root}/{split}/{label}/{number}.png", label, split)
        for split in ("train", "test")
        for label in (1, 0, 2)
        for number in range(3)
    ]
    first = replace(items[0], **change)
    return Manifest((first, *items[1:]), ("cyst", "stone", "tumor"))


def test_the_digest_is_of_the_table_whatever_its_order_and_place():
    manifest = small()
    digest = manifest.sha256
    assert digest == Manifest(manifest.items[::-1], manifest.class_names).sha256
    assert digest == small(root="/else/where").sha256
    others = [
        Manifest(manifest.items[1:], manifest.class_names),
        Manifest(manifest.items, ("cyst", "stone", "other")),
        small(label=2),
        small(split="test"),
        small(group="p"),
        small(image=ImageRef(Path("/data/train/1/x.png"))),
    ]
    digests = {other.sha256 for other in others}
    assert len(digests) == 6
    assert digest not in digests


@pytest.mark.parametrize("name", ["trian", "tset", "traning", "vaidation", "tests"])
def test_a_misspelt_split_stops_the_reading(tmp_path, name):
    lines = "\n".join(f"{i}.png,{'ab'[i % 2]},{name if i > 5 else 'train'}" for i in range(8))
    (tmp_path / "t.csv").write_text(f"path,label,split\n{lines}\n")
    with pytest.raises(DataError, match=f"line 8: the split is '{name}'. Is it '"):
        read_manifest(tmp_path / "t.csv")


def test_a_split_of_another_name_is_not_a_misspelling(tmp_path):
    (tmp_path / "t.csv").write_text("path,label,split\na.png,a,test2\nb.png,b,external\n")
    assert {item.split for item in read_manifest(tmp_path / "t.csv").items} == {"test2", "external"}


@pytest.mark.parametrize("name", ["tset", "holdout"])
def test_a_folder_that_is_meant_as_a_split_is_not_left_out(tmp_path, name):
    write_dataset(tmp_path, splits={"train": 2, name: 2})
    with pytest.raises(DataError, match=f"'{name}', which is not the name of a split"):
        read_manifest(tmp_path)
    shutil.rmtree(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert read_manifest(tmp_path).has_splits


@pytest.mark.parametrize("label", ["nan", "NaN", "<NA>", "null"])
def test_an_empty_cell_of_another_program_is_not_a_class(tmp_path, label):
    (tmp_path / "t.csv").write_text(f"path,label\na.png,a\nb.png,b\nc.png,{label}\n")
    with pytest.raises(DataError, match=f"line 4: the label is '{label}'"):
        read_manifest(tmp_path / "t.csv")
