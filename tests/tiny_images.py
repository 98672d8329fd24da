"""Files of every format, made on the spot for the tests."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHADES = np.arange(48 * 40, dtype=np.uint16).reshape(48, 40)  # every value once


def png(path: Path, array: NDArray[Any]) -> Path:
    """A PNG of 8 or 16 bits: gray, gray and alpha, RGB or RGBA by the last axis; filter 0."""
    height, width = array.shape[:2]
    samples = 1 if array.ndim == 2 else array.shape[2]
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[samples]
    bits = 8 * array.dtype.itemsize
    rows = array.astype(array.dtype.newbyteorder(">")).reshape(height, -1)
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    header = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(body)), (b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, chunks)))
    return path


def _chunk(part: tuple[bytes, bytes]) -> bytes:
    kind, data = part
    body = kind + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def dicom(path: Path, array: NDArray[Any], *, frames: bool = False, **elements: Any) -> Path:
    """An uncompressed DICOM file; `elements` are attributes to set, `syntax` compresses it."""
    dataset = dicom_dataset(array, frames=frames, **elements)
    dataset.save_as(path, enforce_file_format=True)
    return path


def dicom_dataset(
    array: NDArray[Any], *, frames: bool = False, syntax: str = "", bits: int = 0, **elements: Any
) -> Any:
    import pydicom
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = pydicom.Dataset()
    dataset.file_meta = pydicom.dataset.FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = generate_uid()
    dataset.PatientName = "Nobody^Known"
    shape = array.shape[1:] if frames else array.shape
    dataset.Rows, dataset.Columns = shape[:2]
    dataset.SamplesPerPixel = 3 if len(shape) == 3 else 1
    dataset.PhotometricInterpretation = "RGB" if len(shape) == 3 else "MONOCHROME2"
    if len(shape) == 3:
        dataset.PlanarConfiguration = 0
    if frames:
        dataset.NumberOfFrames = len(array)
    size = array.dtype.itemsize
    dataset.BitsAllocated = 8 * size
    dataset.BitsStored = bits or 8 * size
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(array.dtype.kind == "i")
    content = array.astype(array.dtype.newbyteorder("<")).tobytes()
    if array.dtype.kind == "f":
        for name in ("BitsStored", "HighBit", "PixelRepresentation"):
            delattr(dataset, name)
        dataset.FloatPixelData = content
    else:
        dataset.PixelData = content + b"\0" * (len(content) % 2)
        dataset["PixelData"].VR = "OB" if size == 1 else "OW"
    for name, value in elements.items():
        setattr(dataset, name, value)
    if syntax:
        dataset.compress(syntax)
    return dataset


def encapsulated(
    path: Path, stream: bytes, syntax: str, array: NDArray[Any], **elements: Any
) -> Path:
    """A DICOM file around a frame that is compressed already."""
    from pydicom.encaps import encapsulate

    dataset = dicom_dataset(array, **elements)
    dataset.PixelData = encapsulate([stream])
    dataset["PixelData"].VR = "OB"
    dataset["PixelData"].is_undefined_length = True
    dataset.file_meta.TransferSyntaxUID = syntax
    dataset.save_as(path, enforce_file_format=True)
    return path


def nifti(
    path: Path, array: NDArray[Any], affine: NDArray[Any] | None = None, **scale: Any
) -> Path:
    import nibabel

    image = nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine)
    if scale:
        image.header.set_slope_inter(scale["slope"], scale["inter"])
    nibabel.save(image, path)
    return path


def medmnist(path: Path, **arrays: NDArray[Any]) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def own_range(values: NDArray[Any]) -> NDArray[np.uint8]:
    """What scaling by its own range means, in one line: the oracle of many tests."""
    deep = values.astype(np.float64)
    return np.rint(255 * (deep - deep.min()) / (np.ptp(deep) or 1)).astype(np.uint8)


def lossless_jpeg(array: NDArray[Any], bits: int) -> bytes:
    """JPEG lossless (process 14, first-order prediction), written from the standard."""
    height, width = array.shape
    huffman = bytes([0x00, *[0] * 4, 17, *[0] * 11, *range(17)])  # 17 codes of five bits
    frame = struct.pack(">BHHBBBB", bits, height, width, 1, 1, 0x11, 0)
    scan = bytes([1, 1, 0x00, 1, 0, 0])
    values = array.astype(int)
    guess = np.empty_like(values)
    guess[0, 0] = 1 << (bits - 1)
    guess[0, 1:] = values[0, :-1]
    guess[1:, 0] = values[:-1, 0]
    guess[1:, 1:] = values[1:, :-1]
    words = []
    steps = (values - guess + 32767) % 65536 - 32767  # the standard counts modulo 2^16
    for step in steps.ravel():
        size = int(abs(step)).bit_length()
        words.append(f"{size:05b}")
        if 0 < size < 16:
            words.append(f"{step if step > 0 else step + (1 << size) - 1:0{size}b}")
    text = "".join(words)
    text += "1" * (-len(text) % 8)
    body = int(text, 2).to_bytes(len(text) // 8, "big").replace(b"\xff", b"\xff\0")
    parts = [(0xC4, huffman), (0xC3, frame), (0xDA, scan)]
    head = b"".join(struct.pack(">BBH", 0xFF, kind, len(data) + 2) + data for kind, data in parts)
    return b"\xff\xd8" + head + body + b"\xff\xd9"


def volume(path: Path, *, filled: range = range(4, 20), depth: int = 24) -> Path:
    """A volume with noise in some axial slices, and next to nothing in the others."""
    rng = np.random.default_rng(0)
    voxels = rng.normal(0, 1, (20, 24, depth))
    voxels[:, :, filled] += rng.integers(0, 1000, (20, 24, len(filled)))
    import nibabel

    nibabel.save(nibabel.Nifti1Image(voxels.astype(np.int16), np.eye(4)), path)
    return path
