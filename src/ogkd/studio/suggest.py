"""Which images of a folder to label next, without a page: for other annotation tools."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from ogkd.backbones import Backbone, load_backbone
from ogkd.datasets.manifest import Manifest
from ogkd.datasets.tables import read_table
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import unreadable, unreadable_error
from ogkd.fitting.choose import AUTO, choose_backbone
from ogkd.fitting.prepare import text_side
from ogkd.images import ImageRef, find_images
from ogkd.model.temperature import softmax
from ogkd.prompts.bank import read_bank
from ogkd.studio.learn import fit_head, logits_of
from ogkd.studio.queue import OPEN, next_images


def label_next(
    folder: str | Path,
    *,
    labels: str | Path | Manifest | None = None,
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
            manifest. Without it, the first images are those that represent the folder best.
        n: how many images.
        backbone: a known name, a folder, a loaded backbone or "auto", as for `ogkd.fit`.
        prompts: texts of the classes: a JSON file or the name of a shipped bank.
        device: where to compute.
        say: receives short notes for the user.
    """
    images = find_images([folder])
    known = labels if isinstance(labels, Manifest) else None
    if labels is not None and known is None:
        known = read_table(Path(str(labels)))
    failed = unreadable(images)
    if len(failed) == len(images):
        raise unreadable_error(failed, "Give a folder with images that can be read.")
    bad = {file.image for file in failed}
    if bad and say is not None:
        say(f"Note: {len(bad)} file(s) cannot be read and are left out.")
    rows = {_place(image): image for image in images if image not in bad}
    marked = {} if known is None else {_place(item.image): item for item in known.items}
    if marked and not marked.keys() & rows.keys():
        raise DataError(
            f"None of the {len(marked)} labelled images is in {folder}. The paths of a table count "
            "from its own folder.",
            argument="labels",
        )
    places = list(rows)
    given = np.array([marked[p].label if p in marked else OPEN for p in places], np.int64)
    groups = [marked[p].group if p in marked else None for p in places]
    if not isinstance(backbone, Backbone):
        name = backbone
        if name == AUTO:
            name = choose_backbone(list(rows.values())[:24], say=say)
        backbone = load_backbone(name, device=device)
    deep = bool(backbone.deep_parts)
    features = FeatureStore(backbone).get(list(rows.values()), deep=deep).rows[:, 0].numpy()
    p = None
    names = known.class_names if known is not None else ()
    if known is not None:
        bank = None if prompts is None else read_bank(Path(prompts))
        text = text_side(backbone, names, bank, ())
        head = fit_head(features[given >= 0], given[given >= 0], text)
        p = softmax(logits_of(head, features), 1.0)
    chosen = next_images(
        features[:, : backbone.embed_dim],
        given,
        classes=max(2, len(names)),
        probabilities=p,
        groups=groups if any(groups) else None,
        n=n,
    )
    return [rows[places[row]] for row in chosen]


def _place(image: ImageRef) -> tuple[Path, str]:
    return image.file.resolve(), image.part
