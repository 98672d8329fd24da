"""Own tables of texts become banks."""

from __future__ import annotations

import json

import pytest

from ogkd.errors import ConfigError, DataError
from ogkd.prompts.convert import import_bank, keep_classes

BANK = {"kidney stone": ["bright, dense dot", "white spot"], "normal": ["smooth kidney"]}
TABLE = 'class,text\nkidney stone,"bright, dense dot"\nkidney_stone,white spot\nnormal,{}\n'
FILES = {
    "cupl.json": json.dumps(BANK),
    "untidy.json": json.dumps(
        {"kidney_stone": [" bright,  dense dot", "white\nspot"], "normal": "smooth kidney"}
    ),
    "table.csv": TABLE.format("smooth kidney"),
    "marked.csv": "\ufeff" + TABLE.format("smooth kidney").replace("\n", "\r\n"),
    "table.tsv": (
        "text\tclass\nbright, dense dot\tKidney stone\nwhite spot\tkidney stone\n"
        "smooth kidney\tnormal\n"
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_texts_are_read_from_every_format(tmp_path, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8", newline="")
    bank = import_bank(tmp_path / name)
    assert {key.casefold(): texts for key, texts in bank.items()} == BANK


def test_folder_has_a_text_file_for_each_class(tmp_path):
    for name, texts in BANK.items():
        (tmp_path / f"{name}.txt").write_text("\n".join([*texts, "", ""]))
    (tmp_path / ".hidden.txt").write_text("not a class")
    assert import_bank(tmp_path) == BANK


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("in.json", "{"), ("in.json", '["a"]'), ("in.json", '{"a": {"b": ["x"]}}')),
        *(("in.json", "{}"), ("in.json", '{"a": [1]}'), ("in.xlsx", "")),
        *(("in.csv", "class;text\n"), ("in.csv", "name,text\na,b\n"), ("in.csv", "class,text\na")),
    ],
)
def test_other_content_is_refused(tmp_path, name, content):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        import_bank(path)
    assert caught.value.argument == "source"


def test_classes_are_kept_in_the_order_and_spelling_asked_for():
    kept = keep_classes(BANK, ["Normal", "kidney_stone"])
    assert list(kept) == ["Normal", "kidney_stone"]
    with pytest.raises(ConfigError) as caught:
        keep_classes(BANK, ["cyst"])
    assert caught.value.argument == "classes"
