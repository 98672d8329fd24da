from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.prompts.check import content_stems, similar_pairs, stem, words_of

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


def test_words_are_parted_by_hyphens_and_keep_their_apostrophes():
    assert words_of("Well-defined Cooper's ligament, 3 mm.") == [
        "well",
        "defined",
        "cooper's",
        "ligament",
        "3",
        "mm",
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("polyps", "polyp"),
        ("tumour", "tumor"),
        ("biopsies", "biopsy"),
        ("oedema", "edema"),
        ("renal", "kidney"),
        ("moles", "nevus"),
        ("healthy", "normal"),
    ],
)
def test_spellings_and_plurals_of_one_word_have_one_stem(one, other):
    assert stem(one) == stem(other)


@pytest.mark.parametrize("word", ["mass", "pylorus", "esophagitis", "drusen", "hour", "four"])
def test_words_that_only_look_like_plurals_or_spellings_are_left_alone(word):
    assert stem(word) in (word, word.replace("our", "or"))
    assert not stem(word).endswith(("mas", "pyloru", "esophagiti"))


def test_content_words_are_found_in_any_order():
    assert content_stems("cyst kidney") == content_stems("kidney cysts")
    assert content_stems("the lung of a child") == {"lung", "child"}
    assert content_stems("of the") == {"of", "the"}
