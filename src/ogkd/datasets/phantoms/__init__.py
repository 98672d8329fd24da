"""Procedural images that imitate how medical modalities look; no patient is behind them.

`PHANTOMS` lists the datasets, `render` draws one image, `write_folder` a whole dataset,
`write_films` chest films with several findings and a table of them.
An image depends only on (name, label, seed, index): not on the process, nor on the order.
"""

from __future__ import annotations

import json
import multiprocessing
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ogkd.datasets.phantoms import _optical, _radiology, _slices
from ogkd.datasets.phantoms._draw import Canvas, Drawing, new_rng, to_levels
from ogkd.datasets.splits import check_seed
from ogkd.datasets.tables import csv_text
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
_CHUNK = 25  # images drawn at once by one worker
_Job = tuple[str, int, int, range, int, int, Path]


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
    text = (resources.files(__name__) / "records" / f"{name}.json").read_text(encoding="utf-8")
    record = json.loads(text)
    classes: dict[str, list[str]] = record.pop("classes")
    descriptions = tuple(tuple(texts) for texts in classes.values())
    return PhantomDataset(
        name=name, class_names=tuple(classes), descriptions=descriptions, **record
    )


PHANTOMS: Mapping[str, PhantomDataset] = MappingProxyType({name: _load(name) for name in _DRAW})


CHEST_FINDINGS = "chest-findings"  # the name of the films with several findings
TABLE = "films.csv"
FINDINGS = PHANTOMS["cxr"].class_names[1:]  # all but the normal class
_PREVALENCES = (0.35, 0.3, 0.25, 0.2)  # of the findings


def phantom(name: str) -> PhantomDataset:
    if name in PHANTOMS:
        return PHANTOMS[name]
    hint = did_you_mean(name, PHANTOMS, cutoff=0.4)
    raise ConfigError(f"There is no phantom dataset {name!r}.{hint} Known: {', '.join(PHANTOMS)}.")


def render(
    name: str, label: int, *, seed: int, index: int, size: int = 160, stream: int = 0
) -> Phantom:
    """Draw image number `index` of class `label`; `stream` separates splits of one seed."""
    dataset = phantom(name)
    _check(dataset, label, seed, index, size)
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


def write_folder(
    name: str,
    out: Path,
    *,
    splits: Mapping[str, int],
    seed: int = 0,
    size: int = 160,
    workers: int = 1,
) -> Path:
    """Write image folders `out/{train,val,test}/class_name/0000.png`.

    `splits` gives the number of images per class in each split.
    `workers` above 1 draws in as many processes, which is worth it for some hundreds of images.
    """
    dataset = phantom(name)
    counts = checked_counts(splits)
    out = check_empty(out)
    total = sum(counts.values()) * len(dataset.class_names)
    with folder_atomically(out) as aside, progress_bar(f"phantoms {name}", total) as bar:
        jobs = []
        for split, count in counts.items():
            for label, class_name in enumerate(dataset.class_names):
                folder = aside / split / class_name.replace(" ", "_")
                folder.mkdir(parents=True)
                for start in range(0, count, _CHUNK):
                    indices = range(start, min(start + _CHUNK, count))
                    jobs.append((name, label, seed, indices, size, SPLITS.index(split), folder))
        for drawn in _run(jobs, workers):
            bar.advance(drawn)
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
    counts = checked_counts(splits)
    rows = [["path", *FINDINGS, "split"]]
    with (
        folder_atomically(check_empty(out)) as aside,
        progress_bar(f"phantoms {CHEST_FINDINGS}", sum(counts.values())) as bar,
    ):
        for split, count in counts.items():
            (aside / split).mkdir()
            for index in range(count):
                entropy = [
                    zlib.crc32(CHEST_FINDINGS.encode()), seed, index, zlib.crc32(split.encode())
                ]  # fmt: skip
                scene, texture, choice = np.random.SeedSequence(entropy).spawn(3)
                draws = new_rng(choice).random((2, len(FINDINGS)))
                present = draws[0] < _PREVALENCES
                known = draws[1] >= (0 if split == "test" else missing)
                labels = tuple((np.flatnonzero(present) + 1).tolist()) or (0,)
                canvas = Canvas(new_rng(scene), new_rng(texture), size)
                image, _, _ = _radiology.film(labels, canvas)
                file = f"{split}/{index:04d}.png"
                Image.fromarray(to_levels(image)).save(aside / file, compress_level=1)
                cells = np.where(known, np.where(present, "1", "0"), "")
                rows.append([file, *cells.tolist(), split])
                bar.advance()
        (aside / TABLE).write_text(csv_text(rows), encoding="utf-8")
    return Path(out) / TABLE


def _run(jobs: list[_Job], workers: int) -> Iterator[int]:
    if workers <= 1:
        yield from map(_draw_files, jobs)
        return
    # Not fork: a parent that has started threads (torch has) may not be copied safely.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        yield from pool.map(_draw_files, jobs)


def _draw_files(job: _Job) -> int:
    """Draw the images of one job into their folder; how many they were."""
    name, label, seed, indices, size, stream, folder = job
    for index in indices:
        drawn = render(name, label, seed=seed, index=index, size=size, stream=stream)
        Image.fromarray(drawn.image).save(folder / f"{index:04d}.png", compress_level=1)
    return len(indices)


def check_empty(out: Path) -> Path:
    """The folder to write a dataset to; a DataError unless it is new or empty."""
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(
            f"{out} exists and is not an empty folder; nothing was written. "
            "Choose another folder, or remove this one first."
        )
    return out


def checked_counts(splits: Mapping[str, int]) -> dict[str, int]:
    """The splits that have images, with their numbers."""
    for split, count in splits.items():
        if split not in SPLITS:
            raise ConfigError(f"Unknown split {split!r}. Use {', '.join(SPLITS)}.")
        if count < 0:
            raise ConfigError(f"The number of images for {split!r} is {count}; give 0 or more.")
        if count > MOST_IMAGES:
            raise ConfigError(
                f"{split!r} can have at most {MOST_IMAGES:,} images per class, but got {count:,}."
            )
    if not any(splits.values()):
        raise ConfigError("All numbers of images are 0. Give at least one image per class.")
    return {split: count for split, count in splits.items() if count}


def _check(dataset: PhantomDataset, label: int, seed: int, index: int, size: int) -> None:
    if not 0 <= label < len(dataset.class_names):
        raise ConfigError(
            f"{dataset.name} has labels 0 to {len(dataset.class_names) - 1}, but got {label}."
        )
    check_seed(seed)
    if index < 0:
        raise ConfigError(f"index must be 0 or more, but is {index}.")
    if not MIN_SIZE <= size <= MAX_SIZE:
        raise ConfigError(f"size must be {MIN_SIZE} to {MAX_SIZE} pixels, but is {size}.")
