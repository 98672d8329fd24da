"""Image files to RGB arrays: one way in for every format, and none for anything else."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ogkd.errors import DataError, NoImagesError, OgkdError, out_of_memory
from ogkd.images.dicom import frame_count, read_dicom
from ogkd.images.memory import ImageLike, InMemory, array_to_rgb, as_ref
from ogkd.images.nifti import filled_slices, read_nifti
from ogkd.images.npz import read_npz
from ogkd.images.plain import FORMATS, check_size, own_pixels, read_plain, rgb_of
from ogkd.images.ref import (
    ENDINGS,
    Broken,
    ImageRef,
    Kind,
    SlicesRule,
    damaged,
    file_state,
    kind_of,
    starts_as_dicom,
)

EXTENSIONS = frozenset(chain.from_iterable(ENDINGS.values())) - {".npz"}
MAX_PIXELS = 100_000_000  # a decompression bomb is refused before it is decoded

_FULLEST = 75  # percent of the memory in use from which on no decoded file is kept
_NOWHERE = logging.NullHandler()


def silence_decoders() -> None:
    """What these libraries report about bad files is in our errors, for the whole process."""
    for name in ("pydicom", "openjpeg", "libjpeg", "nibabel", "tifffile", "PIL"):
        logging.getLogger(name).addHandler(_NOWHERE)  # the same one: a second time adds nothing
        warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")


silence_decoders()


_kept: dict[tuple[object, ...], NDArray[np.uint8]] | None = None  # pixels, by file and content


@contextmanager
def decode_once() -> Iterator[None]:
    """Within it, a file is decoded once as far as memory allows: for commands of several steps."""
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def _read_once(ref: ImageRef) -> NDArray[np.uint8]:
    if (kept := _kept) is None:
        return _read_file(ref)
    key = (file_state(ref.file), ref.file.suffix, ref.part)
    if (pixels := kept.get(key)) is None:
        pixels = _read_file(ref)
        pixels.flags.writeable = False  # several callers may get it
        # Nothing is evicted: a second pass over more files than fit would find none of them.
        if psutil.virtual_memory().percent < _FULLEST:
            kept[key] = pixels
    return pixels


class BlankImage(DataError):
    """All pixels of an image are the same."""


def read_image(image: ImageLike, *, blank: bool = True) -> NDArray[np.uint8]:
    """Read an image as RGB uint8 [H, W, 3], upright, deep images scaled by their own range.

    Takes a file, the bytes of one, a PIL image, an array [H, W] or [H, W, 3] or a tensor, which
    may also be [3, H, W]; floats are shares from 0 to 1. A slice, frame or row of a file is named
    behind a #: see `ImageRef`. Whatever is wrong with the image is a DataError that names it.
    With `blank=False` an image whose pixels are all the same is refused: there is nothing in it.
    """
    return own_pixels(look_at(image, blank=blank))


def look_at(image: ImageLike, *, blank: bool = True) -> NDArray[np.uint8]:
    """As `read_image`, but the array may be a view that cannot be written to, which is faster."""
    ref = as_ref(image)
    if isinstance(ref, Broken):
        raise DataError(ref.reason)
    try:
        pixels = _read_memory(ref) if isinstance(ref, InMemory) else _read_once(ref)
        if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            raise ValueError(f"an array of shape {pixels.shape}, not an image")
        if not blank and _is_blank(pixels):
            raise BlankImage(f"{ref} is blank: all of its pixels are the same.")
        return pixels
    except OgkdError:
        raise
    except Exception as error:
        # Decoders raise all kinds of things on hostile bytes; it is the file's fault each time.
        raise _problem(ref.file, error) from error


def _is_blank(pixels: NDArray[np.uint8]) -> bool:
    first = pixels[0, 0]  # most images differ from it in some of a few pixels: not all are compared
    return bool((pixels[::31, ::31] == first).all() and (pixels == first).all())


def pixel_digest(pixels: NDArray[np.uint8]) -> bytes:
    """The same for the same pixels, whatever file they come from: what makes images copies."""
    height, width = pixels.shape[:2]
    return hashlib.sha256(f"{height} {width} ".encode() + pixels.tobytes()).digest()


def _problem(file: Path, error: Exception) -> DataError:
    if isinstance(error, UnidentifiedImageError):
        known = ", ".join((*FORMATS, "DICOM", "NIfTI", "MedMNIST npz"))
        return DataError(f"{file} is not a readable image. Known formats: {known}.")
    if out_of_memory(error):
        return DataError(f"There is not enough memory to read {file}.")
    if isinstance(error, OSError) and error.errno is not None and error.strerror:
        return DataError(f"Cannot read {file}: {error.strerror}.")
    return damaged(file, error)


def _read_memory(ref: InMemory) -> NDArray[np.uint8]:
    content = ref.content
    if isinstance(content, bytes | bytearray | memoryview):
        return _read_bytes(bytes(content), ref)
    if isinstance(content, Image.Image):
        check_size(ref.file, content.width, content.height, MAX_PIXELS)
        return rgb_of(content)
    pixels = array_to_rgb(content, str(ref.file))
    check_size(ref.file, pixels.shape[1], pixels.shape[0], MAX_PIXELS)
    return pixels


def _read_bytes(content: bytes, ref: InMemory) -> NDArray[np.uint8]:
    """Bytes as the file that they are, with the same limits: a decoder may want a real one."""
    gzipped, nifti = content[:2] == b"\x1f\x8b", content[344:348] in (b"n+1\0", b"ni1\0")
    ending = ".nii.gz" if gzipped else ".nii" if nifti else ""
    with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
        file = Path(folder, f"image{ending}")
        file.write_bytes(content)
        try:
            return read_image(ImageRef(file).sliced(ref.rule))
        except OgkdError as error:
            raise type(error)(str(error).replace(str(file), str(ref.file))) from None


_READERS: dict[Kind, Callable[..., NDArray[np.uint8]]] = {
    "plain": read_plain,
    "dicom": read_dicom,
    "nifti": read_nifti,
    "npz": read_npz,
}


def _read_file(ref: ImageRef) -> NDArray[np.uint8]:
    file, part = ref.file, ref.part
    facts = file.stat()
    if not stat.S_ISREG(facts.st_mode):
        raise DataError(f"{file} is not a regular file.")
    if facts.st_size == 0:
        raise DataError(f"{file} is not a readable image: it is empty.")
    return _READERS[kind_of(file)](file, part, max_pixels=MAX_PIXELS)


def parts_of(image: ImageRef, rule: SlicesRule) -> list[ImageRef]:
    """The slices of a volume or frames of a clip; another image, or a named part, is one alone."""
    kind = "" if image.part else kind_of(image.file)
    if kind == "nifti":
        filled = filled_slices(image.file, rule.axis)
        parts = [ImageRef(image.file, f"axis={rule.axis},index={k}") for k in rule.choose(filled)]
    elif kind == "dicom" and (frames := frame_count(image.file)) > 1:
        chosen = [ImageRef(image.file, f"index={k}") for k in rule.choose(range(frames))]
        parts = [frame for frame in chosen if not _is_blank(read_image(frame))]
    else:
        return [image]
    if not parts:
        raise DataError(f"{image} is blank: there is nothing in any part of it.")
    return parts


def find_images(paths: Iterable[str | Path]) -> list[ImageRef]:
    """All image files among `paths`, folders searched at any depth, sorted within each folder.

    Files named directly are kept whatever their ending; links to folders are not followed,
    so a loop of links cannot trap the search. Hidden files are skipped. A file without an ending
    counts if it has DICOM's mark.
    """
    images: dict[ImageRef, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            images.update(dict.fromkeys(map(ImageRef, images_below(path))))
        elif os.path.lexists((ref := ImageRef.of(path)).file):  # a broken link fails when read
            images[ref] = None
        else:
            raise DataError(f"There is no file or folder {path}.")
    if not images:
        raise NoImagesError(f"No images found with the endings {', '.join(sorted(EXTENSIONS))}.")
    return list(images)


def images_below(folder: Path) -> list[Path]:
    """The image files in a folder, at any depth, sorted; there may be none."""
    inside: list[Path] = []
    for folder_path, folders, names in os.walk(folder, onerror=_refuse_folder):
        folders[:] = [name for name in folders if not name.startswith(".")]  # prunes the walk
        inside += [file for name in names if _is_image(file := Path(folder_path, name))]
    return sorted(inside, key=Path.as_posix)


def _is_image(file: Path) -> bool:
    name = file.name.lower()
    if name.startswith("."):
        return False
    if name.endswith(tuple(EXTENSIONS)):
        return True
    # Scanners name files by numbers with dots; an ending has a letter. DICOMDIR lists files.
    ending = file.suffix[1:]
    nameless = not any(letter.isalpha() for letter in ending)
    return nameless and name != "dicomdir" and starts_as_dicom(file)


def _refuse_folder(error: OSError) -> None:
    """A folder that cannot be searched is an error: its images would be missing silently."""
    raise DataError(f"Cannot search {error.filename}: {error.strerror}.")
