from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.prompts.bank import read_bank, shipped_banks
from ogkd.prompts.check import check_bank, text_faults
from ogkd.prompts.templates import modalities, modality_bank
from stub_endpoint import texts

GOOD = "Kidney stone seen as a small bright dot with a clean shadow behind it."


def rules(bank, **options):
    return {(found.severity, found.rule) for found in check_bank(bank, **options)[1]}


def sound(*names, count=12):
    return {name: texts(name, count) for name in names}


def test_a_sound_bank_has_no_findings():
    assert check_bank(sound("kidney stone", "normal kidney"), count=12)[1] == []


@pytest.mark.parametrize("name", shipped_banks())
def test_every_shipped_bank_passes_without_a_warning(name):
    findings = check_bank(read_bank(Path(name)), count=50)[1]
    assert findings == []


def test_no_prompt_is_shared_by_two_shipped_banks():
    seen = {}
    for name in shipped_banks():
        for found in read_bank(Path(name)).values():
            for text in found:
                assert seen.setdefault(text.casefold(), name) == name


def test_numbers_of_a_class_are_counted():
    bank = {"stone": ["one two three", "a stone of five words"]}
    row = check_bank(bank)[0][0]
    assert (row.prompts, row.shortest, row.mean, row.longest) == (2, 3, 4.0, 5)
    assert row.mentions == 0.5


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("  ", "blank"),
        ("kidney stone in seven words is short", "length"),
        (" ".join(["stone"] * 41), "length"),
        (f"1. {GOOD}", "numbering"),
        (f"(12) {GOOD}", "numbering"),
        (f"- {GOOD}", "numbering"),
        (f"Prompt 3 {GOOD}", "numbering"),
        (GOOD.replace("dot", "{}"), "slot"),
        (GOOD.replace("dot", "[class]"), "slot"),
        (GOOD.replace(" ", "\u00a0", 1), "characters"),
        (GOOD.replace("dot", "do\u200bt"), "characters"),
        (GOOD.replace("a", "  a", 1), "characters"),
        (f" {GOOD}", "characters"),
        (GOOD.replace("dot", "d\x07t"), "characters"),
        (GOOD.replace("dot", "d\ufffdt"), "characters"),
        (f"Here are some prompts about it. {GOOD}", "chatter"),
        (f"As an AI language model this is what I say. {GOOD}", "chatter"),
    ],
)
def test_a_faulty_text_is_an_error_of_its_rule(text, rule):
    assert rule in [found for found, _ in text_faults(text)]
    bank = sound("kidney stone")
    bank["kidney stone"].append(text)
    assert ("error", rule) in rules(bank)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "1.5 cm kidney stone with a bright rim and a dark centre.",
        "3 mm stone in the lower pole of the left kidney, white.",
        "T2-weighted image of a kidney stone: dark, as wide as 5 mm.",
        "Hereditary stone disease with many small bright dots in both kidneys.",
    ],
)
def test_a_good_text_has_no_faults(text):
    assert text_faults(text) == []


def test_a_wrong_count_is_an_error_only_where_one_is_demanded():
    bank = sound("kidney stone", count=12)
    assert rules(bank) == set()
    assert rules(bank, count=12) == set()
    assert rules(bank, count=13) == {("error", "count")}
    assert ("warning", "count") in rules(sound("kidney stone", count=3))


def test_a_text_that_differs_only_in_case_and_punctuation_is_a_duplicate():
    bank = sound("kidney stone")
    bank["kidney stone"] += [GOOD, GOOD.upper().replace(".", "!")]
    assert rules(bank) == {("error", "duplicate")}


def test_a_text_that_stands_under_two_classes_is_a_duplicate():
    bank = sound("kidney stone", "kidney tumor")
    for found in bank.values():
        found.append(GOOD)
    assert ("error", "duplicate") in rules(bank)


def test_two_texts_that_differ_in_one_word_are_near_duplicates():
    bank = sound("kidney stone")
    bank["kidney stone"] += [GOOD, GOOD.replace("small", "tiny")]
    assert rules(bank) == {("error", "near-duplicate")}


def test_a_class_that_no_text_names_is_an_error_and_one_that_few_name_a_warning():
    other = texts("xyz", 12)
    assert ("error", "mention") in rules({"kidney stone": other})
    assert ("warning", "mention") in rules({"kidney stone": [*other[:10], *texts("stone", 2)]})


def test_a_class_is_named_in_any_order_number_or_spelling():
    row = check_bank({"cyst kidney": texts("renal cysts", 12)})[0][0]
    assert row.mentions == 1.0


def test_a_word_that_all_class_names_share_names_none_of_them():
    bank = {"benign tumor": texts("some tumor", 12), "malignant tumor": texts("malignant", 12)}
    assert [row.mentions for row in check_bank(bank)[0]] == [0.0, 1.0]
    assert rules(bank) == {("error", "mention")}


def test_texts_of_a_class_that_mostly_name_another_are_a_warning():
    bank = {
        "benign tumor": texts("benign tumor", 12),
        "malignant tumor": texts("malignant tumor unlike benign", 12),
    }
    assert rules(bank) == {("warning", "other class")}


def test_texts_that_begin_alike_are_a_pattern():
    bank = {"kidney stone": [f"A kidney stone image that shows{text}" for text in texts("", 12)]}
    found = [found for found in check_bank(bank)[1] if found.rule == "pattern"]
    assert len(found) == 1
    assert found[0].severity == "warning"


def test_one_pattern_filled_with_two_class_names_is_found():
    bank = {name: [f"{name}{text}" for text in texts("", 12)] for name in ("cyst", "stone")}
    assert rules(bank) == {("warning", "pattern")}


@pytest.mark.parametrize("modality", modalities())
@pytest.mark.parametrize("organ", [None, "kidney"])
def test_a_bank_of_templates_has_no_errors(modality, organ):
    bank = modality_bank(["debris", "kidney stone"], modality=modality, organ=organ)
    errors = [found for found in check_bank(bank)[1] if found.severity == "error"]
    assert errors == []
