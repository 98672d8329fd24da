"""What the check reports: counts of the data, and every problem as a finding with advice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ogkd.audit.duplicates import Duplicates
from ogkd.audit.result import (
    Facts,
    Finding,
    LabelReport,
    Occurrence,
    Record,
    ScannedImage,
    Severity,
)
from ogkd.data.task import Task
from ogkd.images.ref import advice_once

FEW = 16  # shots of the usual benchmark
_UNEVEN = 10.0  # times as many images in the largest class as in the smallest
_TELLING = 0.5  # share of the images beyond the largest class that a shortcut gets right
_COMMON = 10  # images with one size, before the size can say anything about the class
_SMALL = 32  # pixels
_ADVICE = {
    "unreadable": "Replace or remove them; fitting stops at them.",
    "exact-leak": "Keep each in one split only; until then the test measures what was learned.",
    "exact-labels": "Find out which label is right and remove the other copies.",
    "exact": "Keep one copy: repeated images count twice.",
    "near-leak": "Look at them: the same lesion in train and test is a leak.",
    "near-labels": "Look at them: at most one of the labels is likely to be right.",
    "near": "Usually harmless; a few shots drawn from copies teach the model less.",
    "near-cut": "Allow fewer differing bits (near), or thin out sequences such as video frames.",
    "flat": "Look at them and remove the empty ones. They are not compared with other images.",
    "class-missing": "Add images, or remove the class.",
    "class-untested": "Add some: a class without images cannot be evaluated.",
    "class-small": "Expect unstable results for these classes; a few more images help most here.",
    "imbalance": "Learn from the same number of images per class (shots), and read macro-F1 rather "
    "than accuracy.",
    "groups-unknown": "If you know it, provide the data as a CSV file with a column patient: "
    "images of one patient on both sides of a split make results look better than they are.",
    "groups-partial": "Fill in the column patient; an image without one counts as a separate "
    "patient.",
    "group-leak": "Move all images of a patient to one split; until then results are too "
    "optimistic.",
    "shortcut": "A model may learn this instead of the disease: check the source of each class.",
    "tiny": "Use the original images if you have them: most models see 224 pixels or more.",
    "labels-few": "A class needs at least 5 images (patients, if known); add some.",
    "labels-skipped": "Add images and run the check again.",
    "labels": "Have an expert look at them, starting with the first.",
}

Images = Sequence[ScannedImage | None]


def _finding(kind: str, severity: Severity, what: str, where: Sequence[Occurrence] = ()) -> Finding:
    return Finding(kind, severity, what, _ADVICE[kind], tuple(where))


def _counted(
    kind: str, severity: Severity, what: str, where: Sequence[Occurrence]
) -> list[Finding]:
    """A finding that ends in the number of its cases; nothing if there are none."""
    return [_finding(kind, severity, f"{what}: {len(where)}.", where)] if where else []


def all_findings(
    task: Task,
    facts: Facts,
    records: Sequence[Record],
    images: Images,
    unreadable: Mapping[int, str],
    duplicates: Duplicates,
    labels: LabelReport | None,
) -> list[Finding]:
    short, install = advice_once(list(unreadable.values()))
    bad = [
        Occurrence((records[n].file,), reason) for n, reason in zip(unreadable, short, strict=True)
    ]
    unread = f"Files that cannot be read: {len(bad)} of {len(records)}. {install}".rstrip()
    return [
        *([_finding("unreadable", "error", unread, bad)] if bad else []),
        *_duplicates(task, records, duplicates),
        *data_findings(facts, records, images),
        *(_labels(records, labels) if labels else ()),
    ]


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes."""
    order = ("error", "warning", "note")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def gather_facts(
    records: Sequence[Record],
    class_names: Sequence[str],
    images: Images,
    shown: Sequence[Sequence[str]] | None = None,
) -> Facts:
    """Counts and sizes; `shown` are the classes or findings of each image, if not its label."""
    splits = list(dict.fromkeys(record.split for record in records))
    counts = {split: dict.fromkeys(class_names, 0) for split in splits}
    for record, names in zip(records, shown or [[r.label] for r in records], strict=True):
        for name in names:
            counts[record.split][name] += 1
    learned = list(counts[_training_split(counts)].values())
    smallest = min(learned)
    seen = [image for image in images if image is not None]
    sizes = Counter(f"{image.width} x {image.height}" for image in seen)
    gray = sum(image.gray for image in seen)
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


def data_findings(facts: Facts, records: Sequence[Record], images: Images) -> Iterator[Finding]:
    train = _training_split(facts.counts)
    for split, counts in facts.counts.items():
        absent = ", ".join(name for name, count in counts.items() if not count)
        if absent and split == train:
            yield _finding("class-missing", "error", f"No images to learn from for: {absent}.")
        elif absent:
            what = f"The split '{split}' has no images of: {absent}."
            yield Finding("class-missing", "warning", what, _ADVICE["class-untested"])
    learned = facts.counts[train].items()
    if few := ", ".join(f"{name} ({count})" for name, count in learned if 0 < count < FEW):
        yield _finding("class-small", "warning", f"Fewer than {FEW} images to learn from: {few}.")
    if facts.imbalance is not None and facts.imbalance >= _UNEVEN:
        times = f"{facts.imbalance:.0f} times as many images"
        what = f"The largest class has {times} as the smallest."
        yield _finding("imbalance", "warning", what)
    yield from _groups(facts, records)
    yield from _shortcuts(records, images)
    tiny = [
        Occurrence((record.file,), f"{image.width} x {image.height}")
        for record, image in zip(records, images, strict=True)
        if image is not None and min(image.width, image.height) < _SMALL
    ]
    yield from _counted("tiny", "note", f"Images smaller than {_SMALL} pixels on a side", tiny)


def _training_split(counts: Mapping[str, object]) -> str:
    """The split that is learned from: train, or the first if there is no train."""
    return "train" if "train" in counts else next(iter(counts))


def _groups(facts: Facts, records: Sequence[Record]) -> Iterator[Finding]:
    if facts.groups is None:
        what = "The data does not say which images come from the same patient."
        yield _finding("groups-unknown", "warning", what)
        return
    alone = [Occurrence((record.file,)) for record in records if record.group is None]
    what = "Images without a patient, although others have one"
    yield from _counted("groups-partial", "note", what, alone)
    by_group: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records:
        if record.group is not None:
            by_group[record.group].setdefault(record.split, record.file)
    shared = [
        Occurrence(tuple(files.values()), f"{group}: {', '.join(files)}")
        for group, files in by_group.items()
        if len(files) > 1
    ]
    what = "Patients (groups) with images in more than one split"
    yield from _counted("group-leak", "error", what, shared)


def _shortcuts(records: Sequence[Record], images: Images) -> Iterator[Finding]:
    """Properties of the files, not of what they show, that give the class away."""
    seen = [(r, image) for r, image in zip(records, images, strict=True) if image is not None]
    labels = [record.label for record, _ in seen]
    properties: dict[str, list[Hashable]] = {
        "size": [(image.width, image.height) for _, image in seen],
        "colour (grey or not)": [image.gray for _, image in seen],
    }
    for name, values in properties.items():
        accuracy, baseline = _accuracy_from(values, labels)
        if baseline < 1 and (accuracy - baseline) / (1 - baseline) >= _TELLING:
            what = f"The {name} alone predicts the class of {100 * accuracy:.0f} % of the images"
            usual = f"(always guessing the largest class: {100 * baseline:.0f} %)"
            yield _finding("shortcut", "warning", f"{what} {usual}.")


def _accuracy_from(values: Sequence[Hashable], labels: Sequence[str]) -> tuple[float, float]:
    """Accuracy of guessing each frequent value's commonest class, and of the commonest overall."""
    if not labels:
        return 0.0, 1.0
    tables: dict[Hashable, Counter[str]] = defaultdict(Counter)
    for value, label in zip(values, labels, strict=True):
        tables[value][label] += 1
    (common, most), *_ = Counter(labels).most_common(1)
    right = sum(
        table.most_common(1)[0][1] if table.total() >= _COMMON else table[common]
        for table in tables.values()
    )
    return right / len(labels), most / len(labels)


def _duplicates(task: Task, records: Sequence[Record], duplicates: Duplicates) -> Iterator[Finding]:
    exact = [(members, "") for members in duplicates.exact]
    leaks, mixed, plain = _by_harm(task, records, exact)
    what = "Images that occur in more than one split, pixel for pixel"
    yield from _counted("exact-leak", "error", what, leaks)
    what = "Images with more than one label, pixel for pixel"
    yield from _counted("exact-labels", "error", what, mixed)
    what = "Images that occur more than once, with one label in one split"
    yield from _counted("exact", "warning", what, plain)
    pairs = [
        ((pair.first, pair.second), f"{pair.bits} bits, likeness {pair.likeness:.3f}; ")
        for pair in duplicates.near
    ]
    leaks, mixed, plain = _by_harm(task, records, pairs)
    what = "Pairs of nearly identical images"
    yield from _counted("near-leak", "warning", f"{what} in different splits", leaks)
    yield from _counted("near-labels", "warning", f"{what} with different labels", mixed)
    yield from _counted("near", "note", f"{what} with one label in one split", plain)
    if not duplicates.complete:
        what = "There are so many similar images that the list of near duplicates was cut."
        yield _finding("near-cut", "warning", what)
    flat = [Occurrence((records[number].file,)) for number in duplicates.flat]
    what = "Images that show (almost) nothing but one shade of grey"
    yield from _counted("flat", "warning", what, flat)


def _by_harm(
    task: Task, records: Sequence[Record], copies: Sequence[tuple[Sequence[int], str]]
) -> tuple[list[Occurrence], list[Occurrence], list[Occurrence]]:
    """Copies across splits, copies across labels (a set may be both), and all others."""
    cases = []
    for members, words in copies:
        images = [records[member] for member in members]
        labels = dict.fromkeys(f"{image.split}/{image.label}".removeprefix("/") for image in images)
        case = Occurrence(tuple(image.file for image in images), words + " = ".join(labels))
        agreed = task.agree([image.target for image in images])
        cases.append((case, len({image.split for image in images}) > 1, agreed is None))
    return (
        [case for case, splits, _ in cases if splits],
        [case for case, _, labels in cases if labels],
        [case for case, splits, labels in cases if not splits and not labels],
    )


def _labels(records: Sequence[Record], report: LabelReport) -> Iterator[Finding]:
    if report.left_out:
        what = f"Too few images to check the labels of: {', '.join(report.left_out)}."
        yield _finding("labels-few", "note", what)
    if not report.checked:
        what = "The labels were not checked: fewer than two classes have enough images."
        yield _finding("labels-skipped", "warning", what)
    if report.suspects:
        cases = [
            Occurrence(
                (records[suspect.image].file,),
                f"labelled {suspect.given} ({suspect.score:.3f}), looks like {suspect.suggested}",
            )
            for suspect in report.suspects
        ]
        what = (
            f"Labels that look wrong: {len(cases)} of {report.checked}, according to a classifier"
        )
        agrees = f"that agrees with {100 * (report.accuracy or 0):.0f} % of the labels"
        yield _finding("labels", "warning", f"{what} {agrees}.", cases)
