"""Datasets as folders and tables are read, what makes a dataset the same, and missing files."""

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

from ogkd.data.case import Case, Dataset, case_numbers, image_targets, require_files
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef
from tiny_data import case_of, rows_of, write_dataset, write_image


def table(folder: Path, text: str, *, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_text(text, encoding=encoding)
    return path


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
    dataset = read_dataset(str(tmp_path))
    assert dataset.names == ("a", "b")
    assert [len(dataset.part(split)) for split in ("train", "val", "test")] == [4, 2, 2]
    assert dataset.part("Validation") == dataset.part("val")
    assert all(c.image.file.is_relative_to(tmp_path / test) for c in dataset.part("test"))
    with pytest.raises(DataError) as error:
        dataset.part("holdout")
    assert error.value.argument == "split"


def test_images_are_found_at_any_depth_and_hidden_ones_passed_over(tmp_path):
    deep = write_image(tmp_path / "a" / "patient 1" / "left" / "x.PNG")
    write_image(tmp_path / "a" / ".thumbnails" / "y.png")
    write_image(tmp_path / ".cache" / "z.png")
    write_image(tmp_path / "loose.png")
    other = write_image(tmp_path / "b" / "x.jpg")
    assert [image.file for image in read_dataset(tmp_path).images] == [deep, other]


def test_files_in_formats_that_are_not_read_are_counted(tmp_path):
    write_dataset(tmp_path, ["a", "b"], {"train": 1})
    for name in ("x.GIF", "deep/y.gif", "z.heic", "notes.txt", ".hidden.gif", ".deep/x.gif"):
        file = tmp_path / "train" / "a" / name
        file.parent.mkdir(exist_ok=True)
        file.touch()
    ((what, _),) = read_dataset(tmp_path).ignored
    assert what.endswith(": 2 .gif, 1 .heic.")


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
        ["__/0.png", "b/0.png"],
        ["train/a/0.png", "train/b/0.png", "tset/a/0.png", "tset/b/0.png"],
        ["train/a/0.png", "train/b/0.png", "holdout/a/0.png"],
    ],
)
def test_folders_that_cannot_be_read_as_classes_are_refused(tmp_path, files):
    for name in files:
        write_image((tmp_path / name).with_suffix(".png")).rename(tmp_path / name)
    with pytest.raises(DataError):
        read_dataset(tmp_path)


def test_a_folder_beside_the_splits_that_is_not_meant_as_one_is_passed_over(tmp_path):
    write_dataset(tmp_path, splits={"train": 2})
    (tmp_path / "notes").mkdir()
    assert read_dataset(tmp_path).has_splits


def test_a_name_in_two_forms_of_the_same_letters_is_one_name(tmp_path):
    write_image(tmp_path / "train" / "l\u00e9sion" / "0.png")
    write_image(tmp_path / "train" / "x" / "0.png")
    write_image(tmp_path / "test" / "le\u0301sion" / "0.png")
    if len({path.name for path in tmp_path.glob("*/l*")}) == 1:
        pytest.skip("this file system makes the two forms one")
    with pytest.raises(DataError):
        read_dataset(tmp_path)


def test_a_table_gives_paths_from_its_own_folder(tmp_path):
    absolute = tmp_path / "elsewhere" / "x.png"
    text = (
        " Path ,LABEL,split,patient,note\n"
        f"sub/a.png,benign_tumor,Training,p1,\n\n,,,,\n{absolute},normal,test,,hello\n"
    )
    dataset = read_dataset(table(tmp_path, "\ufeff" + text))
    assert dataset.names == ("benign tumor", "normal")
    assert rows_of(dataset.cases) == [
        (str(tmp_path / "sub" / "a.png"), 0, "train", "p1"),
        (str(absolute), 1, "test", None),
    ]
    assert [case.columns["note"] for case in dataset.cases] == ["", "hello"]


def test_a_tab_separated_table_and_short_lines_are_read(tmp_path):
    text = "path\tlabel\tpatient\na,b.png\tx\ny.png\tz\tp"
    cases = read_dataset(table(tmp_path, text, name="t.tsv")).cases
    assert [(case.image.name, case.group) for case in cases] == [("a,b.png", None), ("y.png", "p")]


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
    ],
)
def test_a_table_that_cannot_be_used_is_refused(tmp_path, text):
    with pytest.raises(DataError):
        read_dataset(table(tmp_path, text))


def test_a_split_of_another_name_is_not_a_misspelling(tmp_path):
    dataset = read_dataset(table(tmp_path, "path,label,split\na,a,test2\nb,b,external\n"))
    assert dataset.splits == ["test2", "external"]


def test_what_is_not_a_dataset_is_refused(tmp_path):
    latin = table(tmp_path, "path,label\na,zyste\nb,gesch\xe4digt\n", encoding="latin-1")
    for source in (tmp_path / "gone", write_image(tmp_path / "a.png"), latin):
        with pytest.raises(DataError):
            read_dataset(source)


def test_a_root_moves_the_paths_of_tables_and_split_files(tmp_path):
    root = tmp_path / "images"
    root.mkdir()
    table(tmp_path, "path,label\na.png,x\nb.png,y\n")
    table(tmp_path, '{"train": [["a.png", 0, "x"], ["b.png", 1, "y"]]}', name="s.json")
    for name in ("t.csv", "s.json"):
        dataset = read_dataset(tmp_path / name, root=root)
        assert [image.file for image in dataset.images] == [root / "a.png", root / "b.png"]
        with pytest.raises(DataError):
            read_dataset(tmp_path / name, root=tmp_path / "gone")
    with pytest.raises(ConfigError):
        read_dataset(write_dataset(tmp_path / "folders", ["a", "b"], {"": 1}), root=root)


def test_a_class_list_gives_the_order_of_folders(tmp_path):
    write_dataset(tmp_path, ["a_tumor", "b"], {"": 1})
    dataset = read_dataset(tmp_path, class_names=["B", "c", "a tumor"])
    assert dataset.names == ("B", "c", "a tumor")
    assert [(case.image.file.parent.name, case.target) for case in dataset.cases] == [
        ("a_tumor", 2),
        ("b", 0),
    ]
    with pytest.raises(DataError):
        read_dataset(tmp_path, class_names=["b", "c"])


def test_all_missing_files_are_named_at_once_and_each_once(tmp_path):
    here = case_of(write_image(tmp_path / "here.png"), 0)
    rows = [case_of(tmp_path / f"gone.npz#train/{row}", 0) for row in range(3)]
    gone = [case_of(tmp_path / f"gone{number:02}.png", 0) for number in range(21)]
    require_files([here])
    with pytest.raises(DataError) as error:
        require_files([here, *rows, *gone])
    message = str(error.value)
    assert message.startswith("22 file(s)")
    assert message.count("gone.npz") == 1
    assert all(f"gone{number:02}.png" in message for number in range(19))
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
        with pytest.raises(DataError):
            read_dataset(folder / "t.csv")
        return
    dataset = read_dataset(folder / "t.csv")
    assert [
        (Path(str(case.image)), dataset.task.text(case.target), case.split)
        for case in dataset.cases
    ] == [(folder / path, clean(names[label]), split) for path, label, split in rows]
    assert list(dataset.names) == [
        clean(name) for name in sorted({names[label] for _, label, _ in rows})
    ]


def small(root="/data", **change):
    cases = [
        case_of(f"{root}/{split}/{label}/{number}.png", label, split)
        for split in ("train", "test")
        for label in (1, 0, 2)
        for number in range(3)
    ]
    first = replace(cases[0], **change)
    return Dataset((first, *cases[1:]), OneOf(("cyst", "stone", "tumor")))


def test_the_digest_is_of_the_table_whatever_its_order_and_folder():
    dataset = small()
    assert dataset.sha256 == dataset.with_cases(dataset.cases[::-1]).sha256
    assert dataset.sha256 == small(root="/else/where").sha256
    others = [
        dataset.with_cases(dataset.cases[1:]),
        Dataset(dataset.cases, OneOf(("cyst", "stone", "other"))),
        small(target=2),
        small(split="test"),
        small(group="p"),
        small(images=(ImageRef(Path("/data/train/1/x.png")),)),
    ]
    digests = {other.sha256 for other in others}
    assert len(digests) == 6
    assert dataset.sha256 not in digests


def three(name: str, count: int, **fields: object) -> Case:
    images = tuple(ImageRef(Path(f"{name}-{n}.png")) for n in range(count))
    return Case(name, images, 1, **fields)  # type: ignore[arg-type]


def test_images_know_the_number_of_their_case_and_its_label_unless_only_cases_have_one():
    cases = [three("a", 2, image_targets=(0, 1)), three("b", 1), three("c", 1)]
    assert case_numbers(cases).tolist() == [0, 0, 1, 2]
    assert image_targets(cases) == [0, 1, 1, 1]
    assert image_targets([*cases, three("d", 3)]) is None


def test_a_case_loses_images_with_their_targets_but_never_all_unless_asked():
    case = three("a", 3, image_targets=(0, 1, 2))
    kept = case.without([case.images[1]])
    assert kept is not None
    assert (kept.images, kept.image_targets) == ((case.images[0], case.images[2]), (0, 2))
    assert case.without(()) is case
    assert case.without(case.images) is case
    assert case.without(case.images, empty=True) is None


def test_a_few_images_of_a_case_are_evenly_spaced():
    assert [image.name for image in three("a", 20).few] == [
        f"a-{n}.png" for n in (1, 3, 6, 8, 11, 13, 16, 18)
    ]
    assert three("a", 8).few == three("a", 8).images


def test_a_case_is_recognised_by_the_content_of_an_image_or_by_its_pixels(tmp_path):
    paths = [write_image(tmp_path / f"{n}.png", n) for n in range(3)]
    case = Case("a", tuple(map(ImageRef, paths)))
    alone = Case.single(ImageRef(paths[0]))
    assert alone.fingerprint == alone.image.fingerprint
    assert replace(case, images=case.images[::-1]).fingerprint == case.fingerprint
    assert case.fingerprint != alone.fingerprint
    assert case.is_among(alone.marks)
    assert alone.is_among({alone.image.pixel_fingerprint})
    assert not alone.is_among(Case.single(ImageRef(paths[1])).marks)
    copy = shutil.copy(paths[0], tmp_path / "copy.png")
    assert case_of(copy, 0).is_among(case.marks)
