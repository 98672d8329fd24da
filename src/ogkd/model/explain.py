"""Evidence maps: which parts of an image speak for a class and which against; `drawing` draws.

`check_evidence` tries on the image itself whether a map marks what the answer rests on.

A linear head's lead of a class (`Task.lead`: its logit above the mean of the others) is a sum over
the tokens of the last layers of the tower, so each place of the image has its part in it
(`ogkd.backbones.token_parts`). Similarity of patches to the class was dropped: it was no better
than random places (docs/evidence/trust.md).
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from ogkd.backbones.token_parts import split_products
from ogkd.data.case import Dataset
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import encode_crops, whole_image
from ogkd.images import ImageRef, Images
from ogkd.images.transforms import normalise
from ogkd.model.classifier import Classifier, cases_of
from ogkd.model.decide import Decision

SHARE = 0.2  # of the places outside the empty background that a check blurs
_DRAWS = 8  # of random places
_BLUR = 0.08  # of the side: the width of the Gaussian


@dataclass(frozen=True)
class EvidenceCheck:
    """Shares of the lead that blurring takes away; above 1 the class no longer leads."""

    marked: float  # the places that the map marks
    random: float  # as many others, on average

    @property
    def holds(self) -> bool:
        return self.marked > self.random


@dataclass(frozen=True)
class Evidence:
    """What one image shows for one class; a grid position is (row, column) from the top left.

    The grid and the rest, which belongs to no place, add up to the lead of the class.
    """

    ref: ImageRef | None
    image: Image.Image = field(repr=False)  # what the model saw: resized and cropped to a square
    label: int  # the class that the evidence is for
    grid: NDArray[np.float32] = field(repr=False)  # [h, w], in logits; above 0 is for the class
    rest: float
    name: str = ""  # of the class
    probability: float | None = None  # of the class
    caution: str = ""  # why the decision should not be relied on, if there is a reason
    check: EvidenceCheck | None = None  # None: not tried, or the class has no lead to lose

    @property
    def shown(self) -> bool:
        """Whether the check found that the answer rests on what the map marks."""
        return self.check is not None and self.check.holds

    def _repr_png_(self) -> bytes:
        from ogkd.model.drawing import draw  # which imports this module

        memory = io.BytesIO()
        draw(self).save(memory, "PNG")
        return memory.getvalue()


def explain(
    classifier: Classifier, images: Images | Dataset, *, labels: Sequence[int] | None = None
) -> list[Evidence]:
    """The evidence map of each image, in order; `draw` makes a picture of one.

    Takes what `Classifier.predict` takes. `labels` are the classes to find evidence for (default:
    the predicted ones; of several findings, the most probable one). An unreadable file is a
    DataError, a model without maps a ConfigError.
    """
    cases = list(cases_of(images, classifier.card.grouping))
    if labels is not None and len(labels) != len(cases):
        raise ConfigError(
            f"There are {len(cases)} images, but {len(labels)} labels for them.", argument="labels"
        )
    maps = []
    wanted: Sequence[int | None] = [None] * len(cases) if labels is None else labels
    decisions = classifier.decide(cases, crops=True, batch_size=8)
    for decision, label in zip(decisions, wanted, strict=True):
        if decision.error is not None:
            raise DataError(decision.error)
        shown = evidence_map(classifier, decision, label=label)
        if shown is None:
            raise ConfigError(
                f"There are no evidence maps for {classifier.card.method} on "
                f"'{classifier.backbone.name}': they need a linear head and a tower whose last "
                "layers can be split."
            )
        maps.append(shown)
    return maps


def evidence_of(
    classifier: Classifier, decision: Decision, *, label: int | None = None
) -> Evidence | None:
    """The evidence map to show with a decision, and what its check says: `Evidence.shown`.

    None for an image that the model does not know, of which a map would only seem to explain.
    """
    if decision.unfamiliar or decision.out_of_domain:
        return None
    evidence = evidence_map(classifier, decision, label=label)
    if evidence is None:
        return None
    return replace(evidence, check=check_evidence(classifier, evidence))


def evidence_map(
    classifier: Classifier, decision: Decision, *, label: int | None = None
) -> Evidence | None:
    """The evidence map of a decision, of the image that decided it, without its check.

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
    bias = classifier.head.logits(torch.zeros(1, W.shape[1]))[0]  # of a feature that says nothing
    return Evidence(
        ref=decision.image,
        image=Image.fromarray(crop),
        label=chosen,
        grid=grid,
        rest=float(parts.rest[0, 0]) + float(task.lead(bias, chosen)),
        name=task.names[chosen],
        probability=decision.answer.probabilities[chosen],
        caution=" ".join(decision.reasons),
    )


def smoothed(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """A map of single patches, for the eye: each is averaged with its neighbours."""
    from scipy.ndimage import gaussian_filter  # here: only drawings need it

    return np.asarray(gaussian_filter(grid, 1.0, mode="nearest"))


def check_evidence(classifier: Classifier, evidence: Evidence) -> EvidenceCheck | None:
    """How much of the lead is lost where the places that count most, and others, are blurred.

    None if there is nothing to try: no lead, or no place outside the empty background.
    """
    from ogkd.model.drawing import background_patches  # which imports this module

    crop = np.asarray(evidence.image.convert("RGB"))
    visible = np.flatnonzero(~background_patches(evidence))
    count = round(SHARE * len(visible))
    if not count:
        return None
    grid = smoothed(evidence.grid)
    order = visible[np.argsort(-grid.flat[visible], kind="stable")]
    rng = np.random.default_rng(0)
    tried = [order[:count], *(rng.permutation(visible)[:count] for _ in range(_DRAWS))]
    soft = _blurred(crop)
    crops = [crop, *(_hidden(crop, soft, patches, grid.shape) for patches in tried)]
    backbone = classifier.backbone
    rows = encode_crops(backbone, crops, patches=False, deep=classifier.deep).rows
    logits = classifier.logits(rows.detach().cpu().float().numpy())
    lead = classifier.task.lead(logits, evidence.label)
    if lead[0] <= 1e-3:
        return None
    lost = 1 - lead[1:] / lead[0]
    return EvidenceCheck(float(lost[0]), float(lost[1:].mean()))


def _blurred(crop: NDArray[np.uint8]) -> NDArray[np.uint8]:
    from scipy.ndimage import gaussian_filter  # here: only pictures need it

    width = _BLUR * len(crop)
    soft = gaussian_filter(crop.astype(np.float32), (width, width, 0), mode="nearest")
    return np.asarray(soft.round().astype(np.uint8))


def _hidden(
    crop: NDArray[np.uint8],
    soft: NDArray[np.uint8],
    patches: NDArray[np.intp],
    shape: tuple[int, ...],
) -> NDArray[np.uint8]:
    """The crop with some patches of the grid blurred."""
    cell = crop.shape[1] // shape[1]
    gone = np.zeros(shape, bool)
    gone.flat[patches] = True
    mask = np.zeros(crop.shape[:2], bool)
    large = np.kron(gone, np.ones((cell, cell), bool))
    mask[: large.shape[0], : large.shape[1]] = large
    return np.where(mask[..., None], soft, crop)
