"""The records of a data check: findings for people, and the images behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ogkd.data.task import Target

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Occurrence:
    """One occurrence of a finding: the files, relative to the data, and a short note."""

    files: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing to know: what it is, where it occurs, what to do next."""

    kind: str
    severity: Severity
    what: str
    next: str
    where: tuple[Occurrence, ...] = ()


@dataclass(frozen=True)
class ScannedImage:
    """What the check keeps of an image that it could read: a few kilobytes."""

    width: int
    height: int
    gray: bool  # the three channels are equal
    digest: bytes  # of the decoded pixels, so that the same image in two files is found
    small: NDArray[np.uint8]  # grey, SIDE x SIDE


@dataclass(frozen=True)
class Record:
    file: str  # relative to the data
    label: str
    split: str = ""
    group: str | None = None
    target: Target = -1  # the label as the task encodes it
    names: tuple[str, ...] = ()  # the class, or the findings that are present
    image: ScannedImage | None = None  # None: it cannot be read

    def as_json(self) -> dict[str, str | None]:
        return {name: getattr(self, name) for name in ("file", "label", "split", "group")}


@dataclass(frozen=True)
class Facts:
    """Counts and sizes; `counts[split][class name]`, with the split '' if there are none."""

    counts: dict[str, dict[str, int]]
    imbalance: float | None  # largest class over smallest, in the split that is learned from
    sizes: dict[str, int]  # "width x height" of the readable images, most frequent first
    gray: int  # images whose three channels are equal
    colour: int
    groups: int | None  # different groups (patients); None if no image has one
    without_group: int


@dataclass(frozen=True)
class NearPair:
    """Two similar images, by number: differing bits of 64, and their likeness (1: equal)."""

    first: int
    second: int
    bits: int
    likeness: float


@dataclass(frozen=True)
class Suspect:
    """An image, by number, whose label a classifier that has not seen it disagrees with."""

    image: int
    given: str
    suggested: str
    score: float  # the classifier's probability of the given label


@dataclass(frozen=True)
class LabelReport:
    """Suspicious labels, most suspicious first, and the basis for suspecting them."""

    suspects: tuple[Suspect, ...]
    checked: int  # images whose labels were checked
    accuracy: float | None  # of the cross-validated classifier; None if nothing was checked
    left_out: tuple[str, ...] = ()  # classes with too few images to check


@dataclass(frozen=True)
class Audit:
    """All results of a check; image numbers index `records`."""

    data: str
    records: tuple[Record, ...]
    facts: Facts
    findings: tuple[Finding, ...]
    exact: tuple[tuple[int, ...], ...] = ()
    near: tuple[NearPair, ...] = ()
    labels: LabelReport | None = None
    unreadable: Mapping[int, str] = field(default_factory=dict)  # the reason of each

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        return 1 if self.count("error") else 0

    def as_json(self) -> dict[str, Any]:
        """Plain values for a JSON file; images are given by file, label, split and group."""
        records, labels = [record.as_json() for record in self.records], self.labels
        near = [
            {
                "images": [records[pair.first], records[pair.second]],
                "bits": pair.bits,
                "likeness": round(pair.likeness, 4),
            }
            for pair in self.near
        ]
        suspects = [
            {
                "image": records[suspect.image],
                "suggested": suspect.suggested,
                "score": round(suspect.score, 4),
            }
            for suspect in (labels.suspects if labels else ())
        ]
        return {
            "schema": 1,
            "data": self.data,
            "images": len(records),
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
            "facts": asdict(self.facts),
            "findings": [asdict(finding) for finding in self.findings],
            "exact_duplicates": [[records[n] for n in members] for members in self.exact],
            "near_duplicates": near,
            "labels": labels
            and {
                "judged": labels.checked,  # this key is part of the file format
                "accuracy": labels.accuracy,
                "left_out": list(labels.left_out),
                "suspects": suspects,
            },
        }
