"""Image files to RGB arrays: one way in for every format, and none for anything else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from ogkd.errors import DataError

__all__ = ["EXTENSIONS", "MAX_PIXELS", "find_images", "read_image"]

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp"})
MAX_PIXELS = 100_000_000  # a decompression bomb is refused before it is decoded
_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP")
_DEEP_MODES = ("I", "F", "I;16", "I;16B", "I;16L", "I;16N")


def read_image(path: str | Path) -> NDArray[np.uint8]:
    """Read an image file as RGB uint8 [H, W, 3], upright, deep images scaled by their own range."""
    path = Path(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"{path} is not a regular file. Give image files or folders of them.")
        # The limit is ours to check; Pillow's own would only warn at this size.
        with Image.open(path, formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise DataError(
                    f"{path} has {image.width} x {image.height} pixels, more than the limit of "
                    f"{MAX_PIXELS:,}. Cut it into tiles or scale it down first."
                )
            image.load()
            return _rgb(ImageOps.exif_transpose(image))
    except FileNotFoundError as error:
        raise DataError(f"There is no file {path}. Check the path.") from error
    except PermissionError as error:
        raise DataError(f"No permission to read {path}. Change its permissions.") from error
    except UnidentifiedImageError as error:
        raise DataError(
            f"{path} is not a readable image. Known formats: {', '.join(_FORMATS)}."
        ) from error
    except Image.DecompressionBombError as error:
        raise DataError(f"{path} declares too many pixels: {error}. It is not opened.") from error
    except (OSError, SyntaxError, ValueError, EOFError, MemoryError) as error:
        reason = str(error).strip() or type(error).__name__
        raise DataError(
            f"{path} is damaged or cut short ({reason}). Replace the file or leave it out."
        ) from error


def _rgb(image: Image.Image) -> NDArray[np.uint8]:
    if image.mode in _DEEP_MODES:
        gray = _scale_to_bytes(np.asarray(image))
        return np.repeat(gray[:, :, None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def _scale_to_bytes(values: NDArray[np.generic]) -> NDArray[np.uint8]:
    """Map the values' own range to 0-255; a plain conversion would turn 16 bits white."""
    deep = values.astype(np.float64)
    finite = np.isfinite(deep)
    if not finite.any():
        return np.zeros(deep.shape, np.uint8)
    low, high = deep[finite].min(), deep[finite].max()
    deep = np.nan_to_num(deep, nan=low, posinf=high, neginf=low)
    if high == low:
        return np.zeros(deep.shape, np.uint8)
    return np.asarray(np.rint((deep - low) / (high - low) * 255.0), np.uint8)


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """All image files among `paths`, folders searched at any depth, sorted within each folder.

    Files named directly are kept whatever their ending; links to folders are not followed,
    so a loop of links cannot trap the search. Hidden files are passed over.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        if path.is_dir():
            inside = [
                Path(folder) / name
                for folder, folders, names in os.walk(path)
                if _sort_and_hide(folders)
                for name in names
                if not name.startswith(".") and Path(name).suffix.lower() in EXTENSIONS
            ]
            found.update(dict.fromkeys(sorted(inside, key=lambda file: file.as_posix())))
        elif path.exists():
            found[path] = None
        else:
            raise DataError(f"There is no file or folder {path}. Check the path.")
    if not found:
        raise DataError(
            "No images found. Give image files or folders that hold "
            f"{', '.join(sorted(EXTENSIONS))} files."
        )
    return list(found)


def _sort_and_hide(folders: list[str]) -> bool:
    """Prune hidden folders in place, as `os.walk` allows; always true."""
    folders[:] = [name for name in folders if not name.startswith(".")]
    return True
