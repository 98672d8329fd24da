"""From a checked dataset to parts to learn from, calibrate and test on.

What cannot be used, and what would make the test look better than it is, is left out with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ogkd.audit.result import Audit
from ogkd.cells import escape_formula
from ogkd.data.case import Dataset
from ogkd.data.divide import complete_splits
from ogkd.data.names import first_lines
from ogkd.data.splits import yields
from ogkd.data.tables import Row, relative_to, writable
from ogkd.data.task import Target
from ogkd.errors import DataError
from ogkd.images import ImageRef

SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}
_WORDS = {  # kinds of reasons -> how a count of them reads
    "unreadable": "unreadable",
    "several labels": "with more than one label",
    "copy": "repeated",
    "leak": "training images nearly identical to test images or of the same patient",
    "file name": "with a name that cannot be written in a table",
}


@dataclass(frozen=True)
class LeftOut:
    """An image that is not used, the kind of reason, and the reason."""

    image: ImageRef
    label: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Division:
    """A dataset with splits, image by image, and what was left out for it."""

    dataset: Dataset
    left_out: tuple[LeftOut, ...]
    lost: tuple[str, ...]  # classes of which no image is left
    note: str = ""  # what could not be done

    def counts(self) -> dict[str, Counter[str]]:
        """Images of each class, or with each finding, in each part: counts[part][name]."""
        counts: dict[str, Counter[str]] = {}
        dataset, task = self.dataset, self.dataset.task
        for part in [*SHARES, *sorted(set(dataset.splits) - set(SHARES))]:
            targets = [case.target for case in dataset.cases if case.split == part]
            counts[part] = Counter(dict(zip(task.names, task.support_counts(targets), strict=True)))
        return counts

    def size(self, part: str) -> int:
        """How many images a part has."""
        return sum(case.split == part for case in self.dataset.cases)

    def reasons(self) -> str:
        """How many images are left out, and why."""
        kinds = Counter(image.kind for image in self.left_out)
        return ", ".join(f"{kinds[kind]} {words}" for kind, words in _WORDS.items() if kinds[kind])

    def notes(self) -> Iterator[str]:
        """What a user should know about it before relying on it."""
        if self.left_out:
            yield f"Left out {len(self.left_out)} images: {self.reasons()}."
        if self.lost:
            yield f"Left out, because no usable image is left: {', '.join(self.lost)}."
        if self.note:
            yield self.note
        if untested := self.absent("test"):
            yield f"No image to test on, so nothing will be known about: {', '.join(untested)}."

    def absent(self, part: str) -> list[str]:
        """The classes that a part has no image of."""
        counts = self.counts()[part]
        return [name for name in self.dataset.names if not counts[name]]


def divide_checked(
    dataset: Dataset, audit: Audit, *, shares: Mapping[str, float] = SHARES, seed: int = 1
) -> Division:
    """Divide a dataset by what its check found; splits that it has stay as they are.

    Left out are unreadable files, images that occur with several labels, all but one of equal
    images (it gets what is known about findings in the others), and training images that show a
    patient or an image of a stricter part. Similar images, and those of a case, stay in one part.
    """
    dataset = dataset.by_image()
    task, cases = dataset.task, dataset.cases
    bad, known = unusable(dataset, audit)
    good = [number for number in range(len(cases)) if number not in bad]
    excluded = [
        LeftOut(cases[number].image, task.text(cases[number].target), *why)
        for number, why in sorted(bad.items())
    ]
    usable = [replace(cases[n], target=known.get(n, cases[n].target)) for n in good]
    present = sorted({label for case in usable for label in task.shown(case.target)})
    lost = [name for label, name in enumerate(task.names) if label not in present]
    if len(present) < task.fewest:
        raise DataError(
            f"{len(present)} {task.plural} have images that can be used; at least {task.fewest} "
            f"are needed. Left out are {len(excluded)} of {len(cases)} images:\n"
            f"{first_lines([image.reason for image in excluded])}\nFix or replace them."
        )
    similar = _similar(audit, good)
    kept = dataset.with_cases(usable).restrict(present)
    note = ""
    try:
        divided, leaks = complete_splits(kept, shares, seed, together=similar)
    except DataError:
        # Better to test than to calibrate if there is not enough for both.
        fewer = {part: share for part, share in shares.items() if part != "val"}
        if len(fewer) < 2 or len(fewer) == len(shares):
            raise
        fewer = {part: share / sum(fewer.values()) for part, share in fewer.items()}
        note = "There are too few images for a part to calibrate on (val)."
        divided, leaks = complete_splits(kept, fewer, seed, together=similar)
    why = "its patient, or a copy of it, is in a part that the model is evaluated on"
    excluded += [
        LeftOut(case.image, kept.task.text(case.target), "leak", f"{case.image}: {why}")
        for case in leaks
    ]
    return Division(divided, tuple(excluded), tuple(lost), note)


def unusable(
    dataset: Dataset, audit: Audit
) -> tuple[dict[int, tuple[str, str]], dict[int, Target]]:
    """The images that cannot be used, by number: the kind of reason, and the reason.

    Also what equal images know together, by number.
    """
    cases = dataset.cases
    known: dict[int, Target] = {}
    reasons = {number: ("unreadable", reason) for number, reason in audit.unreadable.items()}
    for number, case in enumerate(cases):
        if not writable(case.image) and number not in reasons:
            why = "the file name is not valid UTF-8 text or ends in a space; rename the file"
            reasons[number] = ("file name", f"{str(case.image)!a}: {why}")
    for members in audit.exact:
        records = [audit.records[number] for number in members]
        agreed = dataset.task.agree([record.target for record in records])
        if agreed is None:
            names = sorted({record.label for record in records})
            for number in members:
                others = [audit.records[other].file for other in members if other != number]
                why = f"the same image is {' and '.join(names)} (see {', '.join(others)})"
                reasons[number] = ("several labels", f"{audit.records[number].file}: {why}")
            continue
        known |= dict.fromkeys(members, agreed)
        order = sorted(members, key=lambda n: (yields(cases[n]), cases[n].image.as_posix()))
        keep, *copies = [number for number in order if number not in reasons] or [-1]
        for number in copies:  # the copy that is tested on is the one to keep
            why = f"the same image as {audit.records[keep].file}"
            reasons[number] = ("copy", f"{audit.records[number].file}: {why}")
    return reasons, known


def left_out_rows(division: Division, folder: Path) -> list[Row]:
    """A table of what is left out and why, for a file in `folder`."""
    relative = relative_to(folder)
    rows: list[Row] = [["path", "label", "why", "reason"]]
    for image in division.left_out:
        path = relative(image.image) if writable(image.image) else ascii(str(image.image))
        rows.append([path, escape_formula(image.label), image.kind, escape_formula(image.reason)])
    return rows


def _similar(audit: Audit, good: Sequence[int]) -> list[list[int]]:
    """Pairs of similar images, as positions in `good`."""
    rows = {number: row for row, number in enumerate(good)}
    # One of equal images stands for all of them in the pairs: the one that is kept.
    for members in audit.exact:
        for kept in [rows[number] for number in members if number in rows][:1]:
            rows |= dict.fromkeys(members, kept)
    pairs = [[rows[n] for n in (pair.first, pair.second) if n in rows] for pair in audit.near]
    return [pair for pair in pairs if len(pair) == 2]
