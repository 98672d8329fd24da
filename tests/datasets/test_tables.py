from __future__ import annotations

import os
from pathlib import Path

import pytest

from ogkd.datasets.read import read_manifest
from ogkd.errors import DataError
from tiny_data import item_of, write_image


def table(folder: Path, text: str, *, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(text.encode(encoding))
    return path


def refusal(path: Path, **options: object) -> str:
    with pytest.raises(DataError) as error:
        read_manifest(path, **options)  # type: ignore[arg-type]
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_tables_of_any_spreadsheet_are_read(tmp_path, delimiter, encoding, newline):
    lines = ["path,label,split", "a b/ä.png,größer,train", "c.png,kleiner,test", ""]
    text = newline.join(lines).replace(",", delimiter)
    found = read_manifest(table(tmp_path, text, encoding=encoding))
    assert found.class_names == ("größer", "kleiner")
    assert found.items == (
        item_of(tmp_path / "a b" / "ä.png", 0, "train"),
        item_of(tmp_path / "c.png", 1, "test"),
    )


def test_a_comma_in_a_semicolon_table_belongs_to_the_value(tmp_path):
    found = read_manifest(table(tmp_path, "path;label\na,b.png;x, left\nc.png;y\n"))
    assert found.items[0].image.file == tmp_path / "a,b.png"
    assert found.class_names == ("x, left", "y")


@pytest.mark.parametrize("column", ["patient", "group", "Lesion", "patient_id", "lesion_id"])
def test_the_group_column_has_several_names(tmp_path, column):
    found = read_manifest(table(tmp_path, f"path,label,{column}\na,x,p1\nb,y,\n"))
    assert [item.group for item in found.items] == ["p1", None]


def test_two_group_columns_are_refused(tmp_path):
    message = refusal(table(tmp_path, "path,label,patient,lesion\na,x,1,2\nb,y,1,2\n"))
    assert "patient, lesion" in message


@pytest.mark.parametrize("column", ["path", "label", "split", "patient"])
def test_a_column_that_is_there_twice_is_refused(tmp_path, column):
    header = f"path,label,split,patient,{column}"
    message = refusal(table(tmp_path, f"{header}\na,x,train,1,b\nb,y,train,2,c\n"))
    assert column in message
    assert "twice" in message or "2 columns" in message


def test_slices_of_one_volume_are_one_group(tmp_path):
    rows = [
        "v.nii.gz#axis=2,index=3",
        "v.nii.gz#axis=2,index=9",
        "w.dcm#index=1",
        "w.dcm",
        "a#1.png",
    ]
    text = "\n".join(["path;label", *(f"{row};{'xy'[n % 2]}" for n, row in enumerate(rows))])
    groups = [item.group for item in read_manifest(table(tmp_path, text)).items]
    assert groups == ["v.nii.gz", "v.nii.gz", "w.dcm", None, None]


def test_a_known_patient_wins_over_the_volume(tmp_path):
    text = "path,label,patient\nv.dcm#index=3,x,p\nw.dcm#index=3,y,p\n"
    assert {item.group for item in read_manifest(table(tmp_path, text)).items} == {"p"}


@pytest.mark.parametrize(
    ("second", "label", "words"),
    [
        ("a.png", "x", "line 2 and line 3, with the same label"),
        ("a.png", "y", "line 2 and line 3, with another label"),
        ("./sub/../a.png", "y", "line 2 and line 3, with another label"),
    ],
)
def test_the_same_file_twice_is_refused_with_both_lines(tmp_path, second, label, words):
    text = f"path,label\na.png,x\n{second},{label}\nb.png,y\n"
    message = refusal(table(tmp_path, text))
    assert words in message
    assert "1 file(s) twice" in message


def test_two_slices_of_one_file_are_not_the_same_image(tmp_path):
    text = "path;label\nv.nii#axis=0,index=1;x\nv.nii#axis=0,index=2;y\n"
    assert len(read_manifest(table(tmp_path, text)).items) == 2


def test_absolute_paths_and_parents_are_a_users_own_business(tmp_path):
    (tmp_path / "tables").mkdir()
    text = f"path,label\n../pictures/a.png,x\n{tmp_path}/b.png,y\n"
    found = read_manifest(table(tmp_path / "tables", text))
    assert found.items[0].image.file.parts[-3:] == ("..", "pictures", "a.png")
    assert found.items[1].image.file == tmp_path / "b.png"


def test_a_class_list_gives_the_labels(tmp_path):
    path = table(tmp_path, "path,label\na,Normal_Lung\nb,cyst\nc,2\n")
    found = read_manifest(path, class_names=["cyst", "tumor", "normal lung"])
    assert found.class_names == ("cyst", "tumor", "normal lung")
    assert [item.label for item in found.items] == [2, 0, 2]


def test_labels_outside_the_class_list_are_all_named(tmp_path):
    path = table(tmp_path, "path,label\na,cyst\nb,stone\nc,3\nd,-1\n")
    message = refusal(path, class_names=["cyst", "tumor", "normal lung"])
    assert "outside the class list: -1, 3, stone." in message
    assert "cyst, tumor, normal lung" in message


@pytest.mark.parametrize(
    ("encoding", "where"), [("latin-1", "line 3"), ("utf-16", "line 1"), ("cp1252", "line 3")]
)
def test_another_encoding_is_refused_with_the_line_and_the_remedy(tmp_path, encoding, where):
    path = table(tmp_path, "path,label\na,x\nb,größer\n", encoding=encoding)
    message = refusal(path)
    assert f"{path}, {where}: not UTF-8" in message
    assert "CSV UTF-8" in message


def test_a_spreadsheet_is_refused_as_one(tmp_path):
    path = tmp_path / "t.xlsx"
    path.write_bytes(b"PK\x03\x04 and so on")
    assert "spreadsheet" in refusal(path)


def test_a_zero_byte_in_a_path_is_refused(tmp_path):
    assert "zero byte" in refusal(table(tmp_path, "path,label\na\0b,x\nb,y\n"))


def test_a_value_without_its_closing_quote_is_refused(tmp_path):
    text = 'path,label\n"a,x\n' + "b,y\n" * 50_000
    assert "not a UTF-8 table" in refusal(table(tmp_path, text))


def test_an_unreadable_table_is_refused(tmp_path, monkeypatch):
    def deny(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    path = table(tmp_path, "path,label\na,x\nb,y\n")
    monkeypatch.setattr(Path, "read_bytes", deny)
    assert "Permission denied" in refusal(path)


def test_a_table_from_windows_finds_its_files(tmp_path):
    (tmp_path / "left eye").mkdir()
    (tmp_path / "left eye" / "a.png").touch()
    text = "path,label\nleft eye\\a.png,x\nleft eye\\absent.png,y\n"
    first, second = read_manifest(table(tmp_path, text)).items
    assert first.image.file == tmp_path / "left eye" / "a.png"
    assert second.image.file == tmp_path / "left eye\\absent.png"  # as written, for the message


@pytest.mark.skipif(os.name == "nt", reason="there it is a path as any other")
@pytest.mark.parametrize("start", ["C:\\Users\\me\\", "D:/", "\\\\server\\share\\"])
def test_an_absolute_path_of_windows_is_refused_with_what_to_write_instead(tmp_path, start):
    write_image(tmp_path / "eyes" / "a.png")
    write_image(tmp_path / "a.png")
    (tmp_path / "empty").mkdir()
    file = table(tmp_path, f"path,label\n{start}eyes\\a.png,x\n{start}eyes\\b.png,y\n")
    message = refusal(file)
    assert f"{start}eyes\\a.png is a path of a Windows computer" in message
    assert f"relative to {tmp_path} (or to another root); this one is then eyes/a.png." in message
    elsewhere = refusal(file, root=tmp_path / "empty")
    assert elsewhere.endswith(f"relative to {tmp_path / 'empty'} (or to another root).")


def test_columns_with_other_names_are_listed_whatever_separates_them(tmp_path):
    message = refusal(table(tmp_path, "Datei;Diagnose;Patient\na.png;x;1\n"))
    assert "has: Datei, Diagnose, Patient. Rename the columns" in message
