"""Own tables of texts become banks."""

from __future__ import annotations

import pytest

from ogkd.errors import ConfigError, DataError
from ogkd.prompts.convert import import_bank, keep_classes

BANK = {"kidney stone": ["bright, dense dot", "white spot", "white spot"], "normal": ["smooth"]}
TABLE = """class,text
kidney stone,"bright,  dense dot"
kidney_stone,white spot
Kidney stone,white spot
normal,smooth
"""
FILES = {
    "table.csv": TABLE,
    "marked.csv": "\ufeff" + TABLE.replace("\n", "\r\n"),
    "table.tsv": (
        "text\tclass\nbright, dense dot\tkidney stone\nwhite spot\tkidney stone\n"
        "white spot\tkidney stone\nsmooth\tnormal\n"
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_texts_are_read_from_tables(tmp_path, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8", newline="")
    assert import_bank(tmp_path / name) == BANK


@pytest.mark.parametrize(
    "content", ["{", "class;text\n", "name,text\na,b\n", "class,text\na", "class,text\n,\n", None]
)
def test_other_content_is_refused(tmp_path, content):
    path = tmp_path / "in.csv"
    if content is not None:
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
