"""Phantom volumes: a stack of slices of one anatomy, with the finding in a few of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.data.phantoms import SPLITS, PhantomDataset, draw, new_dataset, phantom
from ogkd.data.tables import csv_text
from ogkd.errors import ConfigError, DataError
from ogkd.files import write_text
from ogkd.images.ref import INSTALL

SLICES_TABLE = "slices.csv"
MOST_SLICES = 512
_EMPTY = 1  # slices at either end in which there is nothing


@dataclass(frozen=True)
class PhantomVolume:
    """One volume and the slices that show its finding."""

    voxels: NDArray[np.uint8]  # [size, size, slices], as a NIfTI file has them
    affected: range


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
) -> PhantomVolume:
    """Draw volume number `index` of class `label`: `share` of its slices show the finding.

    All slices have one anatomy and noise of their own; at least one shows the finding, and those
    that do are neighbours.
    """
    dataset = _with_normal(name)
    if not 3 <= slices <= MOST_SLICES:
        raise ConfigError(
            f"A volume must have 3 to {MOST_SLICES} slices, but got {slices}.", argument="volumes"
        )
    if not 0 < share <= 1:
        raise ConfigError(
            f"share must be above 0 and at most 1, but is {share:g}.", argument="share"
        )
    entropy = [zlib.crc32(f"{name} volume".encode()), label, seed, index, stream]
    position, scene, *textures = np.random.SeedSequence(entropy).spawn(2 + slices)
    inside = slices - 2 * _EMPTY
    count = max(1, round(share * inside)) if label != dataset.normal else 0
    first = _EMPTY + int(np.random.default_rng(position).integers(inside - count + 1))
    affected = range(first, first + count)
    voxels = np.zeros((size, size, slices), np.uint8)
    for number in range(_EMPTY, slices - _EMPTY):
        shown = label if number in affected else dataset.normal
        drawn = draw(name, int(shown or 0), scene, textures[number], size)
        gray = drawn.image.mean(axis=2).round().astype(np.uint8)
        # What the reader turns upright again (images/nifti.py).
        voxels[:, :, number] = gray.T[::-1, ::-1]
    return PhantomVolume(voxels, affected)


def write_volumes(
    name: str,
    out: Path,
    *,
    splits: Mapping[str, int],
    slices: int = 32,
    share: float = 0.1,
    seed: int = 0,
    size: int = 160,
) -> Path:
    """Write `out/{train,val,test}/class_name/0000.nii.gz`, and a table of what each slice shows."""
    try:
        import nibabel
    except ImportError as error:
        raise DataError(f"Volumes cannot be written. {INSTALL}") from error
    dataset = _with_normal(name)
    names, normal = dataset.class_names, dataset.normal or 0
    rows = [["path", "label", "split", "exam"]]
    render = partial(render_volume, name, seed=seed, slices=slices, share=share, size=size)
    with new_dataset(f"volumes {name}", out, splits, names) as (aside, volumes):
        for split, label, index, path in volumes:
            drawn = render(label, index=index, stream=SPLITS.index(split))
            image = nibabel.Nifti1Image(drawn.voxels, np.eye(4))
            nibabel.save(image, aside / f"{path}.nii.gz")
            for number in range(_EMPTY, slices - _EMPTY):
                address = f"{path.as_posix()}.nii.gz#axis=2,index={number}"
                shown = names[label if number in drawn.affected else normal]
                rows.append([address, shown, split, f"{split} {names[label]} {path.name}"])
        write_text(aside / SLICES_TABLE, csv_text(rows))
    return out


def _with_normal(name: str) -> PhantomDataset:
    dataset = phantom(name)
    if dataset.normal is None:
        raise ConfigError(f"{name} has no normal class, which most slices show.", argument="name")
    return dataset
