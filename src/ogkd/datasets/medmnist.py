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

from ogkd.datasets.case import Case, Dataset
from ogkd.datasets.names import SPLITS, read_class_names
from ogkd.datasets.task import OneOf
from ogkd.errors import DataError
from ogkd.images import ImageRef
from ogkd.images.npz import npy_header

_MAX_IMAGES = 50_000_000  # far beyond any real archive; a header may lie
# What zipfile and numpy raise on files that are cut short, encrypted or something else.
_DAMAGED = (OSError, ValueError, EOFError, KeyError, MemoryError, SyntaxError, RuntimeError)


def read_medmnist(path: Path, *, class_names: Sequence[str] | None = None) -> Dataset:
    """Labels as stored; classes are `class_names`, else "class 0", "class 1", ..."""
    try:
        with zipfile.ZipFile(path) as archive:
            labels = {split: _labels(path, archive, split) for split in _splits(path, archive)}
    except (*_DAMAGED, zipfile.BadZipFile, zlib.error, tokenize.TokenError) as error:
        reason = str(error).strip() or type(error).__name__
        raise DataError(
            f"{path} is damaged or not an .npz file ({reason}). Copy or download it again."
        ) from error
    largest = max((max(values, default=-1) for values in labels.values()), default=-1)
    if class_names is None:
        names = tuple(f"class {label}" for label in range(largest + 1))
    else:
        names = read_class_names(class_names)
        if largest >= len(names):
            raise DataError(
                f"{path} has labels outside the class list: {largest}, but {len(names)} classes "
                f"have labels 0 to {len(names) - 1}: {', '.join(names)}."
            )
    if len(names) < 2:
        raise DataError(f"{path} has {len(names)} class(es); at least 2 are needed.")
    cases = tuple(
        Case.single(ImageRef(path, f"{split}/{row}"), label, split=split)
        for split, values in labels.items()
        for row, label in enumerate(values)
    )
    return Dataset(cases, OneOf(names))


def _splits(path: Path, archive: zipfile.ZipFile) -> list[str]:
    arrays = {name.removesuffix(".npy") for name in archive.namelist()}
    splits = [split for split in SPLITS if f"{split}_images" in arrays]
    if not splits:
        listed = ", ".join(sorted(arrays)[:10]) or "nothing"
        raise DataError(
            f"{path} is not a MedMNIST file: it needs train_images and train_labels (and val_, "
            f"test_), but has: {listed}."
        )
    unlabelled = [split for split in splits if f"{split}_labels" not in arrays]
    if unlabelled:
        raise DataError(f"{path} has {unlabelled[0]}_images but no {unlabelled[0]}_labels.")
    return splits


def _labels(path: Path, archive: zipfile.ZipFile, split: str) -> list[int]:
    images, _ = _header(path, archive, f"{split}_images")
    shape, dtype = _header(path, archive, f"{split}_labels")
    where = f"{path}, {split}_labels"
    if len(images) not in (3, 4) or (len(images) == 4 and images[3] not in (1, 3)):
        raise DataError(
            f"{path}, {split}_images: shape {images} is not that of flat images ([N, height, "
            "width] or [N, height, width, 3]). Volumes must be cut into slices first."
        )
    if len(shape) == 2 and shape[1] > 1:
        raise DataError(
            f"{where}: {shape[1]} labels for each image. ogkd learns one class per image; make a "
            "table with one label for each image instead."
        )
    if len(shape) not in (1, 2) or shape[0] != images[0] or 0 in shape[1:]:
        raise DataError(
            f"{where}: shape {shape} does not fit {images[0]} images; [{images[0]}, 1] is needed."
        )
    if not np.issubdtype(dtype, np.integer) or shape[0] > _MAX_IMAGES:
        raise DataError(f"{where}: {shape[0]} values of type {dtype}, but labels are integers.")
    with archive.open(f"{split}_labels.npy") as file:
        values: NDArray[np.int64] = np.lib.format.read_array(file, allow_pickle=False)
    numbers = [int(value) for value in values.reshape(-1)]
    if min(numbers, default=0) < 0:
        raise DataError(f"{where}: label {min(numbers)} is below 0.")
    if max(numbers, default=0) > 100_000:
        raise DataError(f"{where}: label {max(numbers)} is not a class number.")
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
