"""Rows of a MedMNIST .npz: `file.npz#test/12` is row 12 of `test_images`.

A compressed array cannot be read in part, so the few last used ones are kept in memory.
"""

from __future__ import annotations

import math
import re
import threading
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import DataError
from ogkd.images.plain import check_size, gray_to_rgb, to_bytes
from ogkd.images.ref import file_state

MAX_ARRAY_BYTES = 4 * 1024**3
_KEPT = 3  # train, val and test of one file
_lock = threading.Lock()


def read_npz(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """One row as RGB [H, W, 3]."""
    match = re.fullmatch(r"(train|val|test)/([0-9]{1,12})", fragment)
    if match is None:
        raise DataError(
            f"{file} contains many images, and '{fragment}' does not name one of them: write split "
            f"and row after a #, such as {file.name}#test/0."
        )
    split, row = match[1], int(match[2])
    with _lock:  # a second thread waits for the array instead of reading it again
        array = _load(file, split, max_pixels, file_state(file))
    if row >= len(array):
        raise DataError(f"{file} has {len(array)} {split} images: there is no row {row}.")
    values = to_bytes(array[row])
    if values.ndim == 3 and values.shape[2] == 1:
        values = values[:, :, 0]
    return gray_to_rgb(values) if values.ndim == 2 else np.array(values)


@lru_cache(maxsize=_KEPT)
def _load(file: Path, split: str, max_pixels: int, _state: tuple[int, ...]) -> NDArray[np.generic]:
    name = f"{split}_images"
    with zipfile.ZipFile(file) as archive:
        if f"{name}.npy" not in archive.namelist():
            raise DataError(f"{file} has no {name}.")
        with archive.open(f"{name}.npy") as stream:
            shape, dtype = npy_header(stream)
        colour = len(shape) == 4 and shape[3] in (1, 3)
        if dtype.kind not in "uifb" or not (len(shape) == 3 or colour) or 0 in shape[1:]:
            raise DataError(
                f"{file}: {name} has shape {shape} and type {dtype}, but rows of gray [H, W] or "
                "colour [H, W, 3] images are needed."
            )
        check_size(file, shape[1], shape[2], max_pixels)
        size = math.prod(shape) * dtype.itemsize
        # The shape is only a claim; the archive's own list says how many bytes there are.
        if size > min(MAX_ARRAY_BYTES, archive.getinfo(f"{name}.npy").file_size):
            raise DataError(
                f"{file}: {name} declares {size:,} bytes, more than it has or than the limit of "
                f"{MAX_ARRAY_BYTES:,}."
            )
        with archive.open(f"{name}.npy") as stream:
            array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and type of an array, without its content."""
    first = np.lib.format.read_magic(stream) == (1, 0)
    formats = np.lib.format
    read = formats.read_array_header_1_0 if first else formats.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype
