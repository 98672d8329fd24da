"""The images of a project: where they are, what they look like small, and their features.

Features are computed in the background. Thumbnails stay in memory: no copy of an image is
written anywhere.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.errors import DataError
from ogkd.features.store import FeatureStore
from ogkd.images import ImageRef, SliceRule, read_image
from ogkd.images.decode import images_below
from ogkd.images.ref import kind_of
from ogkd.serve.studio.project import UPLOADS, Project

THUMB, VIEW = 192, 1024  # pixels of the longer side
_BATCH = 16
_THUMBS, _VIEWS = 10_000, 200  # that are kept in memory
_MOST = 50_000  # images of a project


def find_project_images(project: Project) -> list[ImageRef]:
    """The images in the project's folders and those that were uploaded into it."""
    rule = None if project.facts.slice is None else SliceRule.parse(project.facts.slice)
    uploads = project.folder / UPLOADS
    folders = [project.ref(folder).file for folder in project.facts.folders]
    files: dict[Path, None] = {}
    for folder in [*folders, *([uploads] if uploads.is_dir() else [])]:
        if not folder.is_dir():
            raise DataError(f"There is no folder {folder}, which the project's images are in.")
        inside = images_below(folder)
        if folder != uploads:  # a project may be inside the folder of its images
            inside = [file for file in inside if not file.is_relative_to(project.folder)]
        files.update(dict.fromkeys(inside))
    if len(files) > _MOST:
        raise DataError(
            f"There are {len(files):,} images, more than the {_MOST:,} that the studio can show. "
            "Choose a folder with fewer."
        )
    middle = rule or SliceRule.parse("axis=2,index=middle")
    return [ImageRef(file).sliced(middle if kind_of(file) == "nifti" else rule) for file in files]


class Gallery:
    """The images in order, their features as far as they are known, and small copies of them."""

    def __init__(self, refs: Sequence[ImageRef], addresses: Sequence[str]) -> None:
        self.refs, self.addresses = list(refs), list(addresses)
        self.rows = {address: row for row, address in enumerate(self.addresses)}
        # A random order that does not change: by the digest of the address.
        self.order = sorted(
            range(len(self.refs)),
            key=lambda row: hashlib.sha256(os.fsencode(self.addresses[row])).digest(),
        )
        # [N, d], as heads see them; zeros: not yet
        self.features: NDArray[np.float32] | None = None
        self.known = np.zeros(len(self.refs), bool)
        self.errors: dict[int, str] = {}
        self.copies: dict[int, int] = {}  # row -> the first row with the same content
        self.rate = 0.0  # images per second

    def __len__(self) -> int:
        return len(self.refs)

    def row(self, number: str | int) -> int:
        """A row that a request names, checked."""
        text = str(number)
        if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= len(self):
            raise DataError("There is no such image. Load the page again.")
        return int(text)

    @property
    def volumes(self) -> int:
        """Volumes, of which one slice is shown and learned from."""
        return sum(kind_of(ref.file) == "nifti" for ref in self.refs)

    @property
    def done(self) -> int:
        """Images that have features or cannot be read."""
        return int(self.known.sum()) + len(self.errors)

    def encode(
        self, store: FeatureStore, stop: threading.Event, notify: Callable[[], None]
    ) -> None:
        """Compute all features; `notify` is called after each batch."""
        backbone = store.backbone
        width = backbone.embed_dim + sum(backbone.deep_parts)
        self.features = np.zeros((len(self), width), np.float32)
        began, first = time.monotonic(), self.done
        keys: dict[str, int] = {}
        # In the random order, so that the queue can start before the end.
        for start in range(0, len(self), _BATCH):
            if stop.is_set():
                return
            rows = self._readable(self.order[start : start + _BATCH], keys)
            self._encode(store, rows, self.features)
            self.rate = (self.done - first) / max(time.monotonic() - began, 1e-6)
            notify()

    def _encode(self, store: FeatureStore, rows: list[int], features: NDArray[np.float32]) -> None:
        try:
            encoded = store.get(
                [self.refs[row] for row in rows], deep=bool(store.backbone.deep_parts)
            )
            features[rows] = encoded.rows[:, 0].numpy()
            self.known[rows] = True
        except DataError as error:
            if len(rows) > 1:  # one bad file: find it
                for row in rows:
                    self._encode(store, [row], features)
                return
            self.errors[rows[0]] = str(error).partition("\n")[2].strip() or str(error)

    def _readable(self, rows: Sequence[int], keys: dict[str, int]) -> list[int]:
        """The rows whose files can be opened; equal files are noted."""
        kept = []
        for row in rows:
            try:
                key = self.refs[row].key
            except DataError as error:
                self.errors[row] = str(error)
                continue
            first = keys.setdefault(key, row)
            if row > first:
                self.copies[row] = first
            elif row < first:  # of copies, the first in the gallery counts
                self.copies[first] = keys[key] = row
            kept.append(row)
        return kept

    def thumbnail(self, row: int, side: int) -> bytes:
        """A JPEG of the image, its longer side at most `side` pixels."""
        return (_thumb if side == THUMB else _view)(self.refs[row], side)


def _jpeg(image: ImageRef, side: int) -> bytes:
    small = Image.fromarray(read_image(image))
    small.thumbnail((side, side))
    memory = io.BytesIO()
    small.save(memory, "JPEG", quality=85)
    return memory.getvalue()


_thumb, _view = lru_cache(_THUMBS)(_jpeg), lru_cache(_VIEWS)(_jpeg)
