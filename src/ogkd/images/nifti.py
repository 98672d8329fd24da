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
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import DataError
from ogkd.images.plain import gray_to_rgb, to_bytes
from ogkd.images.ref import WHICH_SLICE, SliceRule, decoding, file_state, needs_extra, slice_in

MAX_VOLUME_BYTES = 8 * 1024**3  # of the volume in the file, unpacked
_EMPTY = 0.05  # share of the volume's range that the values of an empty slice spread over
_MAX_EXTENSIONS = 64 * 1024**2  # bytes between the header and the voxels
_HEADERS = {  # by size: type and place of the dimensions, the bits of a voxel, the voxels' start
    348: (("8h", 40), ("h", 72), ("f", 108)),
    540: (("8q", 16), ("h", 14), ("q", 168)),
}


def read_nifti(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """The slice as RGB [H, W, 3], stretched by its own range (8-bit values stay)."""
    rule = _rule(file, fragment)
    volume = _open(file)
    axis = rule.axis or 0
    try:
        index = rule.position(volume.count(axis))
    except ValueError as error:
        raise DataError(f"{file}, axis {axis}: {error}. Choose a slice that is there.") from None
    if math.prod(volume.shape) // volume.count(axis) > max_pixels:
        raise DataError(f"{file}: a slice of {volume.shape} along axis {axis} has too many pixels.")
    stored = volume.stored(axis)
    values = volume.slice(axis, index)
    rest = [part for number, part in enumerate(volume.orientation) if number != stored]
    return _rgb(_upright(values, rest))


def filled_slices(file: Path, axis: int) -> list[int]:
    """The indexes of the slices with something in them, along an anatomical axis.

    A slice is empty if its values spread over less than a twentieth of the volume's range, such as
    air above a patient, or are not numbers.
    """
    with decoding(file):
        volume = _open(file)
        spans = [_span(volume.slice(axis, index)) for index in range(volume.count(axis))]
    known = [span for span in spans if span is not None]
    if not known:
        return []
    low, high = min(low for low, _ in known), max(high for _, high in known)
    return [
        index
        for index, span in enumerate(spans)
        if span is not None and span[1] - span[0] > _EMPTY * (high - low)
    ]


def _span(values: NDArray[Any]) -> tuple[float, float] | None:
    """The range of most values of a slice; None if there is no number in it."""
    if values.dtype.names:
        values = values[values.dtype.names[0]]
    step = max(1, min(values.shape) // 128)
    sample = values[::step, ::step].astype(np.float64)
    sample = sample[np.isfinite(sample)]
    if not sample.size:
        return None
    low, high = np.quantile(sample, [0.005, 0.995])
    return float(low), float(high)


@dataclass(frozen=True)
class _Volume:
    """An opened volume, of which nothing but the header has been read."""

    file: Path
    image: Any
    shape: tuple[int, int, int]
    orientation: list[tuple[int, int]]

    def stored(self, axis: int) -> int:
        """The file's own number of an anatomical axis."""
        return next(n for n, (anatomical, _) in enumerate(self.orientation) if anatomical == axis)

    def count(self, axis: int) -> int:
        return self.shape[self.stored(axis)]

    def slice(self, axis: int, index: int) -> NDArray[Any]:
        stored = self.stored(axis)
        if self.orientation[stored][1] < 0:
            index = self.shape[stored] - 1 - index
        where: list[Any] = [slice(None)] * 3
        where[stored] = index
        where += [0] * (len(self.image.shape) - 3)
        chosen = tuple(where[: len(self.image.shape)])
        values = _values(self.file, self.image.dataobj, chosen)
        return values.reshape([size for number, size in enumerate(self.shape) if number != stored])


def _open(file: Path) -> _Volume:
    try:
        import nibabel
    except ImportError as error:
        raise needs_extra(file, "a NIfTI file") from error
    declared_bytes(file)
    logging.getLogger("nibabel.global").handlers.clear()  # its own, which prints on the terminal
    image = nibabel.load(file)
    if not isinstance(image, nibabel.Nifti1Image):  # NIfTI-2 is one of these too
        raise ValueError(f"a {type(image).__name__}, not a NIfTI volume")
    return _Volume(file, image, _three(file, image.shape), _orientation(nibabel, image.affine))


_lock = threading.Lock()
_last: dict[tuple[Any, ...], NDArray[Any] | None] = {}  # the file read last, and its voxels


def _values(file: Path, proxy: Any, where: tuple[Any, ...]) -> NDArray[Any]:
    """Part of the voxels, scaled as the file asks.

    A compressed file can only be read from its beginning, so the second slice of one unpacks the
    whole volume, which is kept until another file is read.
    """
    if not file.name.lower().endswith(".gz"):
        return np.asarray(proxy[where])
    key = (file, *file_state(file))
    with _lock:
        if key not in _last:
            _last.clear()
            _last[key] = None
            unpacked = None
        elif (unpacked := _last[key]) is None:
            unpacked = _last[key] = np.asarray(proxy.get_unscaled())
    if unpacked is None:
        return np.asarray(proxy[where])
    from nibabel.volumeutils import apply_read_scaling

    return np.asarray(apply_read_scaling(unpacked[where], proxy.slope, proxy.inter))


def _rule(file: Path, fragment: str) -> SliceRule:
    lack = "is a volume, and no slice of it is chosen"
    rule = slice_in(file, fragment, lack, WHICH_SLICE)
    if rule.axis is None:
        raise DataError(f"{file} is a volume: '{fragment}' names no axis. {WHICH_SLICE}")
    return rule


def declared_bytes(file: Path) -> int:
    """The bytes of voxels that the header declares, which may be too many to read at all."""
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
    total: int = math.prod(dims[1 : count + 1]) * bits // 8
    if total > MAX_VOLUME_BYTES:
        raise DataError(
            f"{file} declares a volume of {total / 1024**3:.1f} GiB, more than the limit of "
            f"{MAX_VOLUME_BYTES // 1024**3} GiB. Cut it into parts first."
        )
    if not packed and total + offset > file.stat().st_size:
        raise ValueError(f"{total:,} bytes of voxels are declared, but the file is shorter")
    return total


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
        axes = nibabel.io_orientation(affine)
        if np.isfinite(axes).all():
            return [(int(axis), int(sign)) for axis, sign in axes]
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
