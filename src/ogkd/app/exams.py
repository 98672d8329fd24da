"""Which files of an upload belong to one exam, so that two series do not share an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from ogkd.datasets.bags import BagRule
from ogkd.errors import DataError
from ogkd.images.dicom import Series, frame_count
from ogkd.images.ref import kind_of
from ogkd.images.slide import is_slide


def exams_of(files: Mapping[Path, str], rule: BagRule) -> dict[str, list[Path]]:
    """Files by exam, under names that the user knows; `files` come with the user's names.

    DICOM files are told apart by series or study, as the model's bags are: by study where a table
    or folders made these. Where each file was a bag, a volume, clip or slide is an exam by itself.
    Other files do not say what they belong to: they are one exam.
    """
    groups: dict[str, list[Path]] = {}
    titles: dict[str, str] = {}
    for file in files:
        key, title = _exam(file, rule)
        groups.setdefault(key, []).append(file)
        titles.setdefault(key, title)
    # A table or a folder may put a picture without a study beside those of a study.
    apart = groups if rule.by in (None, "series", "study") else groups.keys() - {""}
    if len(apart) < 2:
        return {listed(list(files.values())): list(files)}
    times = Counter(titles.values())
    found: dict[str, list[Path]] = {}
    for number, (key, mine) in enumerate(groups.items(), 1):
        title, name = titles[key], listed([files[file] for file in mine])
        if title:
            name = f"{title} {key}: {name}" if times[title] > 1 else f"{title}: {name}"
        found[f"{number}. {name}" if name in found else name] = mine
    return found


def listed(names: Sequence[str]) -> str:
    """The first of some files, and how many more there are."""
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _exam(file: Path, rule: BagRule) -> tuple[str, str]:
    """What tells the file's exam apart ("" if nothing does), and what to call it."""
    kind = kind_of(file)
    several = kind in ("nifti", "slide") or is_slide(file)
    if rule.by is None and (several or (kind == "dicom" and frame_count(file) > 1)):
        return str(file), ""
    if kind != "dicom":
        return "", ""
    try:
        found = Series.of(file)
    except DataError:  # reading the picture will say why
        return "", ""
    if rule.by in (None, "series"):
        return found.series, found.series_name
    return found.study, found.study_name
