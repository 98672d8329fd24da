"""Tables as spreadsheets of many countries write them, and tables written for them."""

from __future__ import annotations

import csv
import io
import zipfile
from pathlib import Path

import openpyxl
import pytest

from ogkd.data.read import read_dataset
from ogkd.data.tables import Sheet, read_rows, read_unlabelled_table, row_appender, write_table
from ogkd.errors import ConfigError, DataError
from tiny_data import rows_of

GERMAN = [
    ["Nr", "Bild", "Diagnose", "Patient", "Ödem", "Größe"],
    [1, "a;1.png", "gutartig", "p1", "1,0", "3,5"],
    [2, "ä/b.png", "bösartig", "p2", "0,0", "4,25"],
]
NAMES = {"path": "Bild", "label": "Diagnose", "group": "Patient"}


def sheet(path: Path, rows: list[list[object]]) -> Path:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    book.create_sheet("another")["A1"] = "not read"
    book.save(path)
    return path


def written(folder: Path, kind: str) -> Path:
    """The German table as one kind of file."""
    if kind == "xlsx":
        return sheet(folder / "t.xlsx", GERMAN)
    encoding, delimiter = kind.split()
    text = io.StringIO(newline="")
    csv.writer(text, delimiter={"tab": "\t"}.get(delimiter, delimiter)).writerows(GERMAN)
    path = folder / "t.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    return path


@pytest.mark.parametrize(
    "kind",
    ["xlsx", "utf-8 ;", "utf-8-sig ,", "utf-8 tab", "utf-16 tab", "utf-16 ;", "cp1252 ;"],
)
def test_a_german_table_is_read_in_every_form(tmp_path, kind):
    path = written(tmp_path, kind)
    dataset = read_dataset(path, columns=NAMES)
    assert dataset.names == ("bösartig", "gutartig")
    assert rows_of(dataset.cases) == [
        (str(tmp_path / "a;1.png"), 1, "", "p1"),
        (str(tmp_path / "ä" / "b.png"), 0, "", "p2"),
    ]
    assert dataset.cases[0].columns["größe"] == "3,5"
    findings = read_dataset(path, columns=NAMES, findings=["Ödem"])
    assert findings.targets() == [(1,), (0,)]
    assert [case.group for case in read_unlabelled_table(path, NAMES)] == ["p1", "p2"]


def test_cells_of_a_sheet_are_the_text_that_a_csv_would_have(tmp_path):
    rows = [["path", "label", "patient"], ["a.png", 1, 7.0], [], ["b.png", 2.5, None], [" c", True]]
    _, lines = read_rows(sheet(tmp_path / "t.xlsx", rows))
    assert [(line, tuple(row.values())) for line, row in lines] == [
        (2, ("a.png", "1", "7")),
        (4, ("b.png", "2.5", "")),
        (5, ("c", "True", "")),
    ]


def test_headings_given_take_the_place_of_others(tmp_path):
    """A column that has the name already is another one now, and one group is enough."""
    path = tmp_path / "t.csv"
    path.write_text('label,"my, image",lesion,Fall,Split\n9,a,l1,f1,Test\n9,b,l2,f2,Test\n')
    dataset = read_dataset(path, columns={"path": "my, image", "label": "Fall", "group": "Lesion"})
    assert dataset.names == ("f1", "f2")
    assert [(case.group, case.split) for case in dataset.cases] == [("l1", "test"), ("l2", "test")]


@pytest.mark.parametrize(
    ("columns", "kind"),
    [
        ({"picture": "Bild"}, ConfigError),
        ({"path": "Bild", "label": "bild"}, ConfigError),
        ({"path": "Foto"}, DataError),
        (None, DataError),
    ],
)
def test_headings_that_are_not_there_name_the_option(tmp_path, columns, kind):
    with pytest.raises(kind) as error:
        read_dataset(written(tmp_path, "utf-8 ;"), columns=columns)
    assert error.value.argument == "columns"
    with pytest.raises(ConfigError) as error:
        read_dataset(tmp_path, columns={"path": "Bild"})
    assert error.value.argument == "columns"


def _bomb() -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in range(6):
            archive.writestr(f"xl/{part}.xml", bytes(100_000_000))
    return memory.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"path,label\na,x\nb,gr\xc3\xb6\xdfer\n",  # UTF-8 with a damaged letter
        b"path,label\na,x\nb,\x01\xfc\n",
        "path,label\na,x\nb,\u00fc".encode("utf-16")[:-1],
        b"PK\x03\x04 a spreadsheet",
        pytest.param(_bomb, id="bomb"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path, content):
    path = tmp_path / "t.xlsx"
    path.write_bytes(content if isinstance(content, bytes) else content())
    with pytest.raises(DataError):
        read_dataset(path)


def test_a_sheet_has_numbers_and_no_formulas_and_reads_the_same(tmp_path):
    rows = [["path", "label", "p"], ["a.png", "'=1+1", 0.25], ["b\x01\udcff.png", "=x", None]]
    write_table(tmp_path / "t.xlsx", rows[:2])
    with Sheet.at(tmp_path / "u.xlsx") as output:
        for row in rows:
            row_appender(output)(row)
    cells = list(openpyxl.load_workbook(tmp_path / "u.xlsx").active.iter_rows(values_only=True))
    assert cells[1] == ("a.png", "'=1+1", 0.25)
    assert cells[2][0] == "b\ufffd\ufffd.png"
    assert read_rows(tmp_path / "t.xlsx")[1][0][1] == {
        "path": "a.png",
        "label": "=1+1",
        "p": "0.25",
    }
    with pytest.raises(ConfigError) as error:
        write_table(tmp_path / "t.xlsx", rows[:2])
    assert error.value.argument == "out"


def test_an_interrupted_sheet_leaves_nothing(tmp_path):
    def write() -> None:
        with Sheet.at(tmp_path / "t.xlsx") as output:
            output.append(["path"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert not list(tmp_path.iterdir())
