from __future__ import annotations

import re

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts.templates import find_modality, modalities, modality_bank


def test_there_are_a_dozen_modalities_with_several_templates_each():
    assert len(modalities()) >= 12
    for modality in modalities().values():
        assert len(set(modality.templates)) == len(modality.templates) >= 10
        assert all(template.count("{class}") == 1 for template in modality.templates)
        assert any("{organ}" in template for template in modality.templates)


def test_no_alias_stands_for_two_modalities():
    owners: dict[str, str] = {}
    for modality in modalities().values():
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


def test_the_organ_is_named_only_where_it_is_given():
    with_organ = modality_bank(["cyst"], modality="us", organ=" kidney ")["cyst"]
    assert sum("kidney" in text for text in with_organ) >= 8
    assert not any("the ." in text for text in modality_bank(["cyst"], modality="us")["cyst"])


@pytest.mark.parametrize("name", ["CT", "computed tomography", "Ct_Scan"])
def test_a_modality_is_found_by_any_of_its_names(name):
    assert find_modality(name).name == "ct"


def test_an_unknown_modality_lists_the_known_and_the_nearest():
    with pytest.raises(
        ConfigError, match=r"'ultrasund'\. Did you mean 'ultrasound'\? Known modalities: xray,"
    ):
        find_modality("ultrasund")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([], "at least one class"),
        (["a", " _ "], "not blank"),
        (["cyst", "Cyst"], "named twice: Cyst, cyst"),
        (["cy\x1bst"], "control characters"),
    ],
)
def test_impossible_class_names_are_refused(names, words):
    with pytest.raises(ConfigError, match=words):
        modality_bank(names)
