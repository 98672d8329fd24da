"""Does a map mark what the answer rests on? Tried on the image itself.

The places that count most are blurred, and the lead of the class is compared with what is left of
it when as many other places, picked at random, are blurred.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.features.encode import encode_crops
from ogkd.model.classifier import Classifier
from ogkd.model.drawing import background_patches
from ogkd.model.explain import Evidence, smoothed

SHARE = 0.2  # of the places outside the empty background that are blurred
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


def check_evidence(classifier: Classifier, evidence: Evidence) -> EvidenceCheck | None:
    """None if there is nothing to try: no lead, or no place outside the empty background."""
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
