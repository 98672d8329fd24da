"""Which images of a folder to label next, without a page: for other annotation tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones import Backbone, load_backbone
from ogkd.data.case import Case, Dataset
from ogkd.data.tables import read_table
from ogkd.data.tasks import require_classes
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import unreadable, unreadable_error
from ogkd.fitting.choose import AUTO, choose_backbone
from ogkd.fitting.prepare import text_sides
from ogkd.images import ImageRef, find_images
from ogkd.prompts.bank import read_bank
from ogkd.serve.studio.fit import fit_head, logits_of
from ogkd.serve.studio.queue import UNLABELLED, next_images


def label_next(
    folder: str | Path,
    *,
    labels: str | Path | Dataset | None = None,
    n: int = 20,
    backbone: str | Path | Backbone = AUTO,
    prompts: str | Path | None = None,
    device: str = "auto",
    say: Callable[[str], None] | None = None,
) -> list[ImageRef]:
    """The `n` images of a folder whose labels help most, the most useful first.

    Args:
        folder: images at any depth.
        labels: the images labelled so far: a table of path, label and perhaps patient, or a
            dataset. Without it, the first images are those that represent the folder best.
        n: how many images.
        backbone: a known name, a folder, a loaded backbone or "auto", as for `ogkd.fit`.
        prompts: texts of the classes: a JSON file or the name of a shipped bank.
        device: where to compute.
        say: receives short notes for the user.
    """
    images = _readable(find_images([folder]), say)
    table = labels if labels is None or isinstance(labels, Dataset) else read_table(Path(labels))
    y, groups = _labels_of(images, table)
    if table is not None and (y < 0).all():
        raise DataError(
            f"None of the {len(table.cases)} labelled images is in {folder}. The paths of a table "
            "count from its own folder.",
            argument="labels",
        )
    if not isinstance(backbone, Backbone):
        name = choose_backbone(images[:24], say=say) if backbone == AUTO else backbone
        backbone = load_backbone(name, device=device)
    features = FeatureStore(backbone).get(images, deep=bool(backbone.deep_parts)).rows[:, 0].numpy()
    classes, probabilities = 2, None
    if table is not None:
        classes = max(2, len(table.names))
        bank = None if prompts is None else read_bank(Path(prompts))
        [text] = text_sides(backbone, table.task, bank)
        head = fit_head(features[y >= 0], y[y >= 0], text)
        probabilities = table.task.probabilities(logits_of(head, features))
    chosen = next_images(
        features[:, : backbone.embed_dim],
        y,
        classes=classes,
        probabilities=probabilities,
        groups=groups if any(groups) else None,
        n=n,
    )
    return [images[row] for row in chosen]


def _labels_of(
    images: Sequence[ImageRef], table: Dataset | None
) -> tuple[NDArray[np.int64], list[str | None]]:
    """The label of each image, or UNLABELLED, and its patient."""
    cases: dict[tuple[Path, str], Case] = {}
    if table is not None:
        require_classes(table.task, "Choosing images to label")
        cases = {_identity(case.image): case for case in table.cases}
    matches = [cases.get(_identity(image)) for image in images]
    labels = [UNLABELLED if case is None else case.target for case in matches]
    return np.array(labels, np.int64), [None if case is None else case.group for case in matches]


def _readable(images: Sequence[ImageRef], say: Callable[[str], None] | None) -> list[ImageRef]:
    failed = unreadable(images)
    if len(failed) == len(images):
        raise unreadable_error(failed, "Give a folder with images that can be read.")
    if failed and say is not None:
        say(f"Note: {len(failed)} file(s) cannot be read and are left out.")
    bad = {file.image for file in failed}
    return [image for image in images if image not in bad]


def _identity(image: ImageRef) -> tuple[Path, str]:
    return image.file.resolve(), image.part
