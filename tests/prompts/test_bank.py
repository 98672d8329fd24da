from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts.bank import TEMPLATES, bank_for, fallback_note, read_bank, shipped_banks

NAMES = ["kidney stone", "normal"]


def test_templates_fill_in_where_there_is_no_bank():
    found = bank_for(["a {odd} name", "normal"], None)
    assert [len(texts) for texts in found] == [len(TEMPLATES)] * 2
    assert all("a {odd} name" in text for text in found[0])
    assert len(set(found[0])) == len(TEMPLATES)


def test_a_bank_is_matched_in_any_case_with_underscores_and_blank_texts_go():
    bank = {"Normal": ["n"], " Kidney_Stone": ["s1", "  ", "s2"], "unused": ["u"]}
    assert bank_for(NAMES, bank) == [["s1", "s2"], ["n"]]


def test_a_bank_with_none_of_the_classes_is_refused_by_name():
    with pytest.raises(
        ConfigError, match=r"no prompts for: kidney stone, normal\. Its classes are: other"
    ):
        bank_for(NAMES, {"other": ["x"]})


def test_a_refused_bank_says_which_names_look_alike():
    with pytest.raises(ConfigError, match="'stone-kidney' in the bank resembles 'kidney stone'"):
        bank_for(NAMES, {"stone-kidney": ["x"], "Normals": ["y"]})


def test_templates_stand_in_for_the_classes_that_a_bank_lacks():
    stones, normal = bank_for(NAMES, {"normal": ["n1", "n2"]})
    assert normal == ["n1", "n2"]
    assert stones == [template.format("kidney stone") for template in TEMPLATES]


def test_a_note_tells_how_to_do_better_than_templates():
    note = fallback_note(NAMES, None)
    assert note is not None
    assert "made from 12 templates" in note
    assert "ogkd prompts new" in note
    assert "then give the file as the prompts" in note


def test_a_note_names_the_missing_classes_and_the_bank_s_names_that_look_like_them():
    note = fallback_note(NAMES, {"Normal": ["n"], "Kidney-stones": ["s"]})
    assert note is not None
    assert "no prompts for: kidney stone; they use templates" in note
    assert "'Kidney-stones' in the bank resembles 'kidney stone' in the data" in note


def test_a_name_that_a_class_uses_already_is_not_offered_to_another():
    note = fallback_note(["lung tumor", "lung tumors"], {"lung tumor": ["x"]})
    assert note is not None
    assert "resembles" not in note


def test_a_note_offers_the_shipped_bank_of_the_same_classes():
    note = fallback_note(["normal_scan", "Benign tumor", "malignant tumor"], None)
    assert note is not None
    assert "give 'busi' as the prompts" in note
    assert "generate" not in note


def test_there_is_no_note_where_every_class_has_prompts():
    assert fallback_note(NAMES, {"normal": ["n"], "kidney_stone": ["s"], "more": ["m"]}) is None


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
        (b'{"a": ["x"', "not valid JSON"),
        (b"", "not valid JSON"),
        ('{"a": ["gro\xdf"]}'.encode("latin-1"), "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'["a"]', "must be an object"),
        (b"{}", "has no classes"),
        (b'{"a": ["x"], "a": ["y"]}', "'a' appears twice"),
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


def test_an_unknown_name_lists_the_shipped_banks(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ConfigError, match=r"Cannot read bussi.*a shipped bank's name: btmri, busi, "
    ):
        read_bank(Path("bussi"))


def test_eleven_banks_are_shipped_with_fifty_prompts_for_each_of_56_classes():
    banks = {name: read_bank(Path(name)) for name in shipped_banks()}
    assert len(banks) == 11
    counts = [len(texts) for bank in banks.values() for texts in bank.values()]
    assert counts == [50] * 56


def test_a_file_of_the_name_comes_before_the_shipped_bank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "busi").write_text('{"mine": ["text"]}')
    assert read_bank(Path("busi")) == {"mine": ["text"]}


def test_a_bare_name_is_a_shipped_bank():
    bank = read_bank(Path("busi"))
    assert list(bank) == ["benign tumor", "malignant tumor", "normal scan"]
    assert {len(texts) for texts in bank.values()} == {50}
