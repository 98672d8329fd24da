"""One slice of a NIfTI volume: `scan.nii.gz#axis=2,index=40`.

Axes are anatomical, whatever the order in the file: 0 left-right (sagittal slices), 1
posterior-anterior (coronal), 2 inferior-superior (axial); indexes count towards right,
anterior and superior. The picture is oriented as a DICOM viewer shows it. Only the slice is read.
"""

from __future__ import annotations

import gzip
import logging
import math
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import DataError
from ogkd.images.plain import check_size, gray_to_rgb, to_bytes
from ogkd.images.ref import WHICH_SLICE, decoding, file_state, needs_extra, slice_in

_MAX_EXTENSIONS = 64 * 1024**2  # bytes between the header and the voxels
MAX_VOLUME_BYTES = 8 * 1024**3  # of the volume in the file, unpacked
_EMPTY = 0.05  # share of the volume's range that the values of an empty slice spread over


def read_nifti(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """The slice as RGB [H, W, 3], stretched by its own range (8-bit values stay)."""
    rule = slice_in(file, fragment, "is a volume")
    if rule.axis is None:
        raise DataError(
            f"{file} is a volume: '{fragment}' names no axis. {WHICH_SLICE}", argument="slice"
        )
    volume, axis = _open(file), rule.axis
    index = rule.position(file, volume.count(axis))
    stored = volume.stored(axis)
    height, width = (size for number, size in enumerate(volume.shape) if number != stored)
    check_size(file, height, width, max_pixels)
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


def _nibabel(file: Path) -> Any:
    try:
        import nibabel
    except ImportError as error:
        raise needs_extra(file, "a NIfTI file") from error
    return nibabel


def _open(file: Path) -> _Volume:
    nibabel = _nibabel(file)
    if (size := declared_bytes(file)) > MAX_VOLUME_BYTES:
        raise DataError(f"{file} declares a volume of {size / 1024**3:.1f} GiB, which is too much.")
    logging.getLogger("nibabel.global").handlers.clear()  # its own, which prints on the terminal
    image = nibabel.load(file)
    if not isinstance(image, nibabel.Nifti1Image):  # NIfTI-2 is one of these too
        raise ValueError(f"a {type(image).__name__}, not a NIfTI volume")
    if file.suffix.lower() == ".nii" and size + image.dataobj.offset > file.stat().st_size:
        raise ValueError(f"{size:,} bytes of voxels are declared, but the file is shorter")
    shape = image.shape
    if any(size != 1 for size in shape[3:]):
        raise DataError(f"{file} has {len(shape)} dimensions {shape}; a volume has three.")
    x, y, z = (*shape[:3], 1, 1)[:3]
    return _Volume(file, image, (x, y, z), _orientation(image.affine))


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


def declared_bytes(file: Path) -> int:
    """The bytes of voxels that the header declares, which may be too many to read at all."""
    nibabel = _nibabel(file)
    with gzip.open(file) if file.name.lower().endswith(".gz") else file.open("rb") as stream:
        head = stream.read(540)
    for kind in (nibabel.Nifti1Header, nibabel.Nifti2Header):
        if kind.may_contain_header(head):
            header = kind(head[: kind.template_dtype.itemsize], check=False)
            break
    else:
        raise ValueError("no NIfTI header")
    shape = header.get_data_shape()
    if not shape or min(shape) < 1 or not 0 <= header["vox_offset"] <= _MAX_EXTENSIONS:
        raise ValueError(f"an impossible shape {shape}, or start of the voxels")
    return int(math.prod(shape) * header.get_data_dtype().itemsize)


def _orientation(affine: NDArray[np.float64]) -> list[tuple[int, int]]:
    """For each axis of the file: which anatomical axis it is, and its direction along it."""
    if np.isfinite(affine).all():
        from nibabel import io_orientation

        axes = io_orientation(affine)
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
