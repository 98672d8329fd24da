"""What the check reports: counts of the data, and every problem as a finding with advice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence

from ogkd.audit.duplicates import Duplicates
from ogkd.audit.result import Case, Facts, Finding, LabelReport, Record, ScannedImage

FEW = 16  # shots of the usual benchmark
_UNEVEN = 10.0  # times as many images in the largest class as in the smallest
_TELLING = 0.5  # share of the images beyond the largest class that a shortcut gets right
_COMMON = 10  # images with one size, before the size can say anything about the class
_SMALL = 32  # pixels
_ORDER = ("error", "warning", "note")

Images = Sequence[ScannedImage | None]


def all_findings(
    facts: Facts,
    records: Sequence[Record],
    images: Images,
    unreadable: Mapping[int, str],
    duplicates: Duplicates,
    labels: LabelReport | None,
) -> tuple[Finding, ...]:
    """All findings, errors first."""
    found = [
        *_unreadable(records, unreadable),
        *_exact_duplicates(records, duplicates),
        *_near_duplicates(records, duplicates),
        *_flat_images(records, duplicates),
        *data_findings(facts, records, images),
        *(_labels(records, labels) if labels else ()),
    ]
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.severity)))


def gather_facts(records: Sequence[Record], class_names: Sequence[str], images: Images) -> Facts:
    """Count images, sizes and groups."""
    splits = list(dict.fromkeys(record.split for record in records))
    counts = {split: dict.fromkeys(class_names, 0) for split in splits}
    for record in records:
        counts[record.split][record.label] += 1
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
    """Findings about counts, groups and sizes."""
    yield from _missing_classes(facts)
    counts = facts.counts[_training_split(facts.counts)]
    few = [f"{name} ({count})" for name, count in counts.items() if 0 < count < FEW]
    if few:
        yield Finding(
            "class-small",
            "warning",
            f"Fewer than {FEW} images to learn from: {', '.join(few)}.",
            "Expect unstable results for these classes; a few more images help most here.",
        )
    if facts.imbalance is not None and facts.imbalance >= _UNEVEN:
        yield Finding(
            "imbalance",
            "warning",
            f"The largest class has {facts.imbalance:.0f} times as many images as the smallest.",
            "Learn from the same number of images per class (shots), and read macro-F1 rather "
            "than accuracy.",
        )
    yield from _groups(facts, records)
    yield from _shortcuts(records, images)
    tiny = tuple(
        Case((record.file,), f"{image.width} x {image.height}")
        for record, image in zip(records, images, strict=True)
        if image is not None and min(image.width, image.height) < _SMALL
    )
    if tiny:
        yield Finding(
            "tiny",
            "note",
            f"Images smaller than {_SMALL} pixels on a side: {len(tiny)}.",
            "Use the original images if you have them: most models see 224 pixels or more.",
            tiny,
        )


def _training_split(counts: Mapping[str, object]) -> str:
    """The split that is learned from: train, or the first if there is no train."""
    return "train" if "train" in counts else next(iter(counts))


def _missing_classes(facts: Facts) -> Iterator[Finding]:
    for split, counts in facts.counts.items():
        absent = ", ".join(name for name, count in counts.items() if not count)
        if absent and split == _training_split(facts.counts):
            what = f"No images to learn from for: {absent}."
            yield Finding("class-missing", "error", what, "Add images, or remove the class.")
        elif absent:
            what = f"The split '{split}' has no images of: {absent}."
            advice = "Add some: a class without images cannot be evaluated."
            yield Finding("class-missing", "warning", what, advice)


def _groups(facts: Facts, records: Sequence[Record]) -> Iterator[Finding]:
    if facts.groups is None:
        yield Finding(
            "groups-unknown",
            "warning",
            "The data does not say which images come from the same patient.",
            "If you know it, provide the data as a CSV file with a column patient: images of one "
            "patient on both sides of a split make results look better than they are.",
        )
        return
    if facts.without_group:
        yield Finding(
            "groups-partial",
            "note",
            f"Images without a patient, although others have one: {facts.without_group}.",
            "Fill in the column patient; an image without one counts as a separate patient.",
            tuple(Case((record.file,)) for record in records if record.group is None),
        )
    by_group: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records:
        if record.group is not None:
            by_group[record.group].setdefault(record.split, record.file)
    shared = tuple(
        Case(tuple(files.values()), f"{group}: {', '.join(files)}")
        for group, files in by_group.items()
        if len(files) > 1
    )
    if shared:
        yield Finding(
            "group-leak",
            "error",
            f"Patients (groups) with images in more than one split: {len(shared)}.",
            "Move all images of a patient to one split; until then results are too optimistic.",
            shared,
        )


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
            yield Finding(
                "shortcut",
                "warning",
                f"The {name} alone predicts the class of {100 * accuracy:.0f} % of the images "
                f"(always guessing the largest class: {100 * baseline:.0f} %).",
                "A model may learn this instead of the disease: check the source of each class.",
            )


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


def _unreadable(records: Sequence[Record], reasons: Mapping[int, str]) -> Iterator[Finding]:
    if reasons:
        yield Finding(
            "unreadable",
            "error",
            f"Files that cannot be read: {len(reasons)} of {len(records)}.",
            "Replace or remove them; fitting stops at them.",
            tuple(Case((records[number].file,), reason) for number, reason in reasons.items()),
        )


def _exact_duplicates(records: Sequence[Record], found: Duplicates) -> Iterator[Finding]:
    leaks, mixed, plain = _by_harm(records, [(members, "") for members in found.exact])
    if leaks:
        what = f"Images that occur in more than one split, pixel for pixel: {len(leaks)}."
        advice = "Keep each in one split only; until then the test measures what was learned."
        yield Finding("exact-leak", "error", what, advice, leaks)
    if mixed:
        what = f"Images with more than one label, pixel for pixel: {len(mixed)}."
        advice = "Find out which label is right and remove the other copies."
        yield Finding("exact-labels", "error", what, advice, mixed)
    if plain:
        what = f"Images that occur more than once, with one label in one split: {len(plain)}."
        yield Finding(
            "exact", "warning", what, "Keep one copy: repeated images count twice.", plain
        )


def _near_duplicates(records: Sequence[Record], found: Duplicates) -> Iterator[Finding]:
    pairs = [
        ((pair.first, pair.second), f"{pair.bits} bits, likeness {pair.likeness:.3f}; ")
        for pair in found.near
    ]
    leaks, mixed, plain = _by_harm(records, pairs)
    if leaks:
        what = f"Pairs of nearly identical images in different splits: {len(leaks)}."
        advice = "Look at them: the same lesion in train and test is a leak."
        yield Finding("near-leak", "warning", what, advice, leaks)
    if mixed:
        what = f"Pairs of nearly identical images with different labels: {len(mixed)}."
        advice = "Look at them: at most one of the labels is likely to be right."
        yield Finding("near-labels", "warning", what, advice, mixed)
    if plain:
        what = f"Pairs of nearly identical images with one label in one split: {len(plain)}."
        advice = "Usually harmless; a few shots drawn from copies teach the model less."
        yield Finding("near", "note", what, advice, plain)
    if not found.complete:
        yield Finding(
            "near-cut",
            "warning",
            "There are so many similar images that the list of near duplicates was cut.",
            "Allow fewer differing bits (near), or thin out sequences such as video frames.",
        )


def _flat_images(records: Sequence[Record], found: Duplicates) -> Iterator[Finding]:
    if found.flat:
        yield Finding(
            "flat",
            "warning",
            f"Images that show (almost) nothing but one shade of grey: {len(found.flat)}.",
            "Look at them and remove the empty ones. They are not compared with other images.",
            tuple(Case((records[number].file,)) for number in found.flat),
        )


def _by_harm(
    records: Sequence[Record], copies: Sequence[tuple[Sequence[int], str]]
) -> tuple[tuple[Case, ...], tuple[Case, ...], tuple[Case, ...]]:
    """Copies across splits, copies across labels (a set may be both), and all others."""
    leaks, mixed, plain = [], [], []
    for members, words in copies:
        images = [records[member] for member in members]
        places = dict.fromkeys(f"{one.split}/{one.label}".removeprefix("/") for one in images)
        case = Case(tuple(one.file for one in images), words + " = ".join(places))
        across_splits = len({one.split for one in images}) > 1
        across_labels = len({one.label for one in images}) > 1
        if across_splits:
            leaks.append(case)
        if across_labels:
            mixed.append(case)
        if not across_splits and not across_labels:
            plain.append(case)
    return tuple(leaks), tuple(mixed), tuple(plain)


def _labels(records: Sequence[Record], report: LabelReport) -> Iterator[Finding]:
    if report.left_out:
        yield Finding(
            "labels-few",
            "note",
            f"Too few images to check the labels of: {', '.join(report.left_out)}.",
            "A class needs at least 5 images (patients, if known); add some.",
        )
    if not report.checked:
        what = "The labels were not checked: fewer than two classes have enough images."
        yield Finding("labels-skipped", "warning", what, "Add images and run the check again.")
    if report.suspects:
        yield Finding(
            "labels",
            "warning",
            f"Labels that look wrong: {len(report.suspects)} of {report.checked}, according to a "
            f"classifier that agrees with {100 * (report.accuracy or 0):.0f} % of the labels.",
            "Have an expert look at them, starting with the first.",
            tuple(
                Case(
                    (records[one.image].file,),
                    f"labelled {one.given} ({one.score:.3f}), looks like {one.suggested}",
                )
                for one in report.suspects
            ),
        )
