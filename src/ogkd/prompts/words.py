"""Words of prompts: how texts are compared, and whether one names a class."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

__all__ = ["content_stems", "similar_pairs", "stem", "words_of"]

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_EMPTY = frozenset({"a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the"})

# Other words for parts of a class name that a careful writer uses in turn.
_SAME = {
    "healthy": "normal",
    "renal": "kidney",
    "pulmonary": "lung",
    "cystic": "cyst",
    "calculus": "stone",
    "calculi": "stone",
    "nevi": "nevus",
    "naevus": "nevus",
    "naevi": "nevus",
    "mole": "nevus",
    "malignancy": "malignant",
    "retinal": "retina",
    "vascular": "vessel",
    "colonic": "colon",
    "stromal": "stroma",
    "epithelial": "epithelium",
}


def words_of(text: str) -> list[str]:
    """The words of a text in small letters; a hyphen parts words."""
    return _WORD.findall(text.casefold())


def stem(word: str) -> str:
    """A word without plural, in American spelling, synonyms as one: enough to match names.

    >>> [stem(word) for word in ("tumours", "kidneys", "biopsies", "oedema", "renal")]
    ['tumor', 'kidney', 'biopsy', 'edema', 'kidney']
    """
    word = re.sub(r"(?<=[a-z]{2})our(?=s?$)", "or", word)
    word = word.replace("oedem", "edem").replace("haem", "hem").replace("oesoph", "esoph")
    if len(word) > 4 and word.endswith("ies"):
        word = word[:-3] + "y"
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    return _SAME.get(word, word)


def content_stems(name: str) -> frozenset[str]:
    """The stems of a class name that carry meaning."""
    stems = [stem(word) for word in words_of(name)]
    return frozenset(part for part in stems if part not in _EMPTY) or frozenset(stems)


def similar_pairs(sets: Sequence[frozenset[str]], threshold: float) -> list[tuple[int, int]]:
    """Pairs (i, j), i < j, whose sets have a Jaccard index above `threshold`.

    Two sets that alike share one of their few rarest words, so only those are looked up:
    every pair is found without comparing all with all.
    """
    counts = Counter(word for words in sets for word in words)
    holders: defaultdict[str, list[int]] = defaultdict(list)
    pairs = []
    for j, words in enumerate(sets):
        rare_first = sorted(words, key=lambda word: (counts[word], word))
        prefix = len(words) - math.ceil(threshold * len(words) - 1e-9) + 1
        candidates = set()
        for word in rare_first[:prefix]:
            candidates.update(holders[word])
            holders[word].append(j)
        for i in sorted(candidates):
            shared = len(sets[i] & words)
            if shared > threshold * (len(sets[i]) + len(words) - shared):
                pairs.append((i, j))
    return sorted(pairs)
