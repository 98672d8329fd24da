"""Image files that cannot be read: found, reported all at once, or skipped and listed."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.manifest import Item, first_lines
from ogkd.errors import ConfigError, DataError
from ogkd.features.decode_ahead import decode_ahead
from ogkd.files import write_atomically
from ogkd.images import ImageRef, read_image

OnError = Literal["stop", "skip"]
SKIPPED = "skipped.csv"


@dataclass(frozen=True)
class BadFile:
    """An image that could not be read, and why."""

    image: ImageRef
    reason: str


def check_on_error(value: str) -> OnError:
    """The choice, or a ConfigError that names the two there are."""
    for choice in get_args(OnError):
        if value == choice:
            return choice  # type: ignore[no-any-return]  # get_args has no types
    raise ConfigError(f"on_error must be 'stop' or 'skip', but is '{value}'.", argument="on_error")


def unreadable(images: Sequence[ImageRef]) -> list[BadFile]:
    """The images that cannot be decoded, found without encoding anything."""

    def check(image: ImageRef) -> None:
        read_image(image)

    return _failures(images, [found for batch in decode_ahead(check, images) for found in batch])


def read_all(images: Sequence[ImageRef]) -> list[NDArray[np.uint8]]:
    """The pixels of every image; those that cannot be read are one error that names them all."""
    found = [pixels for batch in decode_ahead(read_image, images) for pixels in batch]
    if bad := _failures(images, found):
        raise unreadable_error(bad)
    return [pixels for pixels in found if not isinstance(pixels, DataError)]


def _failures(images: Sequence[ImageRef], found: Sequence[object]) -> list[BadFile]:
    return [
        BadFile(image, str(outcome))
        for image, outcome in zip(images, found, strict=True)
        if isinstance(outcome, DataError)
    ]


def unreadable_error(
    bad: Sequence[BadFile], advice: str = "Fix or remove them, or skip unreadable files."
) -> DataError:
    """One error that lists the unreadable files and says what to do about them."""
    listed = first_lines([file.reason for file in bad])
    return DataError(
        f"{len(bad)} file(s) could not be read:\n{listed}\n{advice}", argument="on_error"
    )


def readable_items(
    items: Sequence[Item], class_names: Sequence[str]
) -> tuple[list[Item], list[BadFile]]:
    """The items that can be read, and the files that cannot; an emptied class is an error.

    Every file is decoded once, so what remains depends on the files alone.
    """
    bad = unreadable(list(dict.fromkeys(item.image for item in items)))
    refused = {file.image for file in bad}
    good = [item for item in items if item.image not in refused]
    lost = {item.label for item in items} - {item.label for item in good}
    if lost:
        names = ", ".join(class_names[label] for label in sorted(lost))
        raise unreadable_error(
            bad, f"Without them no image is left of: {names}. Fix them, or remove the class."
        )
    return good, bad


def write_skipped(place: Path, bad: Sequence[BadFile]) -> None:
    """Write a table of the skipped files and the reasons; only its header if there are none."""
    with (
        write_atomically(place) as aside,
        # A name that is not valid text is written as the bytes it is.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "reason"])
        table.writerows([file.image, file.reason] for file in bad)
