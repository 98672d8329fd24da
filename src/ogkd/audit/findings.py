"""What the check reports: counts of the data, and every problem as a finding with advice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ogkd.audit.duplicates import Duplicates
from ogkd.audit.result import Facts, Finding, LabelReport, Occurrence, Record
from ogkd.data.case import Dataset
from ogkd.data.names import without_shared_end
from ogkd.data.task import Task
from ogkd.files import read_toml

FEW = 16  # shots of the usual benchmark
_UNEVEN = 10.0  # times as many images in the largest class as in the smallest
_SMALL = 32  # pixels


@cache
def _kinds() -> dict[str, dict[str, Any]]:
    return read_toml(Path(__file__).with_name("findings.toml"))


def _finding(kind: str, where: Sequence[Occurrence] = (), **values: object) -> Finding:
    words = _kinds()[kind]
    what = words["what"].format(count=len(where), **values).rstrip()
    return Finding(words.get("kind", kind), words["severity"], what, words["next"], tuple(where))


def _counted(kind: str, where: Sequence[Occurrence], **values: object) -> Iterator[Finding]:
    """A finding with its cases; nothing if there are none."""
    if where:
        yield _finding(kind, where, **values)


def all_findings(
    dataset: Dataset,
    facts: Facts,
    records: Sequence[Record],
    unreadable: Mapping[int, str],
    duplicates: Duplicates,
    labels: LabelReport | None,
) -> tuple[Finding, ...]:
    """Errors first, then warnings, then notes."""
    reasons, advice = without_shared_end(list(unreadable.values()))
    bad = [Occurrence((records[n].file,), why) for n, why in zip(unreadable, reasons, strict=True)]
    findings = [
        *_never_absent(dataset),
        *_counted("unreadable", bad, total=len(records), advice=advice),
        *_duplicates(dataset.task, records, duplicates),
        *data_findings(facts, records),
        *(_labels(records, labels) if labels else ()),
        *(Finding("left-out", "warning", *words) for words in dataset.ignored),
    ]
    order = ("error", "warning", "note")
    return tuple(sorted(findings, key=lambda finding: order.index(finding.severity)))


def _never_absent(dataset: Dataset) -> Iterator[Finding]:
    """Findings of which no training image is known to be without: nothing to tell them from."""
    train = [case for case in dataset.cases if case.split == "train"] or dataset.cases
    counts = dataset.task.counts(dataset.targets(train)).items()
    lacking = [name for name, row in counts if row.get("present") and not row.get("absent")]
    if always := ", ".join(map(printable, lacking)):
        yield _finding("finding-everywhere", names=always)


def printable(name: str) -> str:
    """A name that is not valid text, with its bytes escaped, so that it can be written."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def gather_facts(records: Sequence[Record], class_names: Sequence[str]) -> Facts:
    """Counts and sizes."""
    splits = list(dict.fromkeys(record.split for record in records))
    counts = {split: dict.fromkeys(class_names, 0) for split in splits}
    for record in records:
        for name in record.names:
            counts[record.split][name] += 1
    learned = list(counts[_training_split(counts)].values())
    smallest = min(learned)
    images = [record.image for record in records if record.image is not None]
    sizes = Counter(f"{image.width} x {image.height}" for image in images)
    gray = sum(image.gray for image in images)
    groups = {record.group for record in records if record.group is not None}
    return Facts(
        counts=counts,
        imbalance=max(learned) / smallest if smallest else None,
        sizes=dict(sizes.most_common()),
        gray=gray,
        colour=len(images) - gray,
        groups=len(groups) or None,
        without_group=sum(record.group is None for record in records),
    )


def data_findings(facts: Facts, records: Sequence[Record]) -> Iterator[Finding]:
    train = _training_split(facts.counts)
    for split, counts in facts.counts.items():
        if absent := ", ".join(name for name, count in counts.items() if not count):
            kind = "class-missing" if split == train else "class-untested"
            yield _finding(kind, names=absent, split=split)
    learned = facts.counts[train].items()
    if few := ", ".join(f"{name} ({count})" for name, count in learned if 0 < count < FEW):
        yield _finding("class-small", names=few, few=FEW)
    if facts.imbalance is not None and facts.imbalance >= _UNEVEN:
        yield _finding("imbalance", times=facts.imbalance)
    yield from _groups(facts, records)
    tiny = [
        Occurrence((record.file,), f"{image.width} x {image.height}")
        for record in records
        if (image := record.image) is not None and min(image.width, image.height) < _SMALL
    ]
    yield from _counted("tiny", tiny, limit=_SMALL)


def _training_split(counts: Mapping[str, object]) -> str:
    """The split that is learned from: train, or the first if there is no train."""
    return "train" if "train" in counts else next(iter(counts))


def _groups(facts: Facts, records: Sequence[Record]) -> Iterator[Finding]:
    if facts.groups is None:
        yield _finding("groups-unknown")
        return
    without = [Occurrence((record.file,)) for record in records if record.group is None]
    yield from _counted("groups-partial", without)
    by_group: dict[str, dict[str, str]] = defaultdict(dict)
    for record in records:
        if record.group is not None:
            by_group[record.group].setdefault(record.split, record.file)
    shared = [
        Occurrence(tuple(files.values()), f"{group}: {', '.join(files)}")
        for group, files in by_group.items()
        if len(files) > 1
    ]
    yield from _counted("group-leak", shared)


def _duplicates(task: Task, records: Sequence[Record], duplicates: Duplicates) -> Iterator[Finding]:
    copies: dict[str, list[tuple[Sequence[int], str]]] = {
        "exact": [(members, "") for members in duplicates.exact],
        "near": [
            ((pair.first, pair.second), f"{pair.bits} bits, likeness {pair.likeness:.3f}; ")
            for pair in duplicates.near
        ],
    }
    for kind, sets in copies.items():
        by_harm: dict[str, list[Occurrence]] = {f"{kind}-leak": [], f"{kind}-labels": [], kind: []}
        for members, words in sets:
            images = [records[member] for member in members]
            origins = dict.fromkeys(f"{r.split}/{r.label}".removeprefix("/") for r in images)
            case = Occurrence(tuple(r.file for r in images), words + " = ".join(origins))
            leaks = len({r.split for r in images}) > 1
            disagree = task.agree([r.target for r in images]) is None
            if leaks:
                by_harm[f"{kind}-leak"].append(case)
            if disagree:
                by_harm[f"{kind}-labels"].append(case)
            if not leaks and not disagree:
                by_harm[kind].append(case)
        for harm, cases in by_harm.items():
            yield from _counted(harm, cases)
    if not duplicates.complete:
        yield _finding("near-cut")
    yield from _counted("flat", [Occurrence((records[n].file,)) for n in duplicates.flat])


def _labels(records: Sequence[Record], report: LabelReport) -> Iterator[Finding]:
    if report.left_out:
        yield _finding("labels-few", names=", ".join(report.left_out))
    if not report.checked:
        yield _finding("labels-skipped")
    cases = [
        Occurrence(
            (records[suspect.image].file,),
            f"labelled {suspect.given} ({suspect.score:.3f}), looks like {suspect.suggested}",
        )
        for suspect in report.suspects
    ]
    accuracy = 100 * (report.accuracy or 0)
    yield from _counted("labels", cases, checked=report.checked, accuracy=accuracy)
