"""Evidence maps: which parts of an image speak for a class. `drawing` draws them.

The fitted head is applied to the patch features, which live in the same space as the global one.
The evidence of a patch for class c is its logit of c minus the mean logit of the other classes.
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
from torch import Tensor

from ogkd.backbones.token_parts import split_products
from ogkd.core.losses import patches_kept, select_patches
from ogkd.datasets.case import Dataset
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import whole_image
from ogkd.images import ImageRef, Images
from ogkd.images.transforms import normalise
from ogkd.model.classifier import Classifier, cases_of
from ogkd.model.decide import Decision

_RATIO = 0.1  # share of patches that count as most attentive if the method names none


@dataclass(frozen=True)
class Evidence:
    """What one image shows for one class; a grid position is (row, column) from the top left."""

    ref: ImageRef | None
    image: Image.Image = field(repr=False)  # what the model saw: resized and cropped to a square
    label: int  # the class that the evidence is for
    grid: NDArray[np.float32] = field(repr=False)  # [h, w], in logits; above 0 is for the class
    top: list[tuple[int, int]]  # the most attentive patches, the most attentive first
    name: str = ""  # of the class
    probability: float | None = None  # of the class
    caution: str = ""  # why the decision should not be relied on, if there is a reason
    # With it, the grid adds up to the class's logit above the mean of the others; None: it does not
    rest: float | None = None

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
    the most probable one). `top` is how many patches are named as most attentive (default: the
    model's own share of patches in training, or a tenth). They are the nearest to the class text
    if the head has one (eq. 8-9 of the paper), else those with the most evidence. An unreadable
    file is a DataError.
    """
    wanted: Iterable[int | None] = repeat(None)
    if labels is not None:
        cases, wanted = list(cases_of(images, classifier.card.grouping)), labels
        if len(labels) != len(cases):
            raise ConfigError(f"There are {len(cases)} images, but {len(labels)} labels for them.")
    decisions = classifier.decide(images, patches=True, batch_size=batch_size)
    for decision, label in zip(decisions, wanted, strict=False):
        yield evidence_of(classifier, decision, label=label, top=top)


def evidence_of(
    classifier: Classifier, decision: Decision, *, label: int | None = None, top: int | None = None
) -> Evidence:
    """The evidence map of a decision made with patches: nothing is encoded again."""
    if decision.error is not None:
        raise DataError(decision.error)
    backbone = classifier.backbone
    if decision.patches is None:
        raise ConfigError(f"The backbone '{backbone.name}' gave no patches to find evidence in.")
    rows, columns = backbone.patch_grid
    if label is None and decision.probabilities is not None:
        label = classifier.task.evidence_label(decision.probabilities)
    chosen = _known(label, classifier)
    kept = _how_many(classifier, top, rows * columns)
    grid, best = _look(classifier, decision.patches, chosen, kept)
    crop = decision.crop
    if crop is None:  # encoded on another machine
        if decision.image is None:
            raise ConfigError("The decision does not say which image it is about.")
        crop = whole_image(decision.image, backbone.preprocessing)
    return Evidence(
        ref=decision.image,
        image=Image.fromarray(crop),
        label=chosen,
        grid=grid.view(rows, columns).float().numpy(),
        top=[divmod(patch, columns) for patch in best.tolist()],
        name=classifier.class_names[chosen],
        probability=None if decision.probabilities is None else decision.probabilities[chosen],
        caution=" ".join(decision.reasons),
    )


def parts_of(classifier: Classifier, decision: Decision) -> Evidence | None:
    """What each place adds to the lead of the predicted class, for or against it.

    The lead is the logit of the class minus the mean of the others: the sum of the grid and of a
    rest that belongs to no place (ogkd.backbones.token_parts). The image is encoded once more. None
    if the head is not linear or the tower cannot be split: then `evidence_of` has a map.
    """
    W, crop, backbone = classifier.head.weights, decision.crop, classifier.backbone
    if W is None or crop is None or decision.answer is None:
        return None
    task = classifier.task
    label = task.evidence_label(decision.answer.probabilities)
    pixels = normalise([crop], backbone.preprocessing).to(backbone.device)
    w = task.lead(W.mT, label)
    parts = split_products(backbone, pixels, w.to(backbone.device).unsqueeze(0))
    if parts is None:
        return None
    rows, columns = backbone.patch_grid
    grid = parts.patches[0, :, 0].cpu().view(rows, columns).numpy()
    kept = _how_many(classifier, None, rows * columns)
    best = np.argsort(-smoothed(grid), axis=None, kind="stable")[:kept]
    zero = torch.zeros(1, W.shape[1])
    bias = classifier.head.logits(zero)[0]  # of a feature that says nothing
    constant = float(task.lead(bias, label))
    return Evidence(
        ref=decision.image,
        image=Image.fromarray(crop),
        label=label,
        grid=grid,
        top=[divmod(int(patch), columns) for patch in best],
        name=classifier.class_names[label],
        probability=decision.answer.probabilities[label],
        caution=" ".join(decision.reasons),
        rest=float(parts.rest[0, 0]) + constant,
    )


def smoothed(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """A map of single patches, for the eye: each is averaged with its neighbours."""
    from scipy.ndimage import gaussian_filter  # here: only pictures need it

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


def _known(label: int | None, classifier: Classifier) -> int:
    if label is None or not 0 <= label < len(classifier.class_names):
        raise ConfigError(
            f"There is no class number {label}: the model has {len(classifier.class_names)}, "
            "counted from 0."
        )
    return int(label)


def _how_many(classifier: Classifier, top: int | None, patches: int) -> int:
    if top is None:
        ratio = classifier.card.config.get("top_ratio", _RATIO)
        return patches_kept(patches, float(ratio))
    if not 0 <= top <= patches:
        raise ConfigError(f"`top` must lie between 0 and the {patches} patches, but is {top}.")
    return top


@torch.no_grad()
def _look(classifier: Classifier, patches: Tensor, label: int, kept: int) -> tuple[Tensor, Tensor]:
    """Evidence [P] of patches [P, d], and the positions [kept] of the most attentive patches."""
    head = classifier.head
    grid: Tensor = classifier.task.lead(head.of_patches(patches), label)
    T = head.class_texts
    if T is not None and head.is_text_only:
        labels = torch.tensor([label])
        best = select_patches(patches.unsqueeze(0), T, labels, kept, absolute=False)
        return grid, best[0]
    return grid, grid.topk(kept).indices
