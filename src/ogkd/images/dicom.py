"""One frame of a DICOM file as RGB: decoded, then displayed as the file specifies.

Modality LUT or rescale, VOI LUT or window, MONOCHROME1 inverted, palette and YBR to RGB.
Only what is needed for the picture is read; names, dates and private data are not, unless an
evaluation is asked for subgroups by such a field.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import DataError
from ogkd.images.plain import check_size, gray_to_rgb, stretch, to_bytes
from ogkd.images.ref import decoding, needs_extra, slice_in

_SHAPE_TAGS = [
    *("Rows", "Columns", "NumberOfFrames", "SamplesPerPixel", "PhotometricInterpretation"),
    *("PlanarConfiguration", "BitsAllocated", "BitsStored", "HighBit", "PixelRepresentation"),
]
_DISPLAY_TAGS = [  # how a frame is to be displayed
    *("RescaleSlope", "RescaleIntercept", "ModalityLUTSequence"),
    *("WindowCenter", "WindowWidth", "VOILUTFunction", "VOILUTSequence"),
]
_LOOK_TAGS = [
    *_DISPLAY_TAGS,
    *("PixelPaddingValue", "PixelPaddingRangeLimit"),
    *("SharedFunctionalGroupsSequence", "PerFrameFunctionalGroupsSequence"),
    *(
        f"{segmented}{colour}PaletteColorLookupTable{part}"
        for colour in ("Red", "Green", "Blue")
        for segmented, part in (("", "Descriptor"), ("", "Data"), ("Segmented", "Data"))
    ),
]
_SERIES_TAGS = [
    *("StudyInstanceUID", "SeriesInstanceUID", "InstanceNumber"),
    *("ImagePositionPatient", "ImageOrientationPatient", "Modality", "Columns", "Rows"),
    *("SeriesNumber", "SeriesDescription", "StudyDescription"),
]
_DATA_TAGS = ["PixelData", "ExtendedOffsetTable", "ExtendedOffsetTableLengths"]
# The markers of frame headers (SOF) of JPEG, without three that are something else, and JPEG-LS.
_FRAMES = {*range(0xC0, 0xD0), 0xF7} - {0xC4, 0xC8, 0xCC}
_DEFLATED = ("1.2.840.10008.1.2.1.99", "1.2.840.10008.1.2.4.95", "1.2.840.10008.1.2.4.205")


def _read_header(file: Path, tags: list[str]) -> Any:
    """The named elements, without pixels; refuses what is not DICOM."""
    try:
        from pydicom import dcmread
    except ImportError as error:
        raise needs_extra(file, "a DICOM file") from error
    _check_syntax(file)
    return dcmread(file, stop_before_pixels=True, specific_tags=tags)


def frame_count(file: Path) -> int:
    """How many frames the file says it has; 1 if that cannot be read."""
    try:
        return int(_read_header(file, ["NumberOfFrames"]).get("NumberOfFrames") or 1)
    except Exception:  # whatever is wrong with the file is reported when the image is read
        return 1


def header_values(file: Path, keywords: Sequence[str]) -> dict[str, str]:
    """Those elements of the header that the file has, as text; others are no error."""
    from pydicom.datadict import tag_for_keyword

    known = [keyword for keyword in keywords if tag_for_keyword(keyword) is not None]
    with decoding(file):
        header = _read_header(file, known)
        return {keyword: str(header.get(keyword)).strip() for keyword in known if keyword in header}


@dataclass(frozen=True)
class Series:
    """What a DICOM file says about the series that it is part of."""

    study: str
    series: str
    number: int | None  # of the instance
    position: tuple[float, ...]  # of the image in the patient; () if it is not given
    normal: tuple[float, ...]  # the direction that slices are stacked in, rounded; () likewise
    modality: str = ""
    size: tuple[int, int] = (0, 0)  # columns and rows
    series_name: str = ""  # as a viewer lists it: "series 3 (T1 axial)"
    study_name: str = ""

    @classmethod
    def of(cls, file: Path) -> Series:
        """Read it from the header; nothing about the patient is read."""
        with decoding(file):
            header = _read_header(file, _SERIES_TAGS)
            number = header.get("InstanceNumber")
            position = tuple(float(x) for x in header.get("ImagePositionPatient") or ())
            rows = np.array([float(x) for x in header.get("ImageOrientationPatient") or ()])
            normal: tuple[float, ...] = ()
            if len(rows) == 6:
                normal = tuple((np.cross(rows[:3], rows[3:]).round(1) + 0.0).tolist())
            return cls(
                str(header.get("StudyInstanceUID") or ""),
                str(header.get("SeriesInstanceUID") or ""),
                None if number is None else int(number),
                position,
                normal,
                str(header.get("Modality") or ""),
                (int(header.get("Columns") or 0), int(header.get("Rows") or 0)),
                _called("series", header.get("SeriesNumber"), header.get("SeriesDescription")),
                _called("study", None, header.get("StudyDescription")),
            )

    @property
    def along(self) -> float:
        """How far along the stack the image is."""
        if not self.position or not self.normal:
            return 0.0
        return float(np.dot(self.position, self.normal))


def _called(what: str, number: Any, description: Any) -> str:
    counted = what if number is None else f"{what} {number}"
    return f"{counted} ({words})" if (words := str(description or "").strip()) else counted


def read_dicom(file: Path, fragment: str, *, max_pixels: int) -> NDArray[np.uint8]:
    """The frame as RGB [H, W, 3]; decoders raise all kinds of errors on damaged files."""
    header = _read_header(file, _SHAPE_TAGS + _LOOK_TAGS)
    rows, columns = header.get("Rows"), header.get("Columns")
    if not rows or not columns:
        raise DataError(f"{file} is a DICOM file without an image.")
    frames = int(header.get("NumberOfFrames") or 1)
    index = _frame(file, fragment, frames)
    # One frame is decoded, whatever their number: its size is what counts.
    check_size(file, columns, rows, max_pixels)
    pixels = _decode(file, header, index, frames)
    if pixels.shape[:2] != (rows, columns):
        raise ValueError(f"pixels of shape {pixels.shape} instead of {(rows, columns)}")
    if header.get("PhotometricInterpretation") == "PALETTE COLOR":
        return _palette(pixels, header)
    if pixels.ndim == 3:
        return to_bytes(pixels[:, :, :3])
    return gray_to_rgb(_gray(pixels, header, index))


def _check_syntax(file: Path) -> None:
    """Refuse files that are not DICOM, or would be unpacked before their size is known."""
    from pydicom.errors import InvalidDicomError
    from pydicom.filereader import read_file_meta_info

    try:
        syntax = read_file_meta_info(file).get("TransferSyntaxUID")
    except InvalidDicomError:
        raise DataError(f"{file} is not a DICOM file: DICM is not at byte 128.") from None
    if syntax is None:
        raise ValueError("no transfer syntax is named")
    if syntax in _DEFLATED:
        raise DataError(f"{file} is deflated DICOM, which is not supported.")


def _frame(file: Path, fragment: str, frames: int) -> int:
    if not fragment and frames == 1:
        return 0
    rule = slice_in(file, fragment, f"has {frames} frames")
    if rule.axis is not None:
        raise DataError(f"{file}: the frames of a DICOM file have no axis.", argument="slice")
    return rule.position(file, frames)


def _decode(file: Path, header: Any, index: int, frames: int) -> NDArray[Any]:
    from pydicom import dcmread
    from pydicom.encaps import get_frame
    from pydicom.pixels import get_decoder, pixel_array

    syntax = header.file_meta.TransferSyntaxUID
    try:
        decoder = get_decoder(syntax)
    except NotImplementedError:
        raise DataError(f"{file} is stored as {syntax.name}, which is not supported.") from None
    if not decoder.is_available:
        raise needs_extra(file, f"stored as {syntax.name}")
    source: Any = file  # of which no other frame is read
    if syntax.is_encapsulated:
        source = dcmread(file, specific_tags=_SHAPE_TAGS + _DATA_TAGS)
        stream = get_frame(source.PixelData, index, number_of_frames=frames)
        samples = int(header.get("SamplesPerPixel") or 1)
        _check_size(stream, syntax, header.Rows, header.Columns, samples)
    return np.asarray(pixel_array(source, index=index))


def _gray(pixels: NDArray[Any], header: Any, index: int) -> NDArray[np.uint8]:
    """Stored values to gray levels; of millions of pixels few are different, so each value once."""
    if pixels.dtype.kind not in "iu" or pixels.dtype.itemsize > 2:
        return _levels(pixels, header, index)
    # Negative numbers are the upper half of the table.
    codes = np.ascontiguousarray(pixels).view(f"u{pixels.dtype.itemsize}")
    used = np.flatnonzero(np.bincount(codes.reshape(-1))).astype(codes.dtype)
    table = np.zeros(np.iinfo(codes.dtype).max + 1, np.uint8)
    table[used] = _levels(used.view(pixels.dtype), header, index)
    return np.asarray(np.take(table, codes))


def _levels(pixels: NDArray[Any], header: Any, index: int) -> NDArray[np.uint8]:
    """Stored values to gray levels (PS3.3 C.11), padding black."""
    look = _look(header, index)
    valid = _valid(pixels, header)
    values = _modality(pixels, look, header)
    shown = _voi(values, look, header)
    if shown is None or (shown[valid].size and np.ptp(shown[valid]) == 0):
        # No window, or one that leaves nothing to see: the image's own range.
        whole_byte = pixels.dtype == np.uint8 and header.get("BitsStored") == 8
        plain = whole_byte and np.array_equal(values, pixels)
        shown = pixels if plain else stretch(values, valid=valid)
    inverted = header.PhotometricInterpretation == "MONOCHROME1"
    gray = 255 - shown if inverted else shown.copy()
    gray[~valid] = 0
    return np.asarray(gray, np.uint8)


def _look(header: Any, index: int) -> dict[str, Any]:
    """How the frame is to be displayed: its own settings take precedence over shared ones."""
    sources = [header]
    shared = header.get("SharedFunctionalGroupsSequence") or []
    each = header.get("PerFrameFunctionalGroupsSequence") or []
    for group in [*shared[:1], *each[index : index + 1]]:
        for name in ("PixelValueTransformationSequence", "FrameVOILUTSequence"):
            sources += list(group.get(name) or [])[:1]
    look: dict[str, Any] = {}
    for source in sources:
        for name in _DISPLAY_TAGS:
            if source.get(name) not in (None, ""):
                look[name] = source.get(name)
    return look


def _valid(pixels: NDArray[Any], header: Any) -> NDArray[np.bool_]:
    """False where the scanner saw nothing and wrote a filling value."""
    fill = header.get("PixelPaddingValue")
    if not isinstance(fill, int):
        return np.ones(pixels.shape, np.bool_)
    end = header.get("PixelPaddingRangeLimit")
    low, high = sorted((fill, end if isinstance(end, int) else fill))
    return np.asarray((pixels < low) | (pixels > high), np.bool_)


def _modality(pixels: NDArray[Any], look: dict[str, Any], header: Any) -> NDArray[Any]:
    if look.get("ModalityLUTSequence"):
        return _look_up(pixels, *_table(look["ModalityLUTSequence"][0], header))
    if "RescaleSlope" in look and "RescaleIntercept" in look:
        return pixels * float(look["RescaleSlope"]) + float(look["RescaleIntercept"])
    return pixels


def _voi(values: NDArray[Any], look: dict[str, Any], header: Any) -> NDArray[Any] | None:
    """Values through the first VOI LUT or window; None if none of them can be used."""
    if look.get("VOILUTSequence"):
        first, table = _table(look["VOILUTSequence"][0], header)
        return _look_up(np.rint(values), first, stretch(table))
    if "WindowCenter" not in look or "WindowWidth" not in look:
        return None
    from pydicom import Dataset
    from pydicom.pixels import apply_windowing

    window = Dataset()
    window.PhotometricInterpretation = "MONOCHROME2"
    window.BitsStored, window.PixelRepresentation = 8, 0  # so the answer spans 0 to 255
    window.WindowCenter = _first(look["WindowCenter"])
    window.WindowWidth = _first(look["WindowWidth"])
    window.VOILUTFunction = str(look.get("VOILUTFunction", "LINEAR")).upper()
    linear = window.VOILUTFunction == "LINEAR"
    if not (window.WindowWidth >= 1 if linear else window.WindowWidth > 0):
        return None
    with np.errstate(over="ignore"):  # far from a sigmoid's centre its exponential is infinite
        shown = apply_windowing(values, window)
    return np.asarray(np.rint(shown), np.uint8)


def _first(value: Any) -> float:
    """The first of several alternative windows."""
    return float(value if isinstance(value, int | float | str) else value[0])


def _table(item: Any, header: Any) -> tuple[int, NDArray[Any]]:
    """First mapped value and entries of a LUT."""
    count, first, _ = item.LUTDescriptor
    data = item.LUTData
    if isinstance(data, bytes):
        order = "<" if header.file_meta.TransferSyntaxUID.is_little_endian else ">"
        wide = len(data) >= 2 * (count or 65536)
        data = np.frombuffer(data, f"{order}u2" if wide else np.uint8)
    return int(first), np.atleast_1d(np.asarray(data))[: count or 65536]


def _look_up(values: NDArray[Any], first: int, table: NDArray[Any]) -> NDArray[Any]:
    rows = np.clip(np.nan_to_num(values).astype(np.int64) - first, 0, len(table) - 1)
    return np.asarray(table[rows])


def _palette(pixels: NDArray[Any], header: Any) -> NDArray[np.uint8]:
    from pydicom.pixels import apply_color_lut

    colours = apply_color_lut(pixels, header)[:, :, :3]
    return np.asarray(colours if colours.max() <= 255 else colours >> 8, np.uint8)


def _check_size(stream: bytes, syntax: Any, rows: int, columns: int, samples: int) -> None:
    """ValueError unless a JPEG, JPEG-LS or JPEG 2000 stream has the size the file declares.

    A stream that declares more would be unpacked to its own size, however large.
    """
    if "RLE" in syntax.name:
        return  # unpacked into the declared size
    declared = _jpeg_2000(stream) if b"\xff\x4f\xff\x51" in stream[:512] else _jpeg(stream)
    if declared != (rows, columns, samples):
        raise ValueError(
            f"the compressed image says rows, columns, samples {declared}, the file says "
            f"{(rows, columns, samples)}"
        )


def _jpeg_2000(stream: bytes) -> tuple[int, int, int]:
    start = stream.index(b"\xff\x4f\xff\x51")
    _, _, right, bottom, left, top = struct.unpack_from(">HHIIII", stream, start + 4)
    (samples,) = struct.unpack_from(">H", stream, start + 40)
    return bottom - top, right - left, samples


def _jpeg(stream: bytes) -> tuple[int, int, int]:
    offset = 2
    while (marker := stream[offset + 1]) not in _FRAMES:
        # Segments have lengths; 0xFF before a marker is a filling byte.
        length = 1 if marker == 0xFF else 2 + int.from_bytes(stream[offset + 2 : offset + 4])
        offset += length
    rows, columns, samples = struct.unpack_from(">HHB", stream, offset + 5)
    return rows, columns, samples
