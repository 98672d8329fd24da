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
from ogkd.images.plain import gray_to_rgb, to_bytes
from ogkd.images.ref import file_state

MAX_ARRAY_BYTES = 4 * 1024**3
_DENSEST = 200  # times that images are packed at most; more is a decompression bomb
_KEPT = 3  # train, val and test of one file
_SPLITS = ("train", "val", "test")
_lock = threading.Lock()


def read_npz(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """One row as RGB [H, W, 3]."""
    match = re.fullmatch(r"(train|val|test)/([0-9]{1,12})", fragment)
    if match is None:
        lack = f"'{fragment}' names none of them" if fragment else "none is chosen"
        raise DataError(
            f"{file} contains many images, and {lack}. Write split and row after a #, "
            f"such as {file.name}#test/0, or give the whole file to a command that takes a dataset."
        )
    split, row = match[1], int(match[2])
    with _lock:  # a second thread waits for the array instead of reading it again
        array = _kept(file, split, max_pixels, file_state(file))
    if row >= len(array):
        raise DataError(f"{file} has {len(array)} {split} images: there is no row {row}.")
    picture = array[row]
    if picture.ndim == 3 and picture.shape[2] == 1:
        picture = picture[:, :, 0]
    values = to_bytes(picture)
    return gray_to_rgb(values) if values.ndim == 2 else np.array(values)


@lru_cache(maxsize=_KEPT)
def _kept(file: Path, split: str, max_pixels: int, _state: tuple[int, ...]) -> NDArray[np.generic]:
    return _load(file, f"{split}_images", max_pixels)


def _load(file: Path, name: str, max_pixels: int) -> NDArray[np.generic]:
    with zipfile.ZipFile(file) as archive:
        members = set(archive.namelist())
        if f"{name}.npy" not in members:
            known = [split for split in _SPLITS if f"{split}_images.npy" in members]
            raise DataError(
                f"{file} has no {name}. It has images of: {', '.join(known) or 'no split'}; a "
                "MedMNIST file has train_images, val_images and test_images."
            )
        info = archive.getinfo(f"{name}.npy")
        with archive.open(info) as stream:
            shape, dtype = npy_header(stream)
            size = math.prod(shape) * dtype.itemsize
            _refuse(file, name, shape, dtype, size)
            # The shape is only a claim; the archive's own list says how many bytes there are.
            if size > info.file_size:
                raise ValueError(f"{name} should have {size:,} bytes, not {info.file_size:,}")
            if math.prod(shape[1:3]) > max_pixels or size > _DENSEST * max(info.compress_size, 1e6):
                raise DataError(
                    f"{file}: {name} declares {size:,} bytes in images of {shape[1]} x {shape[2]} "
                    f"pixels, but has {info.compress_size:,} on the disk. It was not opened."
                )
        with archive.open(info) as stream:
            array: NDArray[np.generic] = np.lib.format.read_array(stream, allow_pickle=False)
    return array


def npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and type of an array, without its content."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"unknown version {version} of the npy format")
    first = version == (1, 0)
    read = np.lib.format.read_array_header_1_0 if first else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(stream)
    return shape, dtype


def _refuse(
    file: Path, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic], size: int
) -> None:
    colour = len(shape) == 4 and shape[3] in (1, 3)
    if dtype.kind not in "uifb" or not (len(shape) == 3 or colour) or 0 in shape[1:]:
        raise DataError(
            f"{file}: {name} has shape {shape} and type {dtype}, but rows of gray [H, W] or "
            "colour [H, W, 3] images are needed. Volumes are read from NIfTI files."
        )
    if size > MAX_ARRAY_BYTES:
        raise DataError(
            f"{file}: {name} needs {size / 1024**3:.1f} GiB of memory, more than the limit of "
            f"{MAX_ARRAY_BYTES / 1024**3:.0f} GiB. Use a smaller version of the dataset."
        )
