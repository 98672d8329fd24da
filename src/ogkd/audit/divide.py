"""From a checked dataset to parts to learn from, calibrate and test on.

What cannot be used, and what would make the test look better than it is, is left out with a reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ogkd.audit.result import Audit, united
from ogkd.cells import harmless
from ogkd.datasets.divide import complete_splits
from ogkd.datasets.manifest import Item, Manifest, first_lines
from ogkd.datasets.splits import keep_classes
from ogkd.datasets.tables import csv_text, relative_to, writable
from ogkd.errors import DataError

SHARES = {"train": 0.6, "val": 0.2, "test": 0.2}
_WORDS = {  # kinds of reasons -> how a count of them reads
    "unreadable": "unreadable",
    "several labels": "with more than one label",
    "copy": "repeated",
    "leak": "shared with a part for evaluation",
    "file name": "with a name that cannot be written in a table",
}
_STRICTEST = ("test", "val", "train")  # the copy that is tested on is the one to keep


@dataclass(frozen=True)
class LeftOut:
    """An image that is not used, the kind of reason, and the reason."""

    item: Item
    label: str
    kind: str
    reason: str


@dataclass(frozen=True)
class Division:
    """A dataset with splits, and what was left out for it."""

    manifest: Manifest
    left_out: tuple[LeftOut, ...]
    lost: tuple[str, ...]  # classes of which no image is left
    note: str = ""  # what could not be done

    def counts(self) -> dict[str, Counter[str]]:
        """Images of each class, or with each finding, in each part: counts[part][name]."""
        found: dict[str, Counter[str]] = {}
        parts = [*SHARES, *sorted({item.split for item in self.manifest.items} - set(SHARES))]
        for part in parts:
            labels = (c for item in self.manifest.items if item.split == part for c in item.present)
            found[part] = Counter(self.manifest.class_names[label] for label in labels)
        return found

    def size(self, part: str) -> int:
        """How many images a part has."""
        return sum(item.split == part for item in self.manifest.items)

    def reasons(self) -> str:
        """How many images are left out, and why."""
        kinds = Counter(one.kind for one in self.left_out)
        return ", ".join(f"{kinds[kind]} {words}" for kind, words in _WORDS.items() if kinds[kind])

    def absent(self, part: str) -> list[str]:
        """The classes that a part has no image of."""
        counts = self.counts()[part]
        return [name for name in self.manifest.class_names if not counts[name]]


def divide_checked(
    manifest: Manifest, audit: Audit, *, shares: Mapping[str, float] = SHARES, seed: int = 1
) -> Division:
    """Divide a dataset by what its check found; splits that it has stay as they are.

    Left out are unreadable files, pictures that occur with several labels, all but one of equal
    pictures (it gets what is known about findings in the others), and training images that show a
    patient or a picture of a stricter part. Similar images stay in one part.
    """
    bad = unusable(manifest, audit)
    good = [number for number in range(len(manifest.items)) if number not in bad]
    known = {  # findings of an image or of an equal one, which is left out
        number: found
        for members in audit.exact
        if (found := united([audit.records[number] for number in members]))
        for number in members
    }
    items = [
        replace(item, findings=known.get(number, item.findings))
        for number, item in enumerate(manifest.items)
        if number not in bad
    ]
    left = [_left_out(manifest, item, *bad[n]) for n, item in enumerate(manifest.items) if n in bad]
    present = sorted({label for item in items for label in item.present})
    lost = [name for label, name in enumerate(manifest.class_names) if label not in present]
    if len(present) < (1 if manifest.has_findings else 2):
        raise DataError(
            f"{len(present)} class(es) have images that can be used; at least 2 are needed. "
            f"Left out are {len(left)} of {len(manifest.items)} images:\n"
            f"{first_lines([one.reason for one in left])}\nFix or replace them."
        )
    kept = keep_classes(Manifest(tuple(items), manifest.class_names), present)
    links = _similar(audit, good)
    note = ""
    try:
        divided, leaks = complete_splits(kept, shares, seed, together=links)
    except DataError:
        # Better to test than to calibrate if there is not enough for both.
        fewer = {part: share for part, share in shares.items() if part != "val"}
        if len(fewer) < 2 or len(fewer) == len(shares):
            raise
        fewer = {part: share / sum(fewer.values()) for part, share in fewer.items()}
        divided, leaks = complete_splits(kept, fewer, seed, together=links)
        note = "There are too few images for a part to calibrate on (val)."
    why = "its patient, or a copy of it, is in a part that the model is evaluated on"
    left += [_left_out(kept, item, "leak", f"{item.image}: {why}") for item in leaks]
    return Division(divided, tuple(left), tuple(lost), note)


def unusable(manifest: Manifest, audit: Audit) -> dict[int, tuple[str, str]]:
    """The images that cannot be used, by number: the kind of reason, and the reason."""
    items = manifest.items
    found = {number: ("unreadable", reason) for number, reason in audit.unreadable.items()}
    for number, item in enumerate(items):
        if not writable(item.image) and number not in found:
            why = "the file name is not valid UTF-8 text or ends in a space; rename the file"
            found[number] = ("file name", f"{str(item.image)!a}: {why}")
    for members in audit.exact:
        records = [audit.records[number] for number in members]
        if united(records) is None:
            names = sorted({record.label for record in records})
            for number in members:
                others = [audit.records[one].file for one in members if one != number]
                why = f"the same picture is {' and '.join(names)} (see {', '.join(others)})"
                found[number] = ("several labels", f"{audit.records[number].file}: {why}")
            continue
        order = sorted(members, key=lambda n: (_rank(items[n].split), items[n].image.as_posix()))
        keep = next((number for number in order if number not in found), None)
        for number in order:
            if keep is not None and number != keep and number not in found:
                why = f"the same picture as {audit.records[keep].file}"
                found[number] = ("copy", f"{audit.records[number].file}: {why}")
    return found


def left_out_text(division: Division, folder: Path) -> str:
    """A table of what is left out and why, for a file in `folder`."""
    place = relative_to(folder)
    rows = [["path", "label", "why", "reason"]]
    for one in division.left_out:
        address = place(one.item.image) if writable(one.item.image) else ascii(str(one.item.image))
        rows.append([address, harmless(one.label), one.kind, harmless(one.reason)])
    return csv_text(rows)


def _left_out(manifest: Manifest, item: Item, kind: str, reason: str) -> LeftOut:
    return LeftOut(item, manifest.label_text(item), kind, reason)


def _rank(split: str) -> int:
    return _STRICTEST.index(split) if split in _STRICTEST else 0


def _similar(audit: Audit, good: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of similar images, as places in `good`."""
    place = {number: row for row, number in enumerate(good)}
    # One of equal images stands for all of them in the pairs; the one that is kept takes its place.
    for members in audit.exact:
        kept = [place[number] for number in members if number in place]
        place.update(dict.fromkeys(members, kept[0]) if kept else {})
    pairs = ((pair.first, pair.second) for pair in audit.near)
    return [(place[one], place[two]) for one, two in pairs if one in place and two in place]
