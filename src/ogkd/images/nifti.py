"""One slice of a NIfTI volume: `scan.nii.gz#axis=2,index=40`.

Axes are anatomical, whatever the order in the file: 0 left-right (sagittal slices), 1
posterior-anterior (coronal), 2 inferior-superior (axial); indexes count towards right,
anterior and superior. The picture is oriented as a DICOM viewer shows it. Only the slice is read.
"""

from __future__ import annotations

import gzip
import logging
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import DataError
from ogkd.images.ref import SliceRule, needs_extra, slice_in
from ogkd.images.scaling import gray_to_rgb, to_bytes

MAX_VOLUME_BYTES = 8 * 1024**3  # of the volume in the file, unpacked
_MAX_EXTENSIONS = 64 * 1024**2  # bytes between the header and the voxels
_HEADERS = {  # by size: type and place of the dimensions, the bits of a voxel, the voxels' start
    348: (("8h", 40), ("h", 72), ("f", 108)),
    540: (("8q", 16), ("h", 14), ("q", 168)),
}


def read_nifti(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """The slice as RGB [H, W, 3], stretched by its own range (8-bit values stay)."""
    rule = _rule(file, fragment)
    try:
        import nibabel
    except ImportError as error:
        raise needs_extra(file, "a NIfTI file") from error
    _check_header(file)
    logging.getLogger("nibabel.global").handlers.clear()  # its own, which prints on the terminal
    image = nibabel.load(file)
    if not isinstance(image, nibabel.Nifti1Image):  # NIfTI-2 is one of these too
        raise ValueError(f"a {type(image).__name__}, not a NIfTI volume")
    shape = _three(file, image.shape)
    orientation = _orientation(nibabel, image.affine)
    axis = rule.axis or 0
    stored = orientation.index(next(part for part in orientation if part[0] == axis))
    try:
        place = rule.position(shape[stored])
    except ValueError as error:
        raise DataError(f"{file}, axis {axis}: {error}. Choose a slice that is there.") from None
    if math.prod(shape) // shape[stored] > max_pixels:
        raise DataError(f"{file}: a slice of {shape} along axis {axis} has too many pixels.")
    if orientation[stored][1] < 0:
        place = shape[stored] - 1 - place
    where: list[Any] = [slice(None)] * 3
    where[stored] = place
    where += [0] * (len(image.shape) - 3)
    values = np.asarray(image.dataobj[tuple(where[: len(image.shape)])])
    values = values.reshape([size for number, size in enumerate(shape) if number != stored])
    rest = [part for number, part in enumerate(orientation) if number != stored]
    return _rgb(_upright(values, rest))


def _rule(file: Path, fragment: str) -> SliceRule:
    how = (
        f"Write axis and index behind a #, such as {file.name}#axis=2,index=middle (axis 0 gives "
        "sagittal, 1 coronal, 2 axial slices), or set `slice` for all volumes."
    )
    lack = "is a volume, and nothing says which slice of it is meant"
    rule = slice_in(file, fragment, lack, how)
    if rule.axis is None:
        raise DataError(f"{file} is a volume: '{fragment}' says no axis. {how}")
    return rule


def _check_header(file: Path) -> None:
    """Refuse what would take too much memory or time, before anything of that size is read."""
    packed = file.name.lower().endswith(".gz")
    with gzip.open(file) if packed else file.open("rb") as stream:
        head = stream.read(540)
    if len(head) < 348:
        raise ValueError(f"{len(head)} bytes are not a NIfTI header")
    for order in "<>":
        (size,) = struct.unpack_from(f"{order}i", head)
        if size in _HEADERS and size <= len(head):
            fields = [struct.unpack_from(order + form, head, at) for form, at in _HEADERS[size]]
            dims, (bits,), (offset,) = fields
            break
    else:
        raise ValueError("no NIfTI header")
    count = dims[0]
    if not 1 <= count <= 7 or min(dims[1 : count + 1]) < 1 or not 0 <= bits <= 256:
        raise ValueError(f"impossible dimensions {dims[: max(0, count) + 1]}")
    if not 0 <= offset <= _MAX_EXTENSIONS:
        raise ValueError(f"the voxels cannot start at byte {offset}")
    total = math.prod(dims[1 : count + 1]) * bits // 8
    if total > MAX_VOLUME_BYTES:
        raise DataError(
            f"{file} declares a volume of {total / 1024**3:.1f} GiB, more than the limit of "
            f"{MAX_VOLUME_BYTES // 1024**3} GiB. Cut it into parts first."
        )
    if not packed and total + offset > file.stat().st_size:
        raise ValueError(f"{total:,} bytes of voxels are declared, but the file is shorter")


def _three(file: Path, shape: tuple[int, ...]) -> tuple[int, int, int]:
    if any(size != 1 for size in shape[3:]):
        raise DataError(
            f"{file} has {len(shape)} dimensions {shape}. Split it into volumes of three "
            "dimensions first (for example with nibabel.four_to_three)."
        )
    x, y, z = (*shape[:3], 1, 1)[:3]
    return x, y, z


def _orientation(nibabel: Any, affine: NDArray[np.float64]) -> list[tuple[int, int]]:
    """For each axis of the file: which anatomical axis it is, and its direction along it."""
    if np.isfinite(affine).all():
        found = nibabel.io_orientation(affine)
        if np.isfinite(found).all():
            return [(int(axis), int(sign)) for axis, sign in found]
    return [(0, 1), (1, 1), (2, 1)]  # no usable orientation: the file's own axes


def _upright(values: NDArray[Any], rest: list[tuple[int, int]]) -> NDArray[Any]:
    """Rows from superior (or anterior) down; columns from the patient's right (or anterior) on."""
    values = values[:: rest[0][1], :: rest[1][1]]
    if rest[0][0] > rest[1][0]:
        values = values.T
    return values[::-1, ::-1].T


def _rgb(values: NDArray[Any]) -> NDArray[np.uint8]:
    names = values.dtype.names
    if names is None:
        return gray_to_rgb(to_bytes(values))
    return np.stack([to_bytes(values[name]) for name in names[:3]], axis=2)
