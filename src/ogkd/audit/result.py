"""What a check of the data gives: findings for people, and the records behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["Audit", "Case", "Facts", "Finding", "LabelReport", "NearPair", "Record", "Suspect"]

Severity = Literal["error", "warning", "note"]


@dataclass(frozen=True)
class Case:
    """One place where a finding holds: the files, relative to the data, and a few words."""

    files: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Finding:
    """One thing to know: what it is, where it holds, what to do next."""

    kind: str
    severity: Severity
    what: str
    next: str
    where: tuple[Case, ...] = ()


@dataclass(frozen=True)
class Record:
    """One image of the data as the check names it."""

    file: str  # relative to the data
    label: str
    split: str = ""
    group: str | None = None


@dataclass(frozen=True)
class Facts:
    """Counts and sizes; `counts[split][class name]`, the split '' where there are none."""

    counts: dict[str, dict[str, int]]
    imbalance: float | None  # largest class over smallest, where images are learned from
    sizes: dict[str, int]  # "width x height" of the readable images, most frequent first
    gray: int  # images whose three channels are equal
    colour: int
    groups: int | None  # different groups (patients); None where no image has one
    without_group: int


@dataclass(frozen=True)
class NearPair:
    """Two images, by number, that look alike: differing bits of 64, and how alike (1: equal)."""

    first: int
    second: int
    bits: int
    likeness: float


@dataclass(frozen=True)
class Suspect:
    """An image, by number, whose label looks wrong to a classifier that has not seen it."""

    image: int
    given: str
    suggested: str
    score: float  # the classifier's probability of the given label


@dataclass(frozen=True)
class LabelReport:
    """Suspicious labels, most suspicious first, and what the judgement rests on."""

    suspects: tuple[Suspect, ...]
    judged: int  # images that were judged
    accuracy: float | None  # of the cross-validated classifier, None where nothing was judged
    left_out: tuple[str, ...] = ()  # classes with too few images to judge


@dataclass(frozen=True)
class Audit:
    """Everything that a check found; `records` are the images that the numbers count through."""

    data: str
    records: tuple[Record, ...]
    facts: Facts
    findings: tuple[Finding, ...]
    exact: tuple[tuple[int, ...], ...] = ()
    near: tuple[NearPair, ...] = ()
    labels: LabelReport | None = None

    def count(self, severity: Severity) -> int:
        """How many findings are of this severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def exit_code(self) -> int:
        """1 where there are errors, else 0."""
        return 1 if self.count("error") else 0

    def as_json(self) -> dict[str, Any]:
        """Plain values for a JSON file; images stand with their file, label, split and group."""
        return {
            "schema": 1,
            "data": self.data,
            "images": len(self.records),
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
            "facts": asdict(self.facts),
            "findings": [asdict(finding) for finding in self.findings],
            "exact_duplicates": [self._images(members) for members in self.exact],
            "near_duplicates": [
                {
                    "images": self._images((pair.first, pair.second)),
                    "bits": pair.bits,
                    "likeness": round(pair.likeness, 4),
                }
                for pair in self.near
            ],
            "labels": None if self.labels is None else self._labels(self.labels),
        }

    def _images(self, members: Sequence[int]) -> list[dict[str, Any]]:
        return [asdict(self.records[member]) for member in members]

    def _labels(self, report: LabelReport) -> dict[str, Any]:
        return {
            "judged": report.judged,
            "accuracy": report.accuracy,
            "left_out": list(report.left_out),
            "suspects": [
                {
                    "image": asdict(self.records[suspect.image]),
                    "suggested": suspect.suggested,
                    "score": round(suspect.score, 4),
                }
                for suspect in report.suspects
            ],
        }
