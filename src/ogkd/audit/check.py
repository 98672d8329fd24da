"""The whole data check: read every image once, then look for problems step by step."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ogkd.audit.duplicates import Duplicates, find_duplicates, small_gray
from ogkd.audit.findings import all_findings, gather_facts, printable
from ogkd.audit.labels import find_suspicious_labels, require_cleanlab
from ogkd.audit.result import Audit, LabelReport, Record, ScannedImage
from ogkd.data.case import Dataset
from ogkd.data.divide import components
from ogkd.data.fetch import locate_benchmark, named_benchmark, resolve_data
from ogkd.data.grouping import Grouping
from ogkd.data.names import normal_labels
from ogkd.data.tasks import require_classes
from ogkd.errors import DataError
from ogkd.files import resolved
from ogkd.images import ImageRef, look_at, pixel_digest
from ogkd.images.ref import file_state
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone

Scans = MutableMapping[tuple[object, ...], ScannedImage | str]  # of a file's state and part
NEAR = 6  # differing bits of 64 up to which two images count as nearly the same


def read_images(
    data: Path, grouping: Grouping, normal: Sequence[str] | None = None, **options: Any
) -> Dataset:
    """The dataset image by image; those of a case have its name, and are never divided.

    The options are those of `resolve_data`.
    """
    dataset = resolve_data(data, empty_classes=True, **options)
    if grouping.by is not None:
        dataset = dataset.with_normal(normal_labels(dataset.names, normal))
    return grouping.apply(dataset).by_image()


def check_data(data: Path, dataset: Dataset, **options: Any) -> Audit:
    """Check a dataset that was read from `data`; the options are those of `audit_data`."""
    return audit_data(dataset, root=data_folder(data), name=resolved(data).name, **options)


def data_folder(data: Path) -> Path:
    """The folder that the files of a dataset are in."""
    named = named_benchmark(data)
    path = data if named is None else locate_benchmark(named) or data
    return path if path.is_dir() else path.parent


def audit_data(
    dataset: Dataset,
    *,
    root: Path,
    name: str = "",
    backbone: Backbone | None = None,
    scans: Scans | None = None,
) -> Audit:
    """Check a dataset; file names are relative to `root`. With a backbone, labels are checked too.

    `scans` remembers files from one check to the next, which then does not read them again.
    """
    dataset, task = dataset.by_image(), dataset.task
    if not dataset.cases:
        raise DataError("The data contains no images. Check the path.")
    if backbone is not None:
        require_cleanlab()
        require_classes(task, "The search for suspicious labels")
    names = [printable(name) for name in task.names]
    images, unreadable = scan_images(dataset.images, scans)
    records = tuple(
        Record(
            # Not Path.relative_to: a table may list files outside its own folder.
            printable(Path(os.path.relpath(str(case.image), root)).as_posix()),
            printable(task.text(case.target)),
            printable(case.split),
            None if case.group is None else printable(case.group),
            case.target,
            tuple(names[number] for number in task.shown(case.target)),
            image,
        )
        for case, image in zip(dataset.cases, images, strict=True)
    )
    # Without the folders above the data, which do not belong in a shared page.
    above = f"{root}{os.sep}"
    reasons = {number: printable(why.replace(above, "")) for number, why in unreadable.items()}
    duplicates = find_duplicates(images, near=NEAR)
    labels = None
    if backbone is not None:
        labels = _check_labels(backbone, dataset.images, records, duplicates)
    facts = gather_facts(records, names)
    findings = all_findings(dataset, facts, records, reasons, duplicates, labels)
    return Audit(
        name or root.resolve().name,
        records,
        facts,
        findings,
        duplicates.exact,
        duplicates.near,
        labels,
        reasons,
    )


def scan_images(
    refs: Sequence[ImageRef], scans: Scans | None = None
) -> tuple[list[ScannedImage | None], dict[int, str]]:
    """Read all files; an unreadable one is None, with the reason under its number."""
    scans = {} if scans is None else scans
    images: list[ScannedImage | None] = []
    unreadable: dict[int, str] = {}
    with (
        ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool,
        progress_bar("Reading images", len(refs)) as bar,
    ):
        for number, scan in enumerate(pool.map(lambda ref: _scan(ref, scans), refs)):
            images.append(None if isinstance(scan, str) else scan)
            if isinstance(scan, str):
                unreadable[number] = scan
            bar.advance()
    return images, unreadable


def _scan(ref: ImageRef, scans: Scans) -> ScannedImage | str:
    """The image's summary, or why it cannot be read."""
    try:
        key = (*file_state(ref.file), ref.part)
        if (known := scans.get(key)) is not None:
            return known
    except (OSError, ValueError):
        key = ()  # reading it will say why
    try:
        image = look_at(ref, blank=False)  # fitting stops at a blank image too
    except DataError as error:
        return str(error)
    height, width = image.shape[:2]
    gray = bool((image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all())
    scan = ScannedImage(width, height, gray, pixel_digest(image), small_gray(image))
    if key:
        scans[key] = scan
    return scan


def _check_labels(
    backbone: Backbone,
    refs: Sequence[ImageRef],
    records: Sequence[Record],
    duplicates: Duplicates,
) -> LabelReport:
    from ogkd.features.store import FeatureStore

    flat = set(duplicates.flat)
    numbers = [n for n, row in enumerate(records) if row.image is not None and n not in flat]
    if not numbers:
        return LabelReport((), 0, None)
    features = FeatureStore(backbone).get([refs[number] for number in numbers]).globals[:, 0]
    patients: dict[str, list[int]] = defaultdict(list)
    for number, record in enumerate(records):
        if record.group is not None:
            patients[record.group].append(number)
    copies = [(pair.first, pair.second) for pair in duplicates.near]
    groups = components(len(records), [*patients.values(), *duplicates.exact, *copies])
    return find_suspicious_labels(
        np.asarray(features.numpy(), np.float32),
        [records[number].label for number in numbers],
        [groups[number] for number in numbers],
        numbers,
    )
