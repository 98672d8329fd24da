"""Counts, sizes and groups of the data, and what in them deserves attention."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

from ogkd.audit.result import Case, Facts, Finding, Record
from ogkd.audit.scan import Picture

__all__ = ["FEW", "gather", "judge"]

FEW = 16  # shots of the usual benchmark
_UNEVEN = 10.0  # times as many images in the largest class as in the smallest
_TELLING = 0.5  # share of the images beyond the largest class that a shortcut gets right
_SEEN = 10  # images with one size, before the size can be said to tell anything
_SMALL = 32  # pixels


def gather(
    records: Sequence[Record], class_names: Sequence[str], pictures: Sequence[Picture | None]
) -> Facts:
    """Count the data."""
    splits = list(dict.fromkeys(record.split for record in records))
    counts = {split: dict.fromkeys(class_names, 0) for split in splits}
    for record in records:
        counts[record.split][record.label] += 1
    learned = list(counts[_learned(counts)].values())
    smallest = min(learned)
    seen = [picture for picture in pictures if picture is not None]
    sizes = Counter(f"{picture.width} x {picture.height}" for picture in seen)
    gray = sum(picture.gray for picture in seen)
    groups = {record.group for record in records if record.group is not None}
    return Facts(
        counts=counts,
        imbalance=max(learned) / smallest if smallest else None,
        sizes=dict(sizes.most_common()),
        gray=gray,
        colour=len(seen) - gray,
        groups=len(groups) or None,
        without_group=sum(record.group is None for record in records),
    )


def judge(
    facts: Facts, records: Sequence[Record], pictures: Sequence[Picture | None]
) -> list[Finding]:
    """Findings on counts, groups and sizes."""
    return [
        *_missing_classes(facts),
        *_few_images(facts),
        *_uneven(facts),
        *_groups(facts, records),
        *_shortcuts(records, pictures),
        *_tiny(records, pictures),
    ]


def _learned(counts: dict[str, dict[str, int]]) -> str:
    """The split that is learned from; '' or the first where there is no train."""
    return "train" if "train" in counts else next(iter(counts))


def _missing_classes(facts: Facts) -> list[Finding]:
    found = []
    for split, counts in facts.counts.items():
        absent = ", ".join(name for name, count in counts.items() if not count)
        if absent and split == _learned(facts.counts):
            what = f"No image to learn from for: {absent}."
            advice = "Add some, or leave the class out."
            found.append(Finding("class-missing", "error", what, advice))
        elif absent:
            what = f"The split '{split}' has no image of: {absent}."
            advice = "Add some: a class that is not there cannot be measured."
            found.append(Finding("class-missing", "warning", what, advice))
    return found


def _few_images(facts: Facts) -> list[Finding]:
    counts = facts.counts[_learned(facts.counts)]
    few = [f"{name} ({count})" for name, count in counts.items() if 0 < count < FEW]
    if not few:
        return []
    what = f"Fewer than {FEW} images to learn from: {', '.join(few)}."
    advice = "Expect unsteady results for these classes; a few more images help most here."
    return [Finding("class-small", "warning", what, advice)]


def _uneven(facts: Facts) -> list[Finding]:
    if facts.imbalance is None or facts.imbalance < _UNEVEN:
        return []
    what = f"The largest class has {facts.imbalance:.0f} times as many images as the smallest."
    advice = "Learn from the same number of each (--shots 16), and read macro-F1, not accuracy."
    return [Finding("imbalance", "warning", what, advice)]


def _groups(facts: Facts, records: Sequence[Record]) -> list[Finding]:
    if facts.groups is None:
        what = "Which images come from one patient is not known."
        advice = (
            "If you know it, give the data as a CSV with a column patient: "
            "images of one patient on both sides of a split make results look too good."
        )
        return [Finding("groups-unknown", "warning", what, advice)]
    found = []
    if facts.without_group:
        what = f"Images without a patient, while others have one: {facts.without_group}."
        where = tuple(Case((record.file,)) for record in records if record.group is None)
        advice = "Fill the column patient; an image without one counts as a patient of its own."
        found.append(Finding("groups-partial", "note", what, advice, where))
    by_group: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records:
        if record.group is not None:
            by_group[record.group].setdefault(record.split, record.file)
    shared = [
        Case(tuple(files.values()), f"{group}: {', '.join(files)}")
        for group, files in by_group.items()
        if len(files) > 1
    ]
    if shared:
        what = f"Patients (groups) with images in more than one split: {len(shared)}."
        advice = "Move all images of a patient to one split; until then results are too good."
        found.append(Finding("group-leak", "error", what, advice, tuple(shared)))
    return found


def _shortcuts(records: Sequence[Record], pictures: Sequence[Picture | None]) -> list[Finding]:
    """Properties of the files, not of what they show, that give the class away."""
    seen = [(r, p) for r, p in zip(records, pictures, strict=True) if p is not None]
    labels = [record.label for record, _ in seen]
    properties: dict[str, list[Hashable]] = {
        "size": [(picture.width, picture.height) for _, picture in seen],
        "colour (grey or not)": [picture.gray for _, picture in seen],
    }
    found = []
    for name, values in properties.items():
        right, plain = _told_by(values, labels)
        if plain < 1 and (right - plain) / (1 - plain) >= _TELLING:
            what = (
                f"The image's {name} alone tells the class of {100 * right:.0f} % of the images "
                f"(guessing the largest class: {100 * plain:.0f} %)."
            )
            advice = (
                "A model may learn that instead of the disease: check where each class is from."
            )
            found.append(Finding("shortcut", "warning", what, advice))
    return found


def _told_by(values: Sequence[Hashable], labels: Sequence[str]) -> tuple[float, float]:
    """Accuracy of the commonest class for each frequent value, and of the commonest of all."""
    if not labels:
        return 0.0, 1.0
    tables: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for value, label in zip(values, labels, strict=True):
        tables[value][label] += 1
    (common, most), *_ = Counter(labels).most_common(1)
    right = sum(
        table.most_common(1)[0][1] if table.total() >= _SEEN else table[common]
        for table in tables.values()
    )
    return right / len(labels), most / len(labels)


def _tiny(records: Sequence[Record], pictures: Sequence[Picture | None]) -> list[Finding]:
    where = tuple(
        Case((record.file,), f"{picture.width} x {picture.height}")
        for record, picture in zip(records, pictures, strict=True)
        if picture is not None and min(picture.width, picture.height) < _SMALL
    )
    if not where:
        return []
    what = f"Images smaller than {_SMALL} pixels on a side: {len(where)}."
    advice = "Use the original images if you have them: most models see 224 pixels or more."
    return [Finding("tiny", "note", what, advice, where)]
