from __future__ import annotations

import json
import re

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
    ],
    ids=["cupl", "untidy", "questions", "by dataset"],
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
    ("name", "content"),
    [
        (
            "in.csv",
            'class,text\nkidney stone,"bright, dense dot"\n\nkidney_stone,white spot\n'
            "normal,smooth kidney",
        ),
        (
            "in.TSV",
            "id\ttext\tclass\r\n1\tbright, dense dot\tkidney stone\r\n"
            "2\twhite spot\tKidney stone\r\n3\tsmooth kidney\tnormal\r\n",
        ),
        (
            "bom.csv",
            '\ufeffclass,text\nkidney stone,"bright, dense\ndot"\nkidney stone,white spot\n'
            "normal,smooth kidney",
        ),
    ],
)
def test_tables_are_read_by_their_columns(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content.encode())
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


NO_FORM = (b'{"a": [1]}', b'{"a": {"b": 1}}', b'["text"]', b'[{"class": "a"}]', b"7")
LATIN = "class,text\na,gr\xf6\n".encode("latin-1")
WRONG_FILES = {
    "a.json": (b"{", b"[" * 100_000, b"{}", b'{"a": [" "]}', *NO_FORM),
    "a.csv": (b"", b"x,y\n1,2\n", b"class,text\na,b,c\n", b"class,text\na\n", LATIN),
    "a.tsv": (b"class\ttext\n",),
    "a.py": (b"def (", b"x = 1\n"),
    "a.yaml": (b"a: b",),
    "absent.json": (None,),
}


@pytest.mark.parametrize(
    ("name", "content"), [(name, content) for name, many in WRONG_FILES.items() for content in many]
)
def test_a_file_without_texts_by_class_is_refused_by_name(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=re.escape(str(path))):
        import_bank(path)


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError):
        import_bank(tmp_path)


def test_classes_are_kept_in_the_order_and_spelling_asked_for():
    assert keep_classes(BANK, ["Normal", "kidney_stone"]) == {
        "Normal": BANK["normal"],
        "kidney_stone": BANK["kidney stone"],
    }
    with pytest.raises(ConfigError) as caught:
        keep_classes(BANK, ["cyst", "normal"])
    assert caught.value.argument == "classes"
