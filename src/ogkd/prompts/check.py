"""Check the quality of a prompt bank by its texts.

An error is a text that does harm or a rule that is broken; a warning is worth checking.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections import defaultdict
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


@dataclass(frozen=True)
class Finding:
    """One problem of a bank: the rule, the class and the texts concerned."""

    severity: Literal["error", "warning"]
    rule: str
    class_name: str
    message: str
    texts: tuple[str, ...] = ()


def text_faults(text: str) -> list[tuple[str, str]]:
    """Rule and message of each fault of a single text."""
    if not text.strip():
        return [("blank", "is blank")]
    count = len(text.split())
    chatter = _CHATTER.match(text) or "language model" in text.casefold()
    long = f"has {count} words, not {SHORTEST} to {LONGEST}"
    rules = (
        ("length", not SHORTEST <= count <= LONGEST, long),
        ("characters", _odd_characters(text), "has control characters or odd spaces"),
        ("numbering", _NUMBERED.match(text), "starts with a number or bullet"),
        ("slot", _SLOT.search(text), "has an unfilled slot"),
        ("chatter", chatter, "addresses the reader instead of describing the image"),
    )
    return [(rule, message) for rule, broken, message in rules if broken]


def check_bank(bank: Mapping[str, Sequence[str]], *, count: int | None = None) -> list[Finding]:
    """All findings; `count` requires that many prompts per class."""
    findings = list(_duplicates(bank))
    for name, texts in bank.items():
        if count is not None and len(texts) != count:
            message = f"{len(texts)} prompts instead of {count}."
            findings.append(Finding("error", "count", name, message))
        elif len(texts) < _FEW:
            findings.append(Finding("warning", "count", name, f"Only {len(texts)} prompts."))
        findings += [
            Finding("error", rule, name, f"A text {message}.", (text,))
            for text in texts
            for rule, message in text_faults(text)
        ]
        findings += [*_near_duplicates(name, texts), *_mentions(name, texts, bank)]
    return findings


def _odd_characters(text: str) -> bool:
    if text != text.strip() or "  " in text or "\N{REPLACEMENT CHARACTER}" in text:
        return True
    # C*: control, invisible, private, broken or unassigned; Z*: spaces other than the common one.
    return any(unicodedata.category(sign)[0] in "CZ" for sign in text if sign != " ")


def _duplicates(bank: Mapping[str, Sequence[str]]) -> Iterator[Finding]:
    """Find texts of the same words, in one class or in several."""
    owners: defaultdict[tuple[str, ...], list[tuple[str, str]]] = defaultdict(list)
    for name, texts in bank.items():
        for text in texts:
            owners[tuple(words_of(text))].append((name, text))
    for words, rows in owners.items():
        if words and len(rows) > 1:
            classes = ", ".join(dict.fromkeys(name for name, _ in rows))
            message = f"A text appears {len(rows)} times (in {classes})."
            yield Finding("error", "duplicate", rows[0][0], message, (rows[0][1],))


def _near_duplicates(name: str, texts: Sequence[str]) -> Iterator[Finding]:
    rows = [(words_of(text), text) for text in texts]
    for (words, text), (others, other) in itertools.combinations(rows, 2):
        if words != others and similar(frozenset(words), frozenset(others)):
            message = "Two texts are nearly the same."
            yield Finding("error", "near-duplicate", name, message, (text, other))


def _mentions(name: str, texts: Sequence[str], names: Iterable[str]) -> Iterator[Finding]:
    """Find classes that no text names by half of its words, or whose texts name another class.

    Words that all class names share name none of them.
    """
    whole = content_stems(name)
    others = {other: content_stems(other) for other in names if other != name}
    wanted = whole.difference(*others.values()) or whole
    stems = [_stems(text) for text in texts]
    if not any(2 * len(wanted & words) >= len(wanted) for words in stems):
        yield Finding("error", "mention", name, "No text names the class.")
    rests = [rest - whole for rest in others.values() if rest - whole]
    ambiguous = [
        text
        for text, words in zip(texts, stems, strict=True)
        if any(rest <= words for rest in rests)
    ]
    if len(ambiguous) > 0.3 * len(texts):
        message = f"{len(ambiguous)} texts also name another class, which moves them towards it."
        yield Finding("warning", "other class", name, message, tuple(ambiguous[:3]))


def words_of(text: str) -> list[str]:
    """The words of a text in lower case; a hyphen separates words."""
    return _WORD.findall(text.casefold())


def _stems(text: str) -> frozenset[str]:
    return frozenset(map(stem, words_of(text)))


@cache
def stem(word: str) -> str:
    """Reduce a word to singular and American spelling: enough to match names.

    >>> [stem(word) for word in ("tumours", "kidneys", "biopsies", "oedema")]
    ['tumor', 'kidney', 'biopsy', 'edema']
    """
    word = re.sub(r"(?<=[a-z]{2})our(?=s?$)", "or", word)
    word = word.replace("oedem", "edem").replace("haem", "hem").replace("oesoph", "esoph")
    if len(word) > 4 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        return word[:-1]
    return word


@cache
def content_stems(name: str) -> frozenset[str]:
    """The stems of the meaningful words of a class name."""
    return _stems(name) - _EMPTY or _stems(name)


def similar(first: frozenset[str], second: frozenset[str]) -> bool:
    """Whether two sets of words have a Jaccard index above NEAR."""
    return len(first & second) > NEAR * len(first | second)
