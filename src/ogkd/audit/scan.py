"""Every image of the data read once: what later steps need, a few kilobytes each."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.audit.hashing import SIDE, small_gray
from ogkd.errors import DataError
from ogkd.images import ImageRef, read_image
from ogkd.progress import progress_bar

__all__ = ["Picture", "Scan", "scan"]


@dataclass(frozen=True)
class Picture:
    """An image that could be read: its size, its pixels' digest, and a small grey copy."""

    width: int
    height: int
    gray: bool  # the three channels are equal
    digest: bytes  # of the decoded pixels, so that the same image in two files is found
    small: NDArray[np.uint8]


@dataclass(frozen=True)
class Scan:
    """A picture for each file, None where it could not be read, and why not."""

    pictures: tuple[Picture | None, ...]
    bad: dict[int, str]
    seconds: float

    @property
    def readable(self) -> NDArray[np.intp]:
        """The numbers of the images that could be read."""
        return np.array([n for n, seen in enumerate(self.pictures) if seen is not None], np.intp)

    def small(self) -> NDArray[np.uint8]:
        """The small grey copies of the readable images, in order: [N, SIDE, SIDE]."""
        found = [picture.small for picture in self.pictures if picture is not None]
        return np.stack(found) if found else np.zeros((0, SIDE, SIDE), np.uint8)


def scan(paths: Sequence[ImageRef], *, workers: int | None = None) -> Scan:
    """Read all files; one that cannot be read is set apart and stops nothing."""
    workers = workers or min(8, os.cpu_count() or 1)
    began = time.perf_counter()
    pictures: list[Picture | None] = []
    bad: dict[int, str] = {}
    with (
        ThreadPoolExecutor(max_workers=workers) as pool,
        progress_bar("Reading images", len(paths)) as bar,
    ):
        for number, seen in enumerate(pool.map(_look, paths)):
            if isinstance(seen, str):
                bad[number] = seen
                pictures.append(None)
            else:
                pictures.append(seen)
            bar.advance()
            if number % 50 == 0:
                bar.describe(f"{(number + 1) / (time.perf_counter() - began):.0f} images/s")
    return Scan(tuple(pictures), bad, time.perf_counter() - began)


def _look(path: ImageRef) -> Picture | str:
    """The picture, or why it cannot be read."""
    try:
        image = read_image(path)
    except DataError as error:
        return str(error)
    height, width = image.shape[:2]
    if not height or not width:
        return f"{path} has no pixels. Replace the file or leave it out."
    digest = hashlib.sha256(f"{height} {width} ".encode() + image.tobytes()).digest()
    gray = bool((image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all())
    return Picture(width, height, gray, digest, small_gray(image))
