"""Evidence maps: which parts of an image speak for a class and which against; `drawing` draws.

A linear head's lead of a class (`Task.lead`: its logit above the mean of the others) is a sum over
the tokens of the last layers of the tower, so each place of the image has its part in it
(`ogkd.backbones.token_parts`). Similarity of patches to the class was dropped: it was no better
than random places (docs/evidence/evidence-maps.md).
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ogkd.backbones.token_parts import split_products
from ogkd.core.losses import patches_kept
from ogkd.data.case import Dataset
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import whole_image
from ogkd.images import ImageRef, Images
from ogkd.images.transforms import normalise
from ogkd.model.classifier import Classifier, cases_of
from ogkd.model.decide import Decision

_RATIO = 0.1  # share of places that are outlined if the method names none


@dataclass(frozen=True)
class Evidence:
    """What one image shows for one class; a grid position is (row, column) from the top left.

    The grid and the rest, which belongs to no place, add up to the lead of the class.
    """

    ref: ImageRef | None
    image: Image.Image = field(repr=False)  # what the model saw: resized and cropped to a square
    label: int  # the class that the evidence is for
    grid: NDArray[np.float32] = field(repr=False)  # [h, w], in logits; above 0 is for the class
    top: list[tuple[int, int]]  # the places that speak most for the class, the first most
    rest: float
    name: str = ""  # of the class
    probability: float | None = None  # of the class
    caution: str = ""  # why the decision should not be relied on, if there is a reason

    def _repr_png_(self) -> bytes:
        from ogkd.model.drawing import draw  # which imports this module

        memory = io.BytesIO()
        draw(self).save(memory, "PNG")
        return memory.getvalue()


def evidence(
    classifier: Classifier,
    images: Images | Dataset,
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
    batch_size: int = 8,
) -> Iterator[Evidence]:
    """The evidence maps of images, one after the other, in order.

    `labels` are the classes to find evidence for (default: the predicted ones; of several findings,
    the most probable one). `top` is how many places are named (default: the model's share of
    patches in training, or a tenth). An unreadable file is a DataError, a model without maps a
    ConfigError.
    """
    wanted: Iterable[int | None] = repeat(None)
    if labels is not None:
        cases, wanted = list(cases_of(images, classifier.card.grouping)), labels
        if len(labels) != len(cases):
            raise ConfigError(
                f"There are {len(cases)} images, but {len(labels)} labels for them.",
                argument="labels",
            )
    decisions = classifier.decide(images, crops=True, batch_size=batch_size)
    for decision, label in zip(decisions, wanted, strict=False):
        if decision.error is not None:
            raise DataError(decision.error)
        shown = evidence_of(classifier, decision, label=label, top=top)
        if shown is None:
            raise ConfigError(
                f"There are no evidence maps for {classifier.card.method} on "
                f"'{classifier.backbone.name}': they need a linear head and a tower whose last "
                "layers can be split."
            )
        yield shown


def evidence_of(
    classifier: Classifier, decision: Decision, *, label: int | None = None, top: int | None = None
) -> Evidence | None:
    """The evidence map of a decision, of the image that decided it.

    The image is encoded once more. None if the head is not linear or the tower cannot be split.
    """
    W, backbone, task = classifier.head.weights, classifier.backbone, classifier.task
    if decision.answer is None:
        return None
    chosen = task.evidence_label(decision.answer.probabilities) if label is None else label
    if not 0 <= chosen < len(task.names):
        raise ConfigError(
            f"There is no class number {chosen}: the model has {len(task.names)}, counted from 0.",
            argument="labels",
        )
    rows, columns = backbone.patch_grid
    kept = _how_many(classifier, top, rows * columns)
    crop = decision.crop
    if crop is None and decision.image is not None:  # encoded elsewhere, or one of many images
        crop = whole_image(decision.image, backbone.preprocessing)
    if W is None or crop is None:
        return None
    pixels = normalise([crop], backbone.preprocessing).to(backbone.device)
    w = task.lead(W.mT, chosen)
    parts = split_products(backbone, pixels, w.to(backbone.device).unsqueeze(0))
    if parts is None:
        return None
    grid = parts.patches[0, :, 0].cpu().view(rows, columns).numpy()
    best = np.argsort(-smoothed(grid), axis=None, kind="stable")[:kept]
    bias = classifier.head.logits(torch.zeros(1, W.shape[1]))[0]  # of a feature that says nothing
    return Evidence(
        ref=decision.image,
        image=Image.fromarray(crop),
        label=chosen,
        grid=grid,
        top=[divmod(int(patch), columns) for patch in best],
        rest=float(parts.rest[0, 0]) + float(task.lead(bias, chosen)),
        name=task.names[chosen],
        probability=decision.answer.probabilities[chosen],
        caution=" ".join(decision.reasons),
    )


def smoothed(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """A map of single patches, for the eye: each is averaged with its neighbours."""
    from scipy.ndimage import gaussian_filter  # here: only drawings need it

    return np.asarray(gaussian_filter(grid, 1.0, mode="nearest"))


def explain(
    classifier: Classifier,
    images: Images | Dataset,
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
) -> list[Evidence]:
    """Return the evidence map of each image; `draw` makes a picture of one.

    Takes what `Classifier.predict` takes; for very many images, `evidence` yields the maps one at
    a time. The other arguments are those of `evidence`.
    """
    return list(evidence(classifier, images, labels=labels, top=top))


def _how_many(classifier: Classifier, top: int | None, patches: int) -> int:
    if top is None:
        ratio = classifier.card.config.get("top_ratio", _RATIO)
        return patches_kept(patches, float(ratio))
    if not 0 <= top <= patches:
        raise ConfigError(
            f"top must lie between 0 and the {patches} patches, but is {top}.", argument="top"
        )
    return top
