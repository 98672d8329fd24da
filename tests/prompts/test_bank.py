"""Banks: read, matched with classes, made from templates."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts.bank import (
    TEMPLATES,
    absent_bank,
    bank_file,
    bank_for,
    fallback_note,
    find_modality,
    modalities,
    modality_bank,
    read_bank,
    shipped_banks,
)

NAMES = ["kidney stone", "normal"]


def test_templates_fill_in_where_there_is_no_bank():
    texts = bank_for(["a {odd} name", "normal"], None)
    assert [len(rows) for rows in texts] == [len(TEMPLATES)] * 2
    assert all("a {odd} name" in text for text in texts[0])
    assert len(set(texts[0])) == len(TEMPLATES)


def test_a_bank_is_matched_in_any_case_with_underscores_and_blank_texts_go():
    bank = {"Normal": ["n"], " Kidney_Stone": ["s1", "  ", "s2"], "unused": ["u"]}
    assert bank_for(NAMES, bank) == [["s1", "s2"], ["n"]]


def test_templates_are_used_for_the_classes_that_a_bank_lacks():
    stones, normal = bank_for(NAMES, {"normal": ["n1", "n2"]})
    assert normal == ["n1", "n2"]
    assert stones == [template.format("kidney stone") for template in TEMPLATES]
    assert absent_bank(["cyst"], {"No cyst": ["clear", " "]}) == [["clear"]]


def test_a_bank_with_none_of_the_classes_is_refused():
    with pytest.raises(ConfigError) as caught:
        bank_for(NAMES, {"other": ["x"]})
    assert caught.value.argument == "prompts"


@pytest.mark.parametrize(
    ("names", "bank", "words"),
    [
        (NAMES, None, "ogkd prompts new"),
        (NAMES, {"Normal": ["n"], "Kidney-stones": ["s"]}, "Did you mean 'Kidney-stones'"),
        (["normal_scan", "Benign tumor", "malignant tumor"], None, "add --prompts busi"),
    ],
)
def test_a_note_says_how_to_do_better_than_templates(names, bank, words):
    assert words in str(fallback_note(names, bank))


@pytest.mark.parametrize(
    "bank",
    [
        *({"a": []}, {"a": [" ", ""]}, {"a": "a text"}, {"a": [1]}, {"a": None}),
        {"kidney_stone": ["x"], "Kidney stone": ["y"]},
    ],
    ids=str,
)
def test_wrong_texts_are_refused(bank):
    with pytest.raises(ConfigError) as caught:
        bank_for(["a"], bank)
    assert caught.value.argument == "prompts"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *(("bank.json", content) for content in (b'{"a": ["x"', b"", b"[" * 100_000, b'["a"]')),
        *(("bank.json", content) for content in (b"{}", b'{"a": ["x"], "a": ["y"]}', None)),
        ("bank.json", '{"a": ["gro\xdf"]}'.encode("latin-1")),
        *(("bank.csv", content) for content in (b"{", b"class;text\n", b"name,text\na,b\n", None)),
        *(("bank.csv", content) for content in (b"class,text\na", b"class,text\n,\n", b"\xff")),
    ],
    ids=range(15),
)
def test_a_broken_file_is_refused_by_name(tmp_path, name, content):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        read_bank(path)
    assert caught.value.argument == "prompts"


def test_a_file_of_the_name_comes_before_the_shipped_bank(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "busi").write_text('{"mine": ["größer"]}', encoding="utf-8")
    assert read_bank(Path("busi")) == {"mine": ["größer"]}
    with pytest.raises(ConfigError, match="btmri, busi, "):
        read_bank(Path("bussi"))


def test_eleven_banks_are_shipped_with_fifty_prompts_for_each_of_56_classes():
    banks = {name: read_bank(Path(name)) for name in shipped_banks()}
    assert len(banks) == 11
    counts = [len(texts) for bank in banks.values() for texts in bank.values()]
    assert counts == [50] * 56


def test_ours_and_a_folder_have_a_bank_for_each_dataset(tmp_path):
    assert bank_file("ours", "busi") == shipped_banks()["busi"]
    (tmp_path / "busi.json").write_text("{}")
    assert bank_file(tmp_path, "busi") == tmp_path / "busi.json"
    for prompts, dataset in ((tmp_path, "btmri"), ("ours", None)):
        with pytest.raises(ConfigError) as caught:
            bank_file(prompts, dataset)
        assert caught.value.argument == "prompts"


# Templates of modalities


def test_modalities_have_templates_of_their_own_and_no_alias_twice():
    assert len(modalities()) >= 12
    owners: dict[str, str] = {}
    for modality in modalities().values():
        assert len(set(modality.templates)) == len(modality.templates) >= 10
        assert all(template.count("{class}") == 1 for template in modality.templates)
        assert any("{organ}" in template for template in modality.templates)
        for alias in {modality.name, modality.title.casefold(), *modality.aliases}:
            assert owners.setdefault(alias, modality.name) == modality.name


@pytest.mark.parametrize("modality", modalities())
@pytest.mark.parametrize("organ", [None, "breast"])
def test_filled_templates_have_no_slots_and_right_articles(modality, organ):
    for text in modality_bank(["odd {name}"], modality=modality, organ=organ)["odd {name}"]:
        assert "odd {name}" in text
        rest = text.replace("odd {name}", "")
        assert not set("{}[]") & set(rest)
        assert "  " not in text
        assert " ." not in text
        assert not re.search(r"\b[Aa] (?:[aeioAEIO]|ultra|MR)", rest), text
        assert not re.search(r"\b[Aa]n (?![aeiouAEIOUXMHN])", rest), text


def test_a_modality_is_found_by_any_of_its_names():
    assert {find_modality(name).name for name in ("CT", "computed tomography", "Ct_Scan")} == {"ct"}
    with pytest.raises(ConfigError, match="Did you mean 'ultrasound'") as caught:
        find_modality("ultrasund")
    assert caught.value.argument == "modality"


@pytest.mark.parametrize("names", [[], ["a", " _ "], ["cyst", "Cyst"], ["cy\x1bst"]], ids=ascii)
def test_impossible_class_names_are_refused(names):
    with pytest.raises(ConfigError) as caught:
        modality_bank(names)
    assert caught.value.argument == "classes"


# From a table


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
    assert read_bank(tmp_path / name) == BANK
