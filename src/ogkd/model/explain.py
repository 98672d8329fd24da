"""Evidence maps: which parts of an image speak for a class, and a picture of them.

The fitted head is applied to the patch features, which live in the same space as the global one.
The evidence of a patch for class c is its logit of c minus the mean logit of the other classes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ogkd.core.losses import patches_kept, select_patches
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import whole_image
from ogkd.images import ImageRef
from ogkd.methods import Head
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decision

_SIDE = 672  # most pixels of a drawn map: three times 224
_RATIO = 0.1  # share of patches that count as most attentive if the method names none
_STRONGEST = 0.5  # opacity of the heat where the evidence is greatest


@dataclass(frozen=True)
class Evidence:
    """What one image shows for one class; a grid position is (row, column) from the top left."""

    ref: ImageRef | None
    image: Image.Image  # what the model saw: resized and cropped to a square
    label: int  # the class that the evidence is for
    grid: NDArray[np.float32]  # [h, w], in logits; above 0 speaks for the class
    top: list[tuple[int, int]]  # the most attentive patches, the most attentive first


def evidence(
    classifier: Classifier,
    images: Sequence[str | Path | ImageRef],
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
    batch_size: int = 8,
) -> Iterator[Evidence]:
    """The evidence maps of images, one after the other, in order.

    `labels` are the classes to find evidence for (default: the predicted ones). `top` is how many
    patches are named as most attentive (default: the model's own share of patches in training, or
    a tenth). They are the nearest to the class text if the head has one (eq. 8-9 of the paper),
    else those with the most evidence. An unreadable file is a DataError.
    """
    if labels is not None and len(labels) != len(images):
        raise ConfigError(f"There are {len(images)} images, but {len(labels)} labels for them.")
    wanted: Sequence[int | None] = [None] * len(images) if labels is None else labels
    decisions = classifier.decide(images, patches=True, batch_size=batch_size)
    for decision, label in zip(decisions, wanted, strict=True):
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
    chosen = _known(decision.label if label is None else label, classifier)
    kept = _how_many(classifier, top, rows * columns)
    grid, best = _look(classifier.head, decision.patches, chosen, kept)
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
        top=[divmod(place, columns) for place in best.tolist()],
    )


def explain(
    classifier: Classifier,
    images: str | Path | ImageRef | Sequence[str | Path | ImageRef],
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
) -> list[Evidence]:
    """Return the evidence map of each image; `draw` makes a picture of one.

    Takes one image or several; for very many, `evidence` yields them one at a time. The other
    arguments are those of `evidence`.
    """
    several = [images] if isinstance(images, str | Path | ImageRef) else images
    return list(evidence(classifier, several, labels=labels, top=top))


def patch_evidence(logits: Tensor, labels: Tensor) -> Tensor:
    """Evidence [B, P] of patches for the labels [B], from the logits of patches [B, P, C].

    >>> patch_evidence(torch.tensor([[[3.0, 1.0, 0.0]]]), torch.tensor([0]))
    tensor([[2.5000]])
    """
    own = torch.take_along_dim(logits, labels.view(-1, 1, 1), dim=-1).squeeze(-1)  # [B, P]
    others = logits.shape[-1] - 1
    return own - (logits.sum(dim=-1) - own) / others


def draw(found: Evidence) -> Image.Image:
    """The picture with heat where the evidence is, the most attentive patches outlined.

    Colours run from no heat at the image's median evidence to yellow at its highest: they compare
    places within this image, not images with each other. The scale (cividis) looks the same with
    and without colour blindness, and the heat is also visible as lightness.
    """
    from matplotlib import colormaps  # here: it takes a while, and only pictures need it

    size = found.image.width
    side = size * (_SIDE // size) if size <= _SIDE else _SIDE
    zoom = side / size
    strength = _strength(found.grid)
    # A tower drops what is left at the right and below when patches do not fill the image.
    cell = size // found.grid.shape[1]
    covered = (round(found.grid.shape[1] * cell * zoom), round(found.grid.shape[0] * cell * zoom))
    smooth = np.asarray(Image.fromarray(strength).resize(covered, Image.Resampling.BILINEAR))
    heat = np.zeros((side, side), np.float32)
    heat[: covered[1], : covered[0]] = smooth
    colours = np.asarray(colormaps["cividis"](heat))[..., :3] * 255.0
    opacity = _STRONGEST * heat[..., None]
    picture = np.asarray(found.image.convert("RGB").resize((side, side), Image.Resampling.BICUBIC))
    mixed = (1 - opacity) * picture + opacity * colours
    drawn = Image.fromarray(mixed.round().astype(np.uint8))
    _outline(drawn, found.top, cell * zoom)
    return drawn


def data_uri(image: Image.Image, *, most: int | None = None) -> str:
    """An image as a JPEG inside a page, at most `most` pixels a side, so that no file is served."""
    copy = image.convert("RGB")
    if most is not None:
        copy.thumbnail((most, most))
    memory = io.BytesIO()
    copy.save(memory, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(memory.getvalue()).decode()


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
def _look(head: Head, patches: Tensor, label: int, kept: int) -> tuple[Tensor, Tensor]:
    """Evidence [P] of patches [P, d], and the positions [kept] of the most attentive patches."""
    labels = torch.tensor([label])
    maps = patch_evidence(head.logits(patches).unsqueeze(0), labels)
    T = head.class_texts
    if T is not None and head.is_text_only:
        best = select_patches(patches.unsqueeze(0), T, labels, kept, absolute=False)
        return maps[0], best[0]
    return maps[0], maps[0].topk(kept).indices


def _strength(grid: NDArray[np.float32]) -> NDArray[np.float32]:
    """How strong the heat is, from 0 at the median of the image to 1 at its most."""
    above = np.clip(grid - np.median(grid), 0, None)
    most = float(above.max())
    strength: NDArray[np.float32] = (above / max(most, 1e-12)).astype(np.float32)
    return strength


def _outline(picture: Image.Image, places: Sequence[tuple[int, int]], cell: float) -> None:
    """Lines around groups of patches, white in a dark frame, to be seen on any ground."""
    chosen = set(places)
    pen = ImageDraw.Draw(picture)
    lines = []
    for row, column in chosen:
        left, top = column * cell, row * cell
        right, bottom = left + cell, top + cell
        sides = {
            (row - 1, column): (left, top, right, top),
            (row + 1, column): (left, bottom, right, bottom),
            (row, column - 1): (left, top, left, bottom),
            (row, column + 1): (right, top, right, bottom),
        }
        lines += [line for beyond, line in sides.items() if beyond not in chosen]
    for width, colour in ((5, (0, 0, 0)), (2, (255, 255, 255))):
        for line in lines:
            pen.line(line, fill=colour, width=width)
