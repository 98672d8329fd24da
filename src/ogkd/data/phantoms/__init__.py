"""Procedural images that imitate how medical modalities look; no patient is behind them.

`PHANTOMS` lists the datasets, `render` draws one image, `write_folder` a whole dataset,
`write_films` chest films with several findings and a table of them.
An image depends only on (name, label, seed, index): not on the process, nor on the order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.data.phantoms import _optical, _radiology, _slices
from ogkd.data.phantoms._draw import Canvas, Drawing, new_rng, record, to_levels
from ogkd.data.splits import check_seed
from ogkd.data.tables import csv_text
from ogkd.errors import ConfigError, DataError, did_you_mean
from ogkd.files import folder_atomically
from ogkd.progress import progress_bar

__all__ = [
    "CHEST_FINDINGS",
    "FINDINGS",
    "PHANTOMS",
    "SPLITS",
    "TABLE",
    "Phantom",
    "PhantomDataset",
    "phantom",
    "render",
    "write_films",
    "write_folder",
]

SPLITS = ("train", "val", "test")
MIN_SIZE, MAX_SIZE = 64, 1024
MOST_IMAGES = 100_000  # of a class in a split


@dataclass(frozen=True)
class PhantomDataset:
    """One family of phantoms.

    `normal` is the index of the healthy class, or None; `descriptions` has, per class, sentences
    on what is seen.
    """

    name: str
    title: str
    modality: str
    organ: str
    class_names: tuple[str, ...]
    normal: int | None
    descriptions: tuple[tuple[str, ...], ...] = field(repr=False)


@dataclass(frozen=True)
class Phantom:
    """One drawn image, what was drawn, and where the finding is."""

    image: NDArray[np.uint8]  # [size, size, 3]
    attributes: Mapping[str, str | float]
    mask: NDArray[np.uint8]  # [size, size], 255 where the finding is; all 0 without one


_DRAW: Mapping[str, Callable[[int, Canvas], Drawing]] = {
    "us-breast": _radiology.us_breast,
    "ct-kidney": _slices.ct_kidney,
    "mri-brain": _slices.mri_brain,
    "histology": _optical.histology,
    "cxr": _radiology.chest,
    "endoscopy": _optical.endoscopy,
}


def _load(name: str) -> PhantomDataset:
    facts = record(name)
    facts.pop("looks", None)
    classes: dict[str, list[str]] = facts.pop("classes")
    descriptions = tuple(tuple(texts) for texts in classes.values())
    return PhantomDataset(name=name, class_names=tuple(classes), descriptions=descriptions, **facts)


PHANTOMS: Mapping[str, PhantomDataset] = MappingProxyType({name: _load(name) for name in _DRAW})


CHEST_FINDINGS = "chest-findings"  # the name of the films with several findings
TABLE = "films.csv"
FINDINGS = PHANTOMS["cxr"].class_names[1:]  # all but the normal class
_PREVALENCES = (0.35, 0.3, 0.25, 0.2)  # of the findings


def phantom(name: str) -> PhantomDataset:
    if name in PHANTOMS:
        return PHANTOMS[name]
    hint = did_you_mean(name, PHANTOMS, cutoff=0.4)
    raise ConfigError(
        f"There is no phantom dataset {name!r}.{hint} Known: {', '.join(PHANTOMS)}.",
        argument="name",
    )


def render(
    name: str, label: int, *, seed: int, index: int, size: int = 160, stream: int = 0
) -> Phantom:
    """Draw image number `index` of class `label`; `stream` separates splits of one seed."""
    check_seed(seed)
    limits = {
        "label": (label, 0, len(phantom(name).class_names) - 1),
        "index": (index, 0, 2**32),
        "size": (size, MIN_SIZE, MAX_SIZE),
    }
    for argument, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise ConfigError(
                f"{argument} must be {low} to {high}, but is {value}.", argument=argument
            )
    entropy = [zlib.crc32(name.encode()), label, seed, index, stream]
    scene, texture = np.random.SeedSequence(entropy).spawn(2)
    return draw(name, label, scene, texture, size)


def draw(
    name: str, label: int, scene: np.random.SeedSequence, texture: np.random.SeedSequence, size: int
) -> Phantom:
    """Draw by two seeds: what is drawn does not depend on how many pixels of noise are needed."""
    canvas = Canvas(new_rng(scene), new_rng(texture), size)
    image, attributes, mask = _DRAW[name](label, canvas)
    levels = to_levels(image)
    if levels.ndim == 2:
        levels = np.repeat(levels[..., None], 3, axis=2)
    return Phantom(levels, MappingProxyType(attributes), to_levels(mask))


@contextmanager
def new_dataset(
    what: str, out: Path, splits: Mapping[str, int], classes: Sequence[str]
) -> Iterator[tuple[Path, Iterator[tuple[str, int, int, Path]]]]:
    """A folder that becomes `out`, and split, label, index and path of each image to write to it.

    `splits` gives the number of images per class in each split; the paths have no suffix.
    """
    if bad := [split for split, count in splits.items() if split not in SPLITS or count < 0]:
        raise ConfigError(
            f"splits must be numbers of images in {', '.join(SPLITS)}, but got {bad[0]!r}: "
            f"{splits[bad[0]]}.",
            argument=bad[0],
        )
    if not 0 < max(splits.values(), default=0) <= MOST_IMAGES:
        raise ConfigError(f"A class must have 1 to {MOST_IMAGES:,} images in a split.")
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an empty folder.", argument="out")
    total = sum(splits.values()) * len(classes)
    with folder_atomically(out) as aside, progress_bar(what, total) as bar:

        def images() -> Iterator[tuple[str, int, int, Path]]:
            for split in filter(splits.get, splits):
                for label, name in enumerate(classes):
                    folder = Path(split, name.replace(" ", "_"))
                    (aside / folder).mkdir(parents=True)
                    for index in range(splits[split]):
                        yield split, label, index, folder / f"{index:04d}"
                        bar.advance()

        yield aside, images()


def write_folder(
    name: str, out: Path, *, splits: Mapping[str, int], seed: int = 0, size: int = 160
) -> Path:
    """Write image folders `out/{train,val,test}/class_name/0000.png`.

    `splits` gives the number of images per class in each split.
    """
    with new_dataset(f"phantoms {name}", out, splits, phantom(name).class_names) as (aside, images):
        for split, label, index, path in images:
            stream = SPLITS.index(split)
            drawn = render(name, label, seed=seed, index=index, size=size, stream=stream)
            Image.fromarray(drawn.image).save(aside / f"{path}.png", compress_level=1)
    return out


def write_films(
    out: Path, *, splits: Mapping[str, int], seed: int = 0, size: int = 160, missing: float = 0.0
) -> Path:
    """Write `out/{train,val,test}/0000.png` and `out/films.csv`; returns the table's path.

    Findings are drawn independently of each other. `missing` is the share of answers that the
    table leaves empty, never in test.
    """
    check_seed(seed)
    if not 0 <= missing < 1:
        raise ConfigError(
            f"missing must be at least 0 and below 1, but is {missing}.", argument="missing"
        )
    rows = [["path", *FINDINGS, "split"]]
    with new_dataset(f"phantoms {CHEST_FINDINGS}", out, splits, ("",)) as (aside, images):
        for split, _, index, path in images:
            kind, part = zlib.crc32(CHEST_FINDINGS.encode()), zlib.crc32(split.encode())
            scene, texture, choice = np.random.SeedSequence([kind, seed, index, part]).spawn(3)
            draws = new_rng(choice).random((2, len(FINDINGS)))
            present = draws[0] < _PREVALENCES
            known = draws[1] >= (0 if split == "test" else missing)
            labels = tuple((np.flatnonzero(present) + 1).tolist()) or (0,)
            image, _, _ = _radiology.film(labels, Canvas(new_rng(scene), new_rng(texture), size))
            Image.fromarray(to_levels(image)).save(aside / f"{path}.png", compress_level=1)
            cells = np.where(known, np.where(present, "1", "0"), "")
            rows.append([f"{path.as_posix()}.png", *cells.tolist(), split])
        (aside / TABLE).write_text(csv_text(rows), encoding="utf-8")
    return out / TABLE
