from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts.bank import TEMPLATES, bank_for, read_bank

NAMES = ["kidney stone", "normal"]


def test_templates_fill_in_where_there_is_no_bank():
    found = bank_for(["a {odd} name", "normal"], None)
    assert [len(texts) for texts in found] == [len(TEMPLATES)] * 2
    assert all("a {odd} name" in text for text in found[0])
    assert len(set(found[0])) == len(TEMPLATES)


def test_a_bank_is_matched_in_any_case_with_underscores_and_blank_texts_go():
    bank = {"Normal": ["n"], " Kidney_Stone": ["s1", "  ", "s2"], "unused": ["u"]}
    assert bank_for(NAMES, bank) == [["s1", "s2"], ["n"]]


def test_a_bank_that_lacks_classes_names_them_all():
    with pytest.raises(
        ConfigError, match=r"no prompts for: kidney stone, normal\. It knows: other"
    ):
        bank_for(NAMES, {"other": ["x"]})


@pytest.mark.parametrize(
    ("bank", "words"),
    [
        ({"a": []}, "'a' has no prompts"),
        ({"a": [" ", ""]}, "'a' has no prompts"),
        ({"a": "a text"}, "'a' must be a list of strings"),
        ({"a": [1]}, "'a' must be a list of strings"),
        ({"a": None}, "'a' must be a list of strings"),
        ({"kidney_stone": ["x"], "Kidney stone": ["y"]}, "'kidney_stone' and 'Kidney stone'"),
    ],
)
def test_wrong_texts_are_refused_from_python_and_from_a_file(tmp_path, bank, words):
    with pytest.raises(ConfigError, match=words):
        bank_for(["a"], bank)
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(bank))
    with pytest.raises(ConfigError, match=words) as error:
        read_bank(path)
    assert str(path) in str(error.value)


def test_a_file_is_read_as_utf8(tmp_path):
    path = tmp_path / "bank.json"
    path.write_text('{"Niere": ["größer"]}', encoding="utf-8")
    assert read_bank(path) == {"Niere": ["größer"]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"a": ["x"', "not JSON"),
        (b"", "not JSON"),
        ('{"a": ["gro\xdf"]}'.encode("latin-1"), "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["a"]', "must be an object"),
    ],
)
def test_a_broken_file_is_refused_by_name(tmp_path, content, words):
    path = tmp_path / "bank.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        read_bank(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_file_that_is_not_there_is_refused(tmp_path, make):
    make(tmp_path / "bank.json")
    with pytest.raises(ConfigError, match="Cannot read"):
        read_bank(tmp_path / "bank.json")


def test_a_bare_name_is_a_shipped_bank():
    bank = read_bank(Path("busi"))
    assert list(bank) == ["benign tumor", "malignant tumor", "normal scan"]
    assert {len(texts) for texts in bank.values()} == {50}
