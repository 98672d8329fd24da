from __future__ import annotations

import json

import pytest

from ogkd.errors import ConfigError, DataError
from ogkd.prompts.convert import import_bank, keep_classes

BANK = {"kidney stone": ["bright, dense dot", "white spot"], "normal": ["smooth kidney"]}


@pytest.mark.parametrize(
    "content",
    [
        BANK,
        {
            "kidney_stone": [" bright,  dense dot", "white\nspot"],
            "normal": "smooth kidney",
        },
        {
            "kidney stone": {"What does it look like?": BANK["kidney stone"]},
            "normal": {"Describe {}": ["smooth kidney"], "And how?": ["  "]},
        },
        {"ctkidney": BANK},
        [{"class": name, "text": text} for name, texts in BANK.items() for text in texts],
        [{"Label": name, "prompts": texts} for name, texts in BANK.items()],
    ],
    ids=["cupl", "untidy", "questions", "by dataset", "records", "records of lists"],
)
def test_json_of_several_forms_is_read(tmp_path, content):
    path = tmp_path / "in.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    assert import_bank(path) == BANK


def test_repetitions_are_kept(tmp_path):
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"a": ["one", "two", "one", "one "], "b": ["one"]}))
    assert import_bank(path) == {"a": ["one", "two", "one", "one"], "b": ["one"]}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        (
            "in.csv",
            [
                "class,text",
                'kidney stone,"bright, dense dot"',
                "",
                "kidney_stone,white spot",
                "normal,smooth kidney",
            ],
        ),
        (
            "in.TSV",
            [
                "id\tDescription\tClassName\r",
                "1\tbright, dense dot\tkidney stone\r",
                "2\twhite spot\tKidney stone\r",
                "3\tsmooth kidney\tnormal\r",
            ],
        ),
        (
            "bom.csv",
            [
                "\ufeffclass,text",
                'kidney stone,"bright, dense\ndot"',
                "kidney stone,white spot",
                "normal,smooth kidney",
            ],
        ),
    ],
)
def test_tables_are_read_by_their_columns(tmp_path, name, rows):
    path = tmp_path / name
    path.write_bytes("\n".join(rows).encode())
    assert import_bank(path) == BANK


def test_a_python_dictionary_is_read_and_the_file_is_not_run(tmp_path):
    path = tmp_path / "templates.py"
    path.write_text(
        "import os\n"
        f"open({str(tmp_path / 'ran')!r}, 'w')\n"
        "CUSTOM = {'busi': 'a photo of a {}.'}\n"
        f"TEMPLATES: dict = {BANK!r}\n"
        "other = [os.name]\n"
    )
    assert import_bank(path) == BANK
    assert not (tmp_path / "ran").exists()


def test_a_folder_of_text_files_is_read_by_their_names(tmp_path):
    (tmp_path / "kidney_stone.txt").write_text("bright, dense dot\n\n white spot \n")
    (tmp_path / "normal.txt").write_text("smooth kidney")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "readme.md").write_text("no")
    assert import_bank(tmp_path) == BANK


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.json", b"{", "not valid JSON"),
        ("a.json", b"[" * 100_000, "not valid JSON"),
        ("a.json", b"{}", "has no texts"),
        ("a.json", b'{"a": [" "]}', "has no texts"),
        ("a.json", b'{"a": [1]}', "does not have the form"),
        ("a.json", b'{"a": {"b": 1}}', "does not have the form"),
        ("a.json", b'["text"]', "does not have the form"),
        ("a.json", b'[{"class": "a"}]', "does not have the form"),
        ("a.json", b'[{"class": "a", "text": [3]}]', "does not have the form"),
        ("a.json", b"7", "does not have the form"),
        ("a.csv", b"", "needs the columns class and text, but has: none"),
        ("a.csv", b"x,y\n1,2\n", "needs the columns class and text, but has: x, y"),
        ("a.csv", b"class,text\na,b,c\n", "row 2: 3 cells"),
        ("a.csv", "class,text\na,gr\xf6\n".encode("latin-1"), "not UTF-8"),
        ("a.csv", b"class,text\n", "has no texts"),
        ("a.py", b"def (", "not Python"),
        ("a.py", b"x = 1\n", "has no texts"),
        ("a.yaml", b"a: b", r"imported from .json, .csv, .tsv, .py"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as error:
        import_bank(path)
    assert str(path) in str(error.value)


def test_what_is_not_there_or_empty_is_refused(tmp_path):
    with pytest.raises(DataError, match="Cannot read"):
        import_bank(tmp_path / "none.json")
    with pytest.raises(DataError, match="has no texts"):
        import_bank(tmp_path)


def test_classes_are_kept_in_the_order_and_spelling_asked_for():
    assert keep_classes(BANK, ["Normal", "kidney_stone"]) == {
        "Normal": BANK["normal"],
        "kidney_stone": BANK["kidney stone"],
    }
    with pytest.raises(ConfigError, match=r"no texts for: cyst, only for: kidney stone, normal"):
        keep_classes(BANK, ["cyst", "normal"])
