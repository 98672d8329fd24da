"""Duplicates, unreadable files and suspicious labels as findings for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ogkd.audit.duplicates import Duplicates
from ogkd.audit.result import Case, Finding, LabelReport, Record

__all__ = ["on_duplicates", "on_labels", "on_unreadable"]


def on_unreadable(records: Sequence[Record], reasons: Mapping[int, str]) -> list[Finding]:
    """Files that cannot be read: `fit` would stop at them."""
    if not reasons:
        return []
    where = tuple(Case((records[number].file,), reason) for number, reason in reasons.items())
    what = f"Files that cannot be read: {len(where)} of {len(records)}."
    advice = "Replace them or take them out; `ogkd fit` stops at them."
    return [Finding("unreadable", "error", what, advice, where)]


def on_duplicates(records: Sequence[Record], found: Duplicates) -> list[Finding]:
    """Equal and similar images, by where they lie and what they are labelled."""
    findings = [*_exact(records, found), *_near(records, found)]
    if found.flat:
        what = f"Images that show (almost) nothing, one even grey: {len(found.flat)}."
        where = tuple(Case((records[number].file,)) for number in found.flat)
        advice = "Look at them and take empty ones out. They are not compared with others."
        findings.append(Finding("flat", "warning", what, advice, where))
    if not found.complete:
        what = "There are so many similar images that the list of near duplicates is cut."
        advice = "Give a smaller --near, or thin out sequences such as the frames of a video."
        findings.append(Finding("near-cut", "warning", what, advice))
    return findings


def _sorted_out(
    records: Sequence[Record], cases: Sequence[tuple[Sequence[int], Case]]
) -> tuple[list[Case], list[Case], list[Case]]:
    """Copies in two splits, copies under two labels (one may be both), and all others."""
    leaks = [case for members, case in cases if _across_splits(records, members)]
    torn = [case for members, case in cases if _across_labels(records, members)]
    plain = [
        case
        for members, case in cases
        if not (_across_splits(records, members) or _across_labels(records, members))
    ]
    return leaks, torn, plain


def _exact(records: Sequence[Record], found: Duplicates) -> list[Finding]:
    cases = [(members, _case(records, members)) for members in found.exact]
    leaks, torn, plain = _sorted_out(records, cases)
    findings = []
    if leaks:
        what = f"Images in more than one split, pixel for pixel: {len(leaks)}."
        advice = "Keep each in one split only; until then the test judges what was learned."
        findings.append(Finding("exact-leak", "error", what, advice, tuple(leaks)))
    if torn:
        what = f"Images under two labels, pixel for pixel: {len(torn)}."
        advice = "Find out which label is right and remove the other copy."
        findings.append(Finding("exact-labels", "error", what, advice, tuple(torn)))
    if plain:
        what = f"Images there more than once, with one label in one split: {len(plain)}."
        advice = "Keep one copy: repeated images count double."
        findings.append(Finding("exact", "warning", what, advice, tuple(plain)))
    return findings


def _near(records: Sequence[Record], found: Duplicates) -> list[Finding]:
    cases = []
    for pair in found.near:
        members = (pair.first, pair.second)
        likeness = f"{pair.bits} bits, likeness {pair.likeness:.3f}; "
        cases.append((members, _case(records, members, likeness)))
    leaks, torn, plain = _sorted_out(records, cases)
    findings = []
    if leaks:
        what = f"Pairs of nearly the same image in different splits: {len(leaks)}."
        advice = "Look at them (--html): the same lesion in train and test is a leak."
        findings.append(Finding("near-leak", "warning", what, advice, tuple(leaks)))
    if torn:
        what = f"Pairs of nearly the same image with different labels: {len(torn)}."
        advice = "Look at them (--html): at most one of the labels is likely to be right."
        findings.append(Finding("near-labels", "warning", what, advice, tuple(torn)))
    if plain:
        what = f"Pairs of nearly the same image with one label in one split: {len(plain)}."
        advice = "Harmless in most cases; few shots drawn from copies teach less."
        findings.append(Finding("near", "note", what, advice, tuple(plain)))
    return findings


def on_labels(records: Sequence[Record], report: LabelReport) -> list[Finding]:
    """Labels that a classifier which has not seen them would not give."""
    findings = []
    if report.left_out:
        what = f"Too few images to judge the labels of: {', '.join(report.left_out)}."
        advice = "At least 5 images (patients, where known) of a class are needed; add some."
        findings.append(Finding("labels-few", "note", what, advice))
    if not report.judged:
        what = "The labels were not judged: fewer than two classes have enough images."
        findings.append(Finding("labels-skipped", "warning", what, "Add images and run again."))
    if report.suspects:
        what = (
            f"Labels that look wrong: {len(report.suspects)} of {report.judged}, to a classifier "
            f"that agrees with {100 * (report.accuracy or 0):.0f} % of them."
        )
        where = tuple(
            Case(
                (records[one.image].file,),
                f"labelled {one.given} ({one.score:.3f}), looks like {one.suggested}",
            )
            for one in report.suspects
        )
        advice = "Let someone who can judge look at them (--html), the first ones first."
        findings.append(Finding("labels", "warning", what, advice, where))
    return findings


def _case(records: Sequence[Record], members: Sequence[int], words: str = "") -> Case:
    parts = [
        f"{records[m].split + '/' if records[m].split else ''}{records[m].label}" for m in members
    ]
    return Case(tuple(records[m].file for m in members), words + " = ".join(dict.fromkeys(parts)))


def _across_splits(records: Sequence[Record], members: Sequence[int]) -> bool:
    return len({records[member].split for member in members}) > 1


def _across_labels(records: Sequence[Record], members: Sequence[int]) -> bool:
    return len({records[member].label for member in members}) > 1
