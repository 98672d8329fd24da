"""A drawn few-shot subset as a file: which images, with which labels, drawn how, from what."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ogkd.datasets.manifest import Item, Manifest
from ogkd.datasets.splits import Sampling, few_shot, flip_labels, keep_classes
from ogkd.errors import DataError
from ogkd.files import write_text

__all__ = [
    "SCHEMA",
    "Subset",
    "SubsetItem",
    "draw_subset",
    "manifest_digest",
    "read_subset",
    "subset_manifest",
    "write_subset",
]

SCHEMA = 1


class SubsetItem(BaseModel):
    """One drawn image: its path below the dataset's folder, its label now and before flips."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(min_length=1)
    label: int = Field(ge=0)
    original_label: int = Field(ge=0)


class Subset(BaseModel):
    """Labels count through `class_names`, the dataset's own; `classes` are the labels in use."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = SCHEMA
    dataset_sha256: str = Field(pattern="^[0-9a-f]{64}$")
    class_names: tuple[str, ...]
    classes: tuple[int, ...] = Field(min_length=1)
    shots: int | None = Field(ge=1)
    seed: int
    sampling: Sampling
    flips: int = Field(ge=0)
    items: tuple[SubsetItem, ...] = Field(min_length=1)


def manifest_digest(manifest: Manifest) -> str:
    """SHA-256 of the table, not of the pixels: class names, paths, labels, splits and groups.

    Paths count from the folder that holds all of the images, so that a dataset may be moved;
    the order of the items does not matter.
    """
    names = _relative_paths(manifest)
    rows = sorted(
        [names[item], item.label, item.split, item.group or ""] for item in manifest.items
    )
    text = json.dumps([manifest.class_names, rows], ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def draw_subset(
    manifest: Manifest,
    *,
    shots: int | None,
    seed: int,
    sampling: Sampling = "released",
    classes: Sequence[int] | None = None,
    flips: int = 0,
) -> Subset:
    """Draw from the training part: shots from all classes, then `classes` only, then flips.

    This is the released order; base-to-novel gives the base labels as `classes`.
    """
    labels = tuple(range(len(manifest.class_names))) if classes is None else tuple(sorted(classes))
    keep_classes(manifest, labels)  # refuses labels that are not there
    drawn = few_shot(manifest.part("train"), shots, seed, sampling=sampling)
    kept = [item for item in drawn if item.label in labels]
    if not kept:
        raise DataError("There is no training image of the classes to draw from.")
    flipped = flip_labels(kept, flips, seed, allowed=labels)
    names = _relative_paths(manifest)
    _refuse_unspeakable([names[item] for item in kept])
    return Subset(
        dataset_sha256=manifest_digest(manifest),
        class_names=manifest.class_names,
        classes=labels,
        shots=shots,
        seed=seed,
        sampling=sampling,
        flips=flips,
        items=tuple(
            SubsetItem(path=names[before], label=after.label, original_label=before.label)
            for before, after in zip(kept, flipped, strict=True)
        ),
    )


def subset_manifest(subset: Subset, manifest: Manifest) -> Manifest:
    """The dataset to fit and judge with: the subset as "train", the other splits as they are.

    Classes that are not in use are gone, and the rest numbered from 0.
    """
    _refuse_foreign(subset, manifest, "The subset")
    by_name = {name: item for item, name in _relative_paths(manifest).items()}
    train = [
        replace(by_name[drawn.path], label=drawn.label, split="train") for drawn in subset.items
    ]
    rest = [item for item in manifest.items if item.split not in ("", "train")]
    return keep_classes(Manifest((*train, *rest), manifest.class_names), subset.classes)


def write_subset(path: str | Path, subset: Subset) -> None:
    """Write the subset as JSON in one step."""
    write_text(Path(path), subset.model_dump_json(indent=1) + "\n")


def read_subset(path: str | Path, manifest: Manifest) -> Subset:
    """Read a subset and check that it was drawn from this dataset."""
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(found, int) and found > SCHEMA:
            raise DataError(
                f"{path} was written by a newer ogkd (schema {found}, this one reads up to "
                f"{SCHEMA}). Upgrade with: pip install --upgrade ogkd."
            )
        subset = Subset.model_validate(content)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"]) or "(all)"
        raise DataError(
            f"{path} is not a subset: field '{place}' is wrong ({problem['msg']}). Draw it again."
        ) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON ({error}). Draw the subset again.") from error
    _refuse_foreign(subset, manifest, str(path))
    return subset


def _refuse_foreign(subset: Subset, manifest: Manifest, what: str) -> None:
    if subset.class_names != manifest.class_names:
        raise DataError(
            f"{what} belongs to another dataset: its classes are {', '.join(subset.class_names)}, "
            f"but here they are {', '.join(manifest.class_names)}."
        )
    if subset.dataset_sha256 != manifest_digest(manifest):
        raise DataError(
            f"{what} belongs to another dataset, or files were added, removed or renamed since. "
            "Give the dataset it was drawn from, or draw again."
        )
    labels = {(name, item.label) for item, name in _relative_paths(manifest).items()}
    for item in subset.items:
        if (item.path, item.original_label) not in labels or item.label not in subset.classes:
            raise DataError(
                f"{what} was changed by hand: {item.path} with label {item.label} (before flips "
                f"{item.original_label}) does not fit the dataset. Draw it again."
            )


def _refuse_unspeakable(names: Sequence[str]) -> None:
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"The file name {name!r} is not valid text and cannot be stored. Rename the file."
            ) from error


def _relative_paths(manifest: Manifest) -> dict[Item, str]:
    """Each item's path from the folder that holds all of them, with forward slashes."""
    whole = [Path(os.path.normpath(item.path.absolute())) for item in manifest.items]
    try:
        root = os.path.commonpath([path.parent for path in whole])
    except ValueError as error:  # none, or several drives
        raise DataError("The dataset has no images, or they are not on one drive.") from error
    return {
        item: path.relative_to(root).as_posix()
        for item, path in zip(manifest.items, whole, strict=True)
    }
