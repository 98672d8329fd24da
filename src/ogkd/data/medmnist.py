"""MedMNIST archives: `{train,val,test}_images` and `_labels` in one .npz file.

Only the labels and the headers of the images are read here; `file.npz#train/0` is the first
training image, which `ogkd.images` opens when it is needed.
"""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.data.case import Case, Dataset
from ogkd.data.names import SPLITS, read_class_names
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.images import ImageRef
from ogkd.images.npz import npy_header

_MAX_IMAGES, _MAX_LABEL = 50_000_000, 100_000  # far beyond any real archive; a header may lie
# What zipfile and numpy raise on files that are cut short, encrypted or something else.
_DAMAGED = (OSError, ValueError, EOFError, KeyError, MemoryError, SyntaxError, RuntimeError)


def read_medmnist(path: Path, *, class_names: Sequence[str] | None = None) -> Dataset:
    """Labels as stored; classes are `class_names`, else "class 0", "class 1", ..."""
    try:
        with zipfile.ZipFile(path) as archive:
            labels = {split: _labels(path, archive, split) for split in _splits(path, archive)}
    except (*_DAMAGED, zipfile.BadZipFile, zlib.error, tokenize.TokenError) as error:
        raise DataError(f"{path} is damaged or not an .npz file ({error!r}).") from error
    largest = max((max(values, default=-1) for values in labels.values()), default=-1)
    default = [f"class {label}" for label in range(largest + 1)]
    names = read_class_names(default if class_names is None else class_names)
    if largest >= len(names) or len(names) < 2:
        raise DataError(
            f"{path} has labels up to {largest}, but there are {len(names)} class(es).",
            argument="class_names",
        )
    cases = tuple(
        Case.single(ImageRef(path, f"{split}/{row}"), label, split=split)
        for split, values in labels.items()
        for row, label in enumerate(values)
    )
    return Dataset(cases, OneOf(names))


def _splits(path: Path, archive: zipfile.ZipFile) -> list[str]:
    arrays = {name.removesuffix(".npy") for name in archive.namelist()}
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    needed = [f"{split}_labels" for split in splits] or ["train_images"]
    if missing := [name for name in needed if name not in arrays]:
        raise DataError(f"{path} is not a MedMNIST file: it has no {missing[0]}.")
    return splits


def _labels(path: Path, archive: zipfile.ZipFile, split: str) -> list[int]:
    images, _ = _header(path, archive, f"{split}_images")
    shape, dtype = _header(path, archive, f"{split}_labels")
    if len(images) not in (3, 4) or (len(images) == 4 and images[3] not in (1, 3)):
        raise DataError(
            f"{path}, {split}_images: shape {images} is not that of flat images ([N, height, "
            "width] or [N, height, width, 3])."
        )
    where = f"{path}, {split}_labels"
    if shape not in ((images[0],), (images[0], 1)) or images[0] > _MAX_IMAGES:
        raise DataError(f"{where}: shape {shape} is not one label for each of {images[0]} images.")
    if not np.issubdtype(dtype, np.integer):
        raise DataError(f"{where}: values of type {dtype}, but labels are integers.")
    with archive.open(f"{split}_labels.npy") as file:
        values: NDArray[np.int64] = np.lib.format.read_array(file, allow_pickle=False)
    numbers = [int(value) for value in values.reshape(-1)]
    for number in (min(numbers, default=0), max(numbers, default=0)):
        if not 0 <= number <= _MAX_LABEL:
            raise DataError(f"{where}: {number} is not the number of a class.")
    return numbers


def _header(
    path: Path, archive: zipfile.ZipFile, name: str
) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    """Shape and type of an array, without its content."""
    with archive.open(f"{name}.npy") as file:
        shape, dtype = npy_header(file)
    if dtype.hasobject:
        raise DataError(f"{path}, {name}: Python objects, not numbers. They are never opened.")
    return shape, dtype
