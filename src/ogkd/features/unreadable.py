"""Image files read ahead of need; those that cannot be read are reported at once, or listed."""

from __future__ import annotations

import csv
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from ogkd.data.case import Case, images_of
from ogkd.data.names import first_lines
from ogkd.data.task import Task
from ogkd.errors import ConfigError, DataError
from ogkd.files import write_atomically
from ogkd.images import ImageRef, look_at, read_image

OnError = Literal["stop", "skip"]
SKIPPED = "skipped.csv"
_WORKERS = 2
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class BadFile:
    """An image that could not be read, and why."""

    image: ImageRef | None  # None: it is not a file
    reason: str


def check_on_error(value: str) -> None:
    if value not in get_args(OnError):
        raise ConfigError(
            f"on_error must be 'stop' or 'skip', but is '{value}'.", argument="on_error"
        )


def decode_ahead(
    decode: Callable[[Job], Result], jobs: Iterable[Job], *, batch_size: int = 32
) -> Iterator[list[tuple[Job, Result | DataError]]]:
    """Jobs and results in order, batch by batch; a job that fails gives its DataError.

    The next batch is read while the caller works on this one. At most two batches are held, so
    memory does not grow with the number of jobs.
    """

    def attempt(job: Job) -> tuple[Job, Result | DataError]:
        try:
            return job, decode(job)
        except DataError as error:
            return job, error

    waiting: deque[Iterator[tuple[Job, Result | DataError]]] = deque()
    rest = iter(jobs)
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:
        while batch := list(itertools.islice(rest, batch_size)):
            waiting.append(pool.map(attempt, batch))
            if len(waiting) > 1:
                yield list(waiting.popleft())
        yield from map(list, waiting)


def unreadable(images: Sequence[ImageRef]) -> list[BadFile]:
    """The images that cannot be decoded, found without encoding anything."""
    results = itertools.chain.from_iterable(decode_ahead(partial(look_at, blank=False), images))
    return [BadFile(image, str(error)) for image, error in results if isinstance(error, DataError)]


def read_each(images: Sequence[ImageRef]) -> Iterator[tuple[ImageRef, NDArray[np.uint8]]]:
    """The pixels of each image in turn; those that cannot be read are one error at the end."""
    bad: list[BadFile] = []
    decoded = decode_ahead(partial(read_image, blank=False), images)
    for image, pixels in itertools.chain.from_iterable(decoded):
        if isinstance(pixels, DataError):
            bad.append(BadFile(image, str(pixels)))
        else:
            yield image, pixels
    if bad:
        raise unreadable_error(bad)


def unreadable_error(
    bad: Sequence[BadFile], advice: str = "Fix or remove them, or skip unreadable files."
) -> DataError:
    """One error that lists the unreadable files and says what to do about them."""
    message = f"{len(bad)} file(s) could not be read:\n{list_reasons(bad)}\n{advice}"
    return DataError(message, argument="on_error")


def list_reasons(bad: Sequence[BadFile]) -> str:
    """A line for each file; of many, the first."""
    return first_lines([file.reason for file in bad])


def readable_cases(cases: Sequence[Case], task: Task) -> tuple[list[Case], list[BadFile]]:
    """The cases with the images that can be read, and the files that cannot.

    A case without any is left out; a class or finding that then has none is an error. Every file
    is decoded once, so what remains depends on the files alone.
    """
    bad = unreadable(list(dict.fromkeys(images_of(cases))))
    refused = {file.image for file in bad if file.image is not None}
    trimmed = (case.without(refused, empty=True) for case in cases)
    good = [case for case in trimmed if case is not None]
    lost = {number for case in cases for number in task.shown(case.target)}
    if lost := lost.difference(*(task.shown(case.target) for case in good)):
        names = ", ".join(task.names[number] for number in sorted(lost))
        raise unreadable_error(
            bad, f"Without them no image is left of: {names}. Fix them, or remove the class."
        )
    return good, bad


def write_skipped(path: Path, bad: Sequence[BadFile]) -> None:
    """Write a table of the skipped files and the reasons; only its header if there are none."""
    with (
        write_atomically(path) as aside,
        # A name that is not valid text is written as the bytes it is.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["path", "reason"])
        table.writerows([file.image, file.reason] for file in bad)
