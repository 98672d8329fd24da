"""The whole check of a dataset, step by step."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ogkd.audit.duplicates import Duplicates, components, find_duplicates
from ogkd.audit.facts import gather, judge
from ogkd.audit.findings import on_duplicates, on_labels, on_unreadable
from ogkd.audit.labels import need_cleanlab, suspicious_labels
from ogkd.audit.nearest import MAX_DISTANCE
from ogkd.audit.result import Audit, LabelReport, Record
from ogkd.audit.scan import Scan, scan
from ogkd.errors import ConfigError, DataError
from ogkd.images import ImageRef

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone
    from ogkd.datasets.manifest import Manifest

__all__ = ["NEAR", "audit_data"]

NEAR = 6  # differing bits of 64 that still count as nearly the same image
_ORDER = ("error", "warning", "note")


def audit_data(
    manifest: Manifest,
    *,
    root: Path,
    name: str = "",
    near: int = NEAR,
    backbone: Backbone | None = None,
) -> Audit:
    """Check a dataset; files are named relative to `root`. A backbone has the labels judged too."""
    if not 0 <= near <= MAX_DISTANCE:
        raise ConfigError(f"near is 0 to {MAX_DISTANCE} bits, but is {near}.")
    if not manifest.items:
        raise DataError("The data holds no images. Check the path.")
    if backbone is not None:
        need_cleanlab()
    names = [_text(name) for name in manifest.class_names]
    records = tuple(
        Record(
            _text(_relative(item.image, root)),
            names[item.label],
            _text(item.split),
            None if item.group is None else _text(item.group),
        )
        for item in manifest.items
    )
    paths = [item.image for item in manifest.items]
    seen = scan(paths)
    duplicates = find_duplicates(seen, near=near)
    report = None
    if backbone is not None:
        report = _labels(backbone, paths, records, seen, duplicates)
    facts = gather(records, names, seen.pictures)
    reasons = {number: _text(_without_root(reason, root)) for number, reason in seen.bad.items()}
    findings = [
        *on_unreadable(records, reasons),
        *on_duplicates(records, duplicates),
        *judge(facts, records, seen.pictures),
        *(on_labels(records, report) if report else ()),
    ]
    findings.sort(key=lambda finding: _ORDER.index(finding.severity))
    return Audit(
        name or root.resolve().name,
        records,
        facts,
        tuple(findings),
        duplicates.exact,
        duplicates.near,
        report,
    )


def _labels(
    backbone: Backbone,
    paths: Sequence[ImageRef],
    records: Sequence[Record],
    seen: Scan,
    duplicates: Duplicates,
) -> LabelReport:
    from ogkd.features.store import FeatureStore

    flat = set(duplicates.flat)
    numbers = [number for number in seen.readable.tolist() if number not in flat]
    if not numbers:
        return LabelReport((), 0, None)
    features = FeatureStore(backbone).get([paths[number] for number in numbers]).globals[:, 0]
    patients: dict[str, list[int]] = {}
    for number, record in enumerate(records):
        if record.group is not None:
            patients.setdefault(record.group, []).append(number)
    copies = [(pair.first, pair.second) for pair in duplicates.near]
    groups = components(len(records), [*patients.values(), *duplicates.exact, *copies])
    return suspicious_labels(
        np.asarray(features.numpy(), np.float32),
        [records[number].label for number in numbers],
        [groups[number] for number in numbers],
        numbers,
    )


def _relative(image: ImageRef, root: Path) -> str:
    # Not Path.relative_to: a table may name files beside its own folder.
    return Path(os.path.relpath(str(image), root)).as_posix()


def _text(name: str) -> str:
    """A name that is not valid text, as its bytes, so that it can be written to a file."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _without_root(reason: str, root: Path) -> str:
    """A reader's message without the folders above the data, which are nobody's business."""
    return reason.replace(f"{root}{os.sep}", "")
