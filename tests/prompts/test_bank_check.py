"""Rules for texts, one by one, and the shipped banks, which keep all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.prompts.bank import read_bank, shipped_banks
from ogkd.prompts.check import check_bank, stem, text_faults
from tiny_data import texts

GOOD = "Kidney stone seen as a small bright dot with a clean shadow behind it."


def rules(bank, **options):
    return {(finding.severity, finding.rule) for finding in check_bank(bank, **options)}


def sound(*names, count=12):
    return {name: texts(name, count) for name in names}


@pytest.mark.parametrize("name", shipped_banks())
def test_shipped_banks_have_no_findings(name):
    assert check_bank(read_bank(Path(name)), count=50) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("  ", "blank"),
        ("kidney stone in seven words is short", "length"),
        (" ".join(["stone"] * 41), "length"),
        (f"(12) {GOOD}", "numbering"),
        (f"- {GOOD}", "numbering"),
        (f"Prompt 3 {GOOD}", "numbering"),
        (GOOD.replace("dot", "{}"), "slot"),
        (GOOD.replace("dot", "[class]"), "slot"),
        (GOOD.replace(" ", "\u00a0", 1), "characters"),
        (GOOD.replace("dot", "do\u200bt"), "characters"),
        (GOOD.replace("a", "  a", 1), "characters"),
        (GOOD.replace("dot", "d\x07t"), "characters"),
        (f"Here are some prompts about it. {GOOD}", "chatter"),
        (f"As an AI language model this is what I say. {GOOD}", "chatter"),
    ],
)
def test_faulty_text_is_error_of_its_rule(text, rule):
    bank = sound("kidney stone")
    bank["kidney stone"].append(text)
    assert ("error", rule) in rules(bank)


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        "1.5 cm kidney stone with a bright rim and a dark centre.",
        "3 mm stone in the lower pole of the left kidney, white.",
        "Hereditary stone disease with many small bright dots in both kidneys.",
    ],
)
def test_good_text_has_no_faults(text):
    assert text_faults(text) == []


def with_texts(*more):
    return {"kidney stone": [*texts("kidney stone", 12), *more]}


@pytest.mark.parametrize(
    ("bank", "expected"),
    [
        (sound("kidney stone", "normal kidney"), set()),
        (sound("kidney stone", count=3), {("warning", "count")}),
        (with_texts(GOOD, GOOD.upper().replace(".", "!")), {("error", "duplicate")}),
        (
            {name: [*rows, GOOD] for name, rows in sound("kidney stone", "kidney tumor").items()},
            {("error", "duplicate")},
        ),
        (with_texts(GOOD, GOOD.replace("small", "tiny")), {("error", "near-duplicate")}),
        ({"kidney stone": texts("xyz", 12)}, {("error", "mention")}),
        # A word that all class names share names none of them.
        (
            {"benign tumor": texts("some tumor", 12), "malignant tumor": texts("malignant", 12)},
            {("error", "mention")},
        ),
        (
            {
                "benign tumor": texts("benign tumor", 12),
                "malignant tumor": texts("malignant tumor unlike benign", 12),
            },
            {("warning", "other class")},
        ),
    ],
)
def test_bank_has_findings_of_its_rules(bank, expected):
    assert rules(bank) == expected


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("polyps", "polyp"), ("tumour", "tumor"), ("biopsies", "biopsy"), ("oedema", "edema")),
        *((word, word) for word in ("mass", "pylorus", "esophagitis", "drusen")),
    ],
)
def test_spellings_and_plurals_share_a_stem(word, expected):
    assert stem(word) == expected
