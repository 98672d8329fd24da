from __future__ import annotations

import os
from pathlib import Path

import pytest

from ogkd.data.read import read_dataset
from ogkd.errors import DataError
from tiny_data import rows_of


def table(folder: Path, text: str, *, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables_of_any_spreadsheet_are_read(tmp_path, delimiter, encoding, newline):
    lines = ["path,label,split", "a b/ä.png,größer,train", "c.png,kleiner,test", ""]
    text = newline.join(lines).replace(",", delimiter)
    dataset = read_dataset(table(tmp_path, text, encoding=encoding))
    assert dataset.names == ("größer", "kleiner")
    assert rows_of(dataset.cases) == [
        (str(tmp_path / "a b" / "ä.png"), 0, "train", None),
        (str(tmp_path / "c.png"), 1, "test", None),
    ]


def test_a_comma_in_a_semicolon_table_belongs_to_the_value(tmp_path):
    dataset = read_dataset(table(tmp_path, "path;label\na,b.png;x, left\nc.png;y\n"))
    assert dataset.cases[0].image.file == tmp_path / "a,b.png"
    assert dataset.names == ("x, left", "y")


@pytest.mark.parametrize("column", ["patient", "group", "Lesion", "patient_id", "lesion_id"])
def test_the_group_column_has_several_names(tmp_path, column):
    dataset = read_dataset(table(tmp_path, f"path,label,{column}\na,x,p1\nb,y,\n"))
    assert [case.group for case in dataset.cases] == ["p1", None]


@pytest.mark.parametrize(
    "text",
    [
        "path,label,patient,lesion\na,x,1,2\nb,y,1,2\n",
        *(
            f"path,label,split,patient,{column}\na,x,train,1,b\nb,y,train,2,c\n"
            for column in ("path", "label", "split", "patient")
        ),
        "path,label\na.png,x\na.png,x\nb.png,y\n",
        "path,label\na.png,x\na.png,y\nb.png,y\n",
        "path,label\na.png,x\n./sub/../a.png,y\nb.png,y\n",
        "path,label\na\0b,x\nb,y\n",
        'path,label\n"a,x\n' + "b,y\n" * 50_000,
        "Datei;Diagnose;Patient\na.png;x;1\n",
    ],
    ids=range(11),
)
def test_a_table_that_contradicts_itself_or_is_damaged_is_refused_by_name(tmp_path, text):
    path = table(tmp_path, text)
    with pytest.raises(DataError, match=r"t\.csv"):
        read_dataset(path)


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "cp1252"])
def test_another_encoding_is_refused(tmp_path, encoding):
    with pytest.raises(DataError):
        read_dataset(table(tmp_path, "path,label\na,x\nb,größer\n", encoding=encoding))


def test_slices_of_one_volume_are_one_group(tmp_path):
    rows = [
        "v.nii.gz#axis=2,index=3",
        "v.nii.gz#axis=2,index=9",
        "w.dcm#index=1",
        "w.dcm",
        "a#1.png",
    ]
    text = "\n".join(["path;label", *(f"{row};{'xy'[n % 2]}" for n, row in enumerate(rows))])
    groups = [case.group for case in read_dataset(table(tmp_path, text)).cases]
    assert groups == ["v.nii.gz", "v.nii.gz", "w.dcm", None, None]


def test_a_known_patient_wins_over_the_volume(tmp_path):
    text = "path,label,patient\nv.dcm#index=3,x,p\nw.dcm#index=3,y,p\n"
    assert {case.group for case in read_dataset(table(tmp_path, text)).cases} == {"p"}


def test_two_slices_of_one_file_are_not_the_same_image(tmp_path):
    text = "path;label\nv.nii#axis=0,index=1;x\nv.nii#axis=0,index=2;y\n"
    assert len(read_dataset(table(tmp_path, text)).cases) == 2


def test_absolute_paths_and_parents_are_a_users_own_business(tmp_path):
    (tmp_path / "tables").mkdir()
    text = f"path,label\n../pictures/a.png,x\n{tmp_path}/b.png,y\n"
    dataset = read_dataset(table(tmp_path / "tables", text))
    assert dataset.cases[0].image.file.parts[-3:] == ("..", "pictures", "a.png")
    assert dataset.cases[1].image.file == tmp_path / "b.png"


def test_a_class_list_gives_the_labels(tmp_path):
    path = table(tmp_path, "path,label\na,Normal_Lung\nb,cyst\nc,2\n")
    dataset = read_dataset(path, class_names=["cyst", "tumor", "normal lung"])
    assert dataset.names == ("cyst", "tumor", "normal lung")
    assert [case.target for case in dataset.cases] == [2, 0, 2]


def test_labels_outside_the_class_list_are_refused(tmp_path):
    path = table(tmp_path, "path,label\na,cyst\nb,stone\nc,3\nd,-1\n")
    with pytest.raises(DataError, match=r"-1, 3, stone"):
        read_dataset(path, class_names=["cyst", "tumor", "normal lung"])


def test_a_spreadsheet_is_refused(tmp_path):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK\x03\x04 and so on")
    with pytest.raises(DataError):
        read_dataset(path)


def test_an_unreadable_table_is_refused(tmp_path, monkeypatch):
    def deny(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = table(tmp_path, "path,label\na,x\nb,y\n")
    monkeypatch.setattr(Path, "read_bytes", deny)
    with pytest.raises(DataError):
        read_dataset(path)


def test_a_table_from_windows_finds_its_files(tmp_path):
    (tmp_path / "left eye").mkdir()
    (tmp_path / "left eye" / "a.png").touch()
    text = "path,label\nleft eye\\a.png,x\nleft eye\\absent.png,y\n"
    first, second = read_dataset(table(tmp_path, text)).cases
    assert first.image.file == tmp_path / "left eye" / "a.png"
    assert second.image.file == tmp_path / "left eye\\absent.png"  # as written, for the message


@pytest.mark.skipif(os.name == "nt", reason="there it is a path as any other")
@pytest.mark.parametrize("start", ["C:\\Users\\me\\", "D:/", "\\\\server\\share\\"])
def test_an_absolute_path_of_windows_is_refused(tmp_path, start):
    file = table(tmp_path, f"path,label\n{start}eyes\\a.png,x\n{start}eyes\\b.png,y\n")
    with pytest.raises(DataError, match="relative to"):
        read_dataset(file)
