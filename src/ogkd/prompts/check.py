"""Check the quality of a prompt bank by its texts.

An error is a text that does harm or a rule that is broken; a warning is worth checking.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

SHORTEST, LONGEST = 8, 40  # words
NEAR = 0.8  # token Jaccard above which two texts say the same
_FEW = 10  # prompts per class below which an ensemble is too small

_NUMBERED = re.compile(r"\s*(?:\(?\d{1,3}[.):](?=\s)|[-*•–—#]+\s|(?:prompt|text)\s+\d+\b)", re.I)
_SLOT = re.compile(r"[{}<>]|\[(?:class|name|organ|modality)[^\]]*\]|\bXX+\b", re.I)
_CHATTER = re.compile(
    r"\s*(?:sure|certainly|of course|here (?:are|is)|as an ai|i (?:cannot|can't|am|hope))\b|```",
    re.I,
)
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")
_EMPTY = frozenset({"a", "an", "and", "at", "by", "for", "from", "in", "of", "on", "or", "the"})

# Synonyms of parts of class names that writers use for variety.
_SYNONYMS = {
    "normal": "healthy",
    "kidney": "renal",
    "lung": "pulmonary",
    "cyst": "cystic",
    "stone": "calculus calculi",
    "nevus": "nevi naevus naevi mole",
    "malignant": "malignancy",
    "retina": "retinal",
    "vessel": "vascular",
    "colon": "colonic",
    "stroma": "stromal",
    "epithelium": "epithelial",
}
_SAME = {other: word for word, others in _SYNONYMS.items() for other in others.split()}


@dataclass(frozen=True)
class Finding:
    """One problem of a bank: the rule, the class and the texts concerned."""

    severity: Literal["error", "warning"]
    rule: str
    class_name: str
    message: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassSummary:
    """Statistics of one class; `mentions` is the share of its texts that name it."""

    class_name: str
    prompts: int
    shortest: int
    mean: float
    longest: int
    mentions: float


def text_faults(text: str) -> list[tuple[str, str]]:
    """Rule and message of each fault of a single text."""
    if not text.strip():
        return [("blank", "is blank")]
    count = len(text.split())
    chatter = _CHATTER.match(text) or "language model" in text.casefold()
    rules = (
        (
            "length",
            not SHORTEST <= count <= LONGEST,
            f"has {count} words, not {SHORTEST} to {LONGEST}",
        ),
        ("characters", _odd_characters(text), "has control characters or odd spaces"),
        ("numbering", _NUMBERED.match(text), "starts with a number or bullet"),
        ("slot", _SLOT.search(text), "has an unfilled slot"),
        ("chatter", chatter, "addresses the reader instead of describing the image"),
    )
    return [(rule, message) for rule, broken, message in rules if broken]


def check_bank(
    bank: Mapping[str, Sequence[str]], *, count: int | None = None
) -> tuple[list[ClassSummary], list[Finding]]:
    """Statistics of each class and all findings; `count` requires that many prompts per class."""
    findings: list[Finding] = []
    rows: list[ClassSummary] = []
    for name, texts in bank.items():
        if count is not None and len(texts) != count:
            message = f"{len(texts)} prompts instead of {count}."
            findings.append(Finding("error", "count", name, message))
        elif count is None and len(texts) < _FEW:
            findings.append(Finding("warning", "count", name, f"Only {len(texts)} prompts."))
        for text in texts:
            for rule, message in text_faults(text):
                findings.append(Finding("error", rule, name, f"A text {message}.", (text,)))
        share = _mention_share(name, texts, bank)
        findings += _repeats(name, texts)
        findings += _mentions(name, texts, bank, share)
        lengths = [len(text.split()) for text in texts] or [0]
        sizes = min(lengths), sum(lengths) / len(lengths), max(lengths)
        rows.append(ClassSummary(name, len(texts), *sizes, share))
    return rows, [*findings, *_across(bank)]


def _odd_characters(text: str) -> bool:
    if text != text.strip() or "  " in text or "\N{REPLACEMENT CHARACTER}" in text:
        return True
    # C*: control, invisible, private, broken or unassigned; Z*: spaces other than the common one.
    return any(unicodedata.category(sign)[0] in "CZ" for sign in text if sign != " ")


def _repeats(name: str, texts: Sequence[str]) -> Iterator[Finding]:
    sequences = [tuple(words_of(text)) for text in texts]
    for words, times in Counter(sequences).items():
        if times > 1 and words:
            text = texts[sequences.index(words)]
            yield Finding("error", "duplicate", name, f"A text appears {times} times.", (text,))
    sets = [frozenset(words) for words in sequences]
    for i, j in itertools.combinations(range(len(texts)), 2):
        if sequences[i] != sequences[j] and similar(sets[i], sets[j]):
            message = "Two texts are nearly the same."
            yield Finding("error", "near-duplicate", name, message, (texts[i], texts[j]))


def _mentions(
    name: str, texts: Sequence[str], names: Iterable[str], share: float
) -> Iterator[Finding]:
    if share == 0:
        yield Finding("error", "mention", name, "No text names the class.")
        return
    if share < 0.5:
        message = f"Only {share:.0%} of the texts name the class."
        yield Finding("warning", "mention", name, message)
    of_name = content_stems(name)
    others = [content_stems(other) - of_name for other in names if other != name]
    others = list({rest for rest in others if rest})
    ambiguous = [text for text in texts if any(rest <= _stems(text) for rest in others)]
    if len(ambiguous) > 0.3 * len(texts):
        message = f"{len(ambiguous)} texts also name another class, which moves them towards it."
        yield Finding("warning", "other class", name, message, tuple(ambiguous[:3]))


def _mention_share(name: str, texts: Sequence[str], names: Iterable[str]) -> float:
    """Share of texts with at least half of the words that only this class's name has.

    If other names contain every word of it, all of its words count.
    """
    whole = content_stems(name)
    shared = frozenset[str]().union(*(content_stems(other) for other in names if other != name))
    wanted = whole - shared or whole
    named = [2 * len(wanted & _stems(text)) >= len(wanted) for text in texts]
    return sum(named) / max(1, len(named))


def _across(bank: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Find texts that classes share."""
    owners: defaultdict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for name, texts in bank.items():
        for text in texts:
            owners[tuple(words_of(text))][name] = text
    for rows in owners.values():
        (name, text), *others = rows.items()
        if others:
            message = f"A text also appears under {', '.join(other for other, _ in others)}."
            yield Finding("error", "duplicate", name, message, (text,))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; a hyphen separates words."""
    return _WORD.findall(text.casefold())


def _stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, words_of(text)))


@cache
def stem(word: str) -> str:
    """Reduce a word to singular, American spelling and one synonym: enough to match names.

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


@cache
def content_stems(name: str) -> frozenset[str]:
    """The stems of the meaningful words of a class name."""
    stems = [stem(word) for word in words_of(name)]
    return frozenset(part for part in stems if part not in _EMPTY) or frozenset(stems)


def similar(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two sets of words have a Jaccard index above NEAR."""
    return len(first & second) > NEAR * len(first | second)
