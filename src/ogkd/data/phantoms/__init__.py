"""Procedural images that imitate how medical modalities look; no patient is behind them.

`PHANTOMS` lists the datasets and `render` draws one image. `write_folder` writes a dataset,
`write_volumes` one of volumes, `write_films` chest films with several findings and their table.
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

from ogkd.data.phantoms import _families
from ogkd.data.phantoms._draw import Canvas, Drawing, new_rng, record, to_levels
from ogkd.data.tables import csv_text
from ogkd.errors import ConfigError, DataError, did_you_mean
from ogkd.files import folder_atomically
from ogkd.images.ref import INSTALL
from ogkd.progress import progress_bar

SPLITS = ("train", "val", "test")
MOST_IMAGES = 100_000  # of a class in a split
_EMPTY = 1  # slices at either end of a volume in which there is nothing


@dataclass(frozen=True)
class PhantomDataset:
    """One family of phantoms.

    `normal` is the index of the healthy class; `descriptions` has, per class, sentences on what is
    seen.
    """

    name: str
    class_names: tuple[str, ...]
    descriptions: tuple[tuple[str, ...], ...] = field(repr=False)
    title: str
    modality: str
    organ: str
    normal: int


@dataclass(frozen=True)
class Phantom:
    """One drawn image, what was drawn, and where the finding is."""

    image: NDArray[np.uint8]  # [size, size, 3]
    attributes: Mapping[str, str]
    mask: NDArray[np.uint8]  # [size, size], 255 where the finding is; all 0 without one


_DRAW: Mapping[str, Callable[[int, Canvas], Drawing]] = {
    "us-breast": _families.us_breast,
    "cxr": _families.chest,
    "endoscopy": _families.endoscopy,
}


def _load(name: str) -> PhantomDataset:
    facts = record(name)
    facts.pop("looks", None)
    classes: dict[str, list[str]] = facts.pop("classes")
    return PhantomDataset(name, tuple(classes), tuple(map(tuple, classes.values())), **facts)


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


def _check(**limits: tuple[float, float, float]) -> None:
    """Refuse an argument that is not between two limits; each is (value, lowest, highest)."""
    for argument, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise ConfigError(
                f"{argument} must be {low} to {high}, but is {value}.", argument=argument
            )


def render(
    name: str, label: int, *, seed: int, index: int, size: int = 160, stream: int = 0
) -> Phantom:
    """Draw image number `index` of class `label`; `stream` separates splits of one seed."""
    _check(label=(label, 0, len(phantom(name).class_names) - 1), seed=(seed, 0, 2**32 - 1))
    _check(index=(index, 0, 2**32))
    entropy = [zlib.crc32(name.encode()), label, seed, index, stream]
    scene, texture = np.random.SeedSequence(entropy).spawn(2)
    return draw(name, label, scene, texture, size)


def draw(
    name: str, label: int, scene: np.random.SeedSequence, texture: np.random.SeedSequence, size: int
) -> Phantom:
    """Draw by two seeds: what is drawn does not depend on how many pixels of noise are needed."""
    _check(size=(size, 64, 1024))
    canvas = Canvas(new_rng(scene), new_rng(texture), size)
    image, attributes, mask = _DRAW[name](label, canvas)
    levels = to_levels(image)
    if levels.ndim == 2:
        levels = np.repeat(levels[..., None], 3, axis=2)
    return Phantom(levels, MappingProxyType(attributes), to_levels(mask))


def render_volume(
    name: str,
    label: int,
    *,
    seed: int,
    index: int,
    slices: int = 32,
    share: float = 0.1,
    size: int = 160,
    stream: int = 0,
) -> tuple[NDArray[np.uint8], range]:
    """Voxels [size, size, slices] as in a NIfTI file, and the slices that show the finding.

    `share` of the slices of volume number `index` do: at least one, and all are neighbours. All
    slices have one anatomy and noise of their own.
    """
    normal = phantom(name).normal
    _check(volumes=(slices, 3, 512), share=(share, 1e-6, 1))
    entropy = [zlib.crc32(f"{name} volume".encode()), label, seed, index, stream]
    position, scene, *textures = np.random.SeedSequence(entropy).spawn(2 + slices)
    inside = slices - 2 * _EMPTY
    count = max(1, round(share * inside)) if label != normal else 0
    first = _EMPTY + int(np.random.default_rng(position).integers(inside - count + 1))
    affected = range(first, first + count)
    voxels = np.zeros((size, size, slices), np.uint8)
    for number in range(_EMPTY, slices - _EMPTY):
        drawn = draw(name, label if number in affected else normal, scene, textures[number], size)
        gray = drawn.image.mean(axis=2).round().astype(np.uint8)
        voxels[:, :, number] = gray.T[::-1, ::-1]  # what the reader turns upright again
    return voxels, affected


@contextmanager
def _new_dataset(
    what: str, place: str | Path, splits: Mapping[str, int], classes: Sequence[str]
) -> Iterator[tuple[Path, Iterator[tuple[str, int, int, str]]]]:
    """A folder that becomes `place`, and split, label, index and path of each image to write to it.

    `splits` gives the number of images per class in each split; the paths have no suffix.
    """
    out, counts = Path(place), list(splits.values()) or [0]
    if not set(splits) <= set(SPLITS) or min(counts) < 0 or not 0 < max(counts) <= MOST_IMAGES:
        raise ConfigError(
            f"splits must give {', '.join(SPLITS)} 1 to {MOST_IMAGES:,} images of a class, or 0, "
            f"but are {dict(splits)}.",
            argument="splits",
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise DataError(f"{out} exists and is not an empty folder.", argument="out")
    with folder_atomically(out) as aside, progress_bar(what, sum(counts) * len(classes)) as bar:

        def images() -> Iterator[tuple[str, int, int, str]]:
            for split in filter(splits.get, splits):
                for label, name in enumerate(classes):
                    folder = Path(split, name.replace(" ", "_"))
                    (aside / folder).mkdir(parents=True)
                    for index in range(splits[split]):
                        yield split, label, index, (folder / f"{index:04d}").as_posix()
                        bar.advance()

        yield aside, images()


def write_folder(
    name: str, out: str | Path, *, splits: Mapping[str, int], seed: int = 0, size: int = 160
) -> Path:
    """Write image folders `out/{train,val,test}/class_name/0000.png`.

    `splits` gives the number of images per class in each split.
    """
    classes = phantom(name).class_names
    with _new_dataset(f"phantoms {name}", out, splits, classes) as (aside, images):
        for split, label, index, path in images:
            stream = SPLITS.index(split)
            drawn = render(name, label, seed=seed, index=index, size=size, stream=stream)
            Image.fromarray(drawn.image).save(aside / f"{path}.png", compress_level=1)
    return Path(out)


def write_volumes(
    name: str, out: Path, *, splits: Mapping[str, int], seed: int = 0, **options: int | float
) -> Path:
    """Write `out/{train,val,test}/class_name/0000.nii.gz`, and a table of what each slice shows.

    The options `slices`, `share` and `size` are those of `render_volume`.
    """
    try:
        import nibabel
    except ImportError as error:
        raise DataError(f"Volumes cannot be written. {INSTALL}") from error
    dataset = phantom(name)
    names = dataset.class_names
    rows = [["path", "label", "split", "exam"]]
    with _new_dataset(f"volumes {name}", out, splits, names) as (aside, volumes):
        for split, label, index, path in volumes:
            where = {"seed": seed, "index": index, "stream": SPLITS.index(split)}
            voxels, affected = render_volume(name, label, **where, **options)  # type: ignore[arg-type]
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), aside / f"{path}.nii.gz")
            exam = f"{split} {names[label]} {index:04d}"
            for number in range(_EMPTY, voxels.shape[2] - _EMPTY):
                shown = names[label if number in affected else dataset.normal]
                rows.append([f"{path}.nii.gz#axis=2,index={number}", shown, split, exam])
        (aside / "slices.csv").write_text(csv_text(rows), encoding="utf-8")
    return out


def write_films(
    out: Path, *, splits: Mapping[str, int], seed: int = 0, size: int = 160, missing: float = 0.0
) -> Path:
    """Write `out/{train,val,test}/0000.png` and `out/films.csv`; returns the table's path.

    Findings are drawn independently of each other. `missing` is the share of answers that the
    table leaves empty, never in test.
    """
    _check(seed=(seed, 0, 2**32 - 1), missing=(missing, 0, 0.999))
    rows = [["path", *FINDINGS, "split"]]
    with _new_dataset(f"phantoms {CHEST_FINDINGS}", out, splits, ("",)) as (aside, images):
        for split, _, index, path in images:
            kind, part = zlib.crc32(CHEST_FINDINGS.encode()), zlib.crc32(split.encode())
            scene, texture, choice = np.random.SeedSequence([kind, seed, index, part]).spawn(3)
            draws = new_rng(choice).random((2, len(FINDINGS)))
            present = draws[0] < _PREVALENCES
            known = draws[1] >= (0 if split == "test" else missing)
            labels = tuple((np.flatnonzero(present) + 1).tolist()) or (0,)
            image, _, _ = _families.chest(labels, Canvas(new_rng(scene), new_rng(texture), size))
            Image.fromarray(to_levels(image)).save(aside / f"{path}.png", compress_level=1)
            cells = np.where(known, np.where(present, "1", "0"), "")
            rows.append([f"{path}.png", *cells.tolist(), split])
        (aside / TABLE).write_text(csv_text(rows), encoding="utf-8")
    return out / TABLE
