"""Image files through a frozen image tower, decoding beside encoding, bad files set apart."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.errors import DataError
from ogkd.images.decode import read_image
from ogkd.images.transforms import Preprocessing, center_crop, normalise

__all__ = ["ADVICE", "BadFile", "EncodedBatch", "encode_files", "unreadable", "unreadable_error"]

ADVICE = "Mend them, take them out of the data, or leave them out with --on-error skip."


@dataclass(frozen=True)
class BadFile:
    """A file that could not be read, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class EncodedBatch:
    """Features of the readable files of one batch, in order, and the files that failed."""

    all_paths: Sequence[Path]
    paths: list[Path]  # the readable ones, in the order of the features
    features: ImageFeatures | None  # None where no file of the batch could be read
    bad: list[BadFile] = field(default_factory=list)


def encode_files(
    backbone: Backbone,
    paths: Sequence[Path],
    *,
    patches: bool = False,
    batch_size: int = 32,
    workers: int = 2,
) -> Iterator[EncodedBatch]:
    """Encode files in order, batch by batch; memory does not grow with their number."""
    chunks = [paths[start : start + batch_size] for start in range(0, len(paths), batch_size)]
    prep = backbone.preprocessing
    with ThreadPoolExecutor(max_workers=workers) as pool:
        waiting: deque[tuple[Sequence[Path], list[Future[NDArray[np.uint8]]]]] = deque()
        upcoming = iter(chunks)

        def submit() -> None:
            if (chunk := next(upcoming, None)) is not None:
                waiting.append((chunk, [pool.submit(_crop, path, prep) for path in chunk]))

        submit()
        while waiting:
            submit()  # the next batch is decoded while this one is encoded
            yield _encode(backbone, *waiting.popleft(), patches=patches)


def unreadable(paths: Sequence[Path], *, workers: int = 2) -> list[BadFile]:
    """Files that cannot be decoded, found without encoding anything."""

    def check(path: Path) -> BadFile | None:
        try:
            read_image(path)
        except DataError as error:
            return BadFile(path, str(error))
        return None

    with ThreadPoolExecutor(max_workers=workers) as pool:
        return [bad for bad in pool.map(check, paths) if bad is not None]


def unreadable_error(bad: Sequence[BadFile], advice: str, *, most: int = 20) -> DataError:
    """One error that lists the unreadable files, and what to do about them."""
    listed = "\n".join(f"  {file.reason}" for file in bad[:most])
    more = f"\n  ... and {len(bad) - most} more" if len(bad) > most else ""
    return DataError(f"{len(bad)} file(s) could not be read:\n{listed}{more}\n{advice}")


def _crop(path: Path, prep: Preprocessing) -> NDArray[np.uint8]:
    image = read_image(path)
    try:
        return center_crop(image, prep)
    except (ValueError, MemoryError) as error:
        height, width = image.shape[:2]
        raise DataError(
            f"{path} cannot be scaled: {width} x {height} pixels ({error!r}). Crop it first."
        ) from error


def _encode(
    backbone: Backbone,
    chunk: Sequence[Path],
    futures: Sequence[Future[NDArray[np.uint8]]],
    *,
    patches: bool,
) -> EncodedBatch:
    good: list[Path] = []
    crops: list[NDArray[np.uint8]] = []
    bad: list[BadFile] = []
    for path, future in zip(chunk, futures, strict=True):
        try:
            crops.append(future.result())
            good.append(path)
        except DataError as error:
            bad.append(BadFile(path, str(error)))
    if not crops:
        return EncodedBatch(chunk, [], None, bad)
    pixels = normalise(crops, backbone.preprocessing).to(backbone.device)
    return EncodedBatch(chunk, good, backbone.encode_images(pixels, patches=patches), bad)
