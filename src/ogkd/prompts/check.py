"""What reading a prompt bank tells of its quality; what needs a model is in evaluation/prompts.py.

An error is a text that harms or a promise that is broken; a warning is worth a look.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from ogkd.prompts.words import content_stems, similar_pairs, stem, words_of

__all__ = ["LONGEST", "NEAR", "SHORTEST", "ClassSummary", "Finding", "check_bank", "text_faults"]

SHORTEST, LONGEST = 8, 40  # words
NEAR = 0.8  # token Jaccard above which two texts say the same
_FEW = 10  # prompts of a class below which an ensemble is hardly one
_OPENING = 4  # words

_NUMBERED = re.compile(r"\s*(?:\(?\d{1,3}[.):](?=\s)|[-*•–—#]+\s|(?:prompt|text)\s+\d+\b)", re.I)
_SLOT = re.compile(r"[{}<>]|\[(?:class|name|organ|modality)[^\]]*\]|\bXX+\b", re.I)
_CHATTER = re.compile(
    r"\s*(?:sure|certainly|of course|here (?:are|is)|as an ai|i (?:cannot|can't|am|hope))\b|```",
    re.I,
)


@dataclass(frozen=True)
class Finding:
    """One remark on a bank: what rule, which class, which texts."""

    severity: Literal["error", "warning"]
    rule: str
    class_name: str
    message: str
    texts: tuple[str, ...] = ()


@dataclass(frozen=True)
class ClassSummary:
    """A class in numbers; `mentions` is the share of its texts that name it."""

    class_name: str
    prompts: int
    shortest: int
    mean: float
    longest: int
    mentions: float


def text_faults(
    text: str, *, shortest: int = SHORTEST, longest: int = LONGEST
) -> list[tuple[str, str]]:
    """Rule and message of each fault that one text has by itself."""
    if not text.strip():
        return [("blank", "is blank")]
    faults = []
    count = len(text.split())
    if not shortest <= count <= longest:
        faults.append(("length", f"has {count} words, not {shortest} to {longest}"))
    if _odd_characters(text):
        faults.append(("characters", "has control characters or odd spaces"))
    if _NUMBERED.match(text):
        faults.append(("numbering", "starts with a number or bullet"))
    if _SLOT.search(text):
        faults.append(("slot", "has an unfilled slot"))
    if _CHATTER.match(text) or "language model" in text.casefold():
        faults.append(("chatter", "speaks to the reader instead of describing"))
    return faults


def check_bank(
    bank: Mapping[str, Sequence[str]],
    *,
    count: int | None = None,
    shortest: int = SHORTEST,
    longest: int = LONGEST,
) -> tuple[list[ClassSummary], list[Finding]]:
    """Numbers of each class and all findings; `count` demands that many prompts per class."""
    findings: list[Finding] = []
    for name, texts in bank.items():
        findings += _count(name, texts, count)
        for text in texts:
            findings += [
                Finding("error", rule, name, f"A text {message}.", (text,))
                for rule, message in text_faults(text, shortest=shortest, longest=longest)
            ]
        findings += _repeats(name, texts)
        findings += _openings(name, texts)
        findings += _mentions(name, texts, bank)
    findings += _across(bank)
    return [_summary(name, texts, bank) for name, texts in bank.items()], findings


def _odd_characters(text: str) -> bool:
    if text != text.strip() or "  " in text or "\N{REPLACEMENT CHARACTER}" in text:
        return True
    # C*: control, invisible, private, broken or unassigned; Z*: spaces other than the common one.
    return any(unicodedata.category(sign)[0] in "CZ" for sign in text if sign != " ")


def _count(name: str, texts: Sequence[str], count: int | None) -> list[Finding]:
    if count is not None and len(texts) != count:
        message = f"{len(texts)} prompts, but {count} are asked for."
        return [Finding("error", "count", name, message)]
    if count is None and len(texts) < _FEW:
        return [Finding("warning", "count", name, f"Only {len(texts)} prompts.")]
    return []


def _repeats(name: str, texts: Sequence[str]) -> list[Finding]:
    sequences = [tuple(words_of(text)) for text in texts]
    twice = [words for words, times in Counter(sequences).items() if times > 1 and words]
    findings = [
        Finding(
            "error",
            "duplicate",
            name,
            f"One text stands there {sequences.count(words)} times.",
            (texts[sequences.index(words)],),
        )
        for words in twice
    ]
    for i, j in similar_pairs([frozenset(words) for words in sequences], NEAR):
        if sequences[i] != sequences[j]:
            message = "Two texts are nearly the same."
            findings.append(Finding("error", "near-duplicate", name, message, (texts[i], texts[j])))
    return findings


def _openings(name: str, texts: Sequence[str]) -> list[Finding]:
    """Texts that begin alike once the class name is taken out: a pattern that was filled in."""
    own = content_stems(name)
    groups: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for text in texts:
        rest = [word for word in words_of(text) if stem(word) not in own]
        groups[tuple(rest[:_OPENING])].append(text)
    most = max(3, len(texts) // 10)
    return [
        Finding(
            "warning",
            "pattern",
            name,
            f"{len(group)} texts begin with the same {_OPENING} words.",
            tuple(group[:3]),
        )
        for group in groups.values()
        if len(group) > most
    ]


def _mentions(name: str, texts: Sequence[str], bank: Mapping[str, Sequence[str]]) -> list[Finding]:
    share = _mention_share(name, texts, bank)
    if share == 0:
        message = "No text names the class, so nothing ties its texts together."
        return [Finding("error", "mention", name, message)]
    findings = []
    if share < 0.5:
        message = f"Only {share:.0%} of the texts name the class."
        findings.append(Finding("warning", "mention", name, message))
    own = content_stems(name)
    others = [content_stems(other) - own for other in bank if other != name]
    strange = [
        text
        for text in texts
        if any(rest and rest <= {stem(word) for word in words_of(text)} for rest in others)
    ]
    if len(strange) > 0.3 * len(texts):
        message = f"{len(strange)} texts name another class too, which draws them towards it."
        findings.append(Finding("warning", "other class", name, message, tuple(strange[:3])))
    return findings


def _mention_share(name: str, texts: Sequence[str], names: Iterable[str]) -> float:
    """Share of texts with at least half of the words that only this class's name has.

    Where every word of the name is in another name too, all of them count.
    """
    whole = content_stems(name)
    shared = frozenset[str]().union(*(content_stems(other) for other in names if other != name))
    own = whole - shared or whole
    named = [2 * len(own & {stem(word) for word in words_of(text)}) >= len(own) for text in texts]
    return sum(named) / max(1, len(named))


def _across(bank: Mapping[str, Sequence[str]]) -> list[Finding]:
    """Texts that classes share, as they are or with the class name exchanged."""
    rows = [(name, text) for name, texts in bank.items() for text in texts]
    findings = []
    owners: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, text in rows:
        owners[tuple(words_of(text))].append(name)
    for name, text in rows:
        names = list(dict.fromkeys(owners.pop(tuple(words_of(text)), [])))
        if len(names) > 1:
            message = f"A text also stands under {', '.join(names[1:])}."
            findings.append(Finding("error", "duplicate", name, message, (text,)))
    own = {name: content_stems(name) for name in bank}
    bare = [
        frozenset(word for word in words_of(text) if stem(word) not in own[name])
        for name, text in rows
    ]
    refilled: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for i, j in similar_pairs(bare, NEAR):
        if rows[i][0] != rows[j][0]:
            refilled[rows[i][0]].setdefault(i, j)
            refilled[rows[j][0]].setdefault(j, i)
    for name, partners in refilled.items():
        i, j = next(iter(partners.items()))
        message = f"{len(partners)} texts are those of other classes with another name filled in."
        findings.append(Finding("warning", "pattern", name, message, (rows[i][1], rows[j][1])))
    return findings


def _summary(name: str, texts: Sequence[str], names: Iterable[str]) -> ClassSummary:
    lengths = [len(text.split()) for text in texts] or [0]
    mean = sum(lengths) / len(lengths)
    share = _mention_share(name, texts, names)
    return ClassSummary(name, len(texts), min(lengths), mean, max(lengths), share)
