from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.prompts.bank import read_bank, shipped_banks
from ogkd.prompts.check import (
    check_bank,
    content_stems,
    similar_pairs,
    stem,
    text_faults,
    words_of,
)
from ogkd.prompts.templates import modalities, modality_bank
from stub_server import texts

GOOD = "Kidney stone seen as a small bright dot with a clean shadow behind it."


def rules(bank, **options):
    return {(finding.severity, finding.rule) for finding in check_bank(bank, **options)[1]}


def sound(*names, count=12):
    return {name: texts(name, count) for name in names}


@pytest.mark.parametrize("name", shipped_banks())
def test_every_shipped_bank_passes_without_a_warning(name):
    findings = check_bank(read_bank(Path(name)), count=50)[1]
    assert findings == []


def test_no_prompt_is_shared_by_two_shipped_banks():
    seen = {}
    for name in shipped_banks():
        for finding in read_bank(Path(name)).values():
            for text in finding:
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
    assert rule in [finding for finding, _ in text_faults(text)]
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
            {("error", "duplicate"), ("warning", "pattern")},
        ),
        (with_texts(GOOD, GOOD.replace("small", "tiny")), {("error", "near-duplicate")}),
        ({"kidney stone": texts("xyz", 12)}, {("error", "mention")}),
        (
            {"kidney stone": [*texts("xyz", 10), *texts("stone", 2)]},
            {("warning", "mention")},
        ),
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
        (
            {"kidney stone": [f"A kidney stone image that shows{text}" for text in texts("", 12)]},
            {("warning", "pattern")},
        ),
        # One pattern, filled with two class names.
        (
            {name: [f"{name}{text}" for text in texts("", 12)] for name in ("cyst", "stone")},
            {("warning", "pattern")},
        ),
    ],
)
def test_a_bank_has_the_findings_of_its_rules(bank, expected):
    assert rules(bank) == expected


def test_a_required_count_must_be_met():
    assert rules(sound("kidney stone"), count=12) == set()
    assert rules(sound("kidney stone"), count=13) == {("error", "count")}


def test_a_class_is_named_in_any_order_number_or_spelling():
    row = check_bank({"cyst kidney": texts("renal cysts", 12)})[0][0]
    assert row.mentions == 1.0


@pytest.mark.parametrize("modality", modalities())
@pytest.mark.parametrize("organ", [None, "kidney"])
def test_a_bank_of_templates_has_no_errors(modality, organ):
    bank = modality_bank(["debris", "kidney stone"], modality=modality, organ=organ)
    errors = [finding for finding in check_bank(bank)[1] if finding.severity == "error"]
    assert errors == []


# Words


SETS = st.lists(st.frozensets(st.sampled_from("abcdefghij"), max_size=10), max_size=25)


@given(SETS, st.sampled_from([0.5, 0.8, 0.9]))
def test_similar_pairs_are_those_of_comparing_all_with_all(sets, threshold):
    slow = [
        (i, j)
        for j in range(len(sets))
        for i in range(j)
        if sets[i] | sets[j] and len(sets[i] & sets[j]) / len(sets[i] | sets[j]) > threshold
    ]
    assert similar_pairs(sets, threshold) == sorted(slow)


def test_a_jaccard_index_of_exactly_the_threshold_is_not_above_it():
    five, four = frozenset("abcde"), frozenset("abcd")
    assert similar_pairs([five, four], 0.8) == []
    assert similar_pairs([five, five], 0.8) == [(0, 1)]


def test_words_are_separated_by_hyphens_and_keep_their_apostrophes():
    words = ["well", "defined", "cooper's", "ligament", "3", "mm"]
    assert words_of("Well-defined Cooper's ligament, 3 mm.") == words


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        *(("polyps", "polyp"), ("tumour", "tumor"), ("biopsies", "biopsy"), ("oedema", "edema")),
        *(("renal", "kidney"), ("moles", "nevus"), ("healthy", "normal")),
        *((word, word) for word in ("mass", "pylorus", "esophagitis", "drusen")),
    ],
)
def test_spellings_and_plurals_of_one_word_have_one_stem(word, expected):
    assert stem(word) == expected


def test_content_words_are_the_same_in_any_order():
    assert content_stems("cyst kidney") == content_stems("kidney cysts")
    assert content_stems("the lung of a child") == {"lung", "child"}
    assert content_stems("of the") == {"of", "the"}
