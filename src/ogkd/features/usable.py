"""Which items of a dataset can be used: volumes get their slice, unreadable files are set apart."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ogkd.datasets.manifest import Item
from ogkd.errors import ConfigError
from ogkd.features.encode import BadFile, unreadable, unreadable_error
from ogkd.files import write_atomically
from ogkd.images.address import parse_rule, with_slice

__all__ = ["SKIPPED", "OnError", "check_on_error", "leave_out", "sliced", "write_skipped"]

OnError = Literal["stop", "skip"]
SKIPPED = "skipped.csv"


def check_on_error(value: str) -> OnError:
    """The choice, or a ConfigError that names the two there are."""
    if value == "stop":
        return "stop"
    if value == "skip":
        return "skip"
    raise ConfigError(f"--on-error must be stop or skip, but is '{value}'.")


def sliced(items: Sequence[Item], rule: str | None) -> list[Item]:
    """Items whose volumes have the slice of `rule`, where they name none themselves."""
    if rule is None:
        return list(items)
    chosen = parse_rule(rule)
    return [replace(item, path=with_slice(item.path, chosen)) for item in items]


def leave_out(
    items: Sequence[Item], class_names: Sequence[str]
) -> tuple[list[Item], list[BadFile]]:
    """The items that can be read, and the files that cannot; a class left empty is an error.

    Every file is decoded once, so that what remains depends on the files alone.
    """
    paths = list(dict.fromkeys(item.path for item in items))
    bad = unreadable(paths)
    refused = {file.path for file in bad}
    good = [item for item in items if item.path not in refused]
    lost = {item.label for item in items} - {item.label for item in good}
    if lost:
        names = ", ".join(class_names[label] for label in sorted(lost))
        raise unreadable_error(
            bad, f"Without them no image is left of: {names}. Mend them, or remove the class."
        )
    return good, bad


def write_skipped(place: Path, bad: Sequence[BadFile]) -> None:
    """A table of what was left out and why; only its header where nothing was."""
    with (
        write_atomically(place) as aside,
        # A name that is not valid text is written as the bytes it is.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "reason"])
        table.writerows([file.path, file.reason] for file in bad)
