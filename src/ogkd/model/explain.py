"""Evidence maps: which parts of an image speak for a class, and a picture of them.

The fitted head is applied to the patch features, which live in the same space as the global one.
The evidence of a patch for class c is its logit of c minus the mean logit of the other classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.core.losses import patches_kept, select_patches
from ogkd.errors import ConfigError
from ogkd.images.address import with_slice
from ogkd.images.decode import read_image
from ogkd.images.transforms import center_crop, normalise
from ogkd.methods import Head
from ogkd.model.classifier import Classifier

__all__ = ["Evidence", "draw", "evidence", "explain", "patch_evidence"]

_SIDE = 672  # most pixels of a drawn map: three times 224
_RATIO = 0.1  # share of patches that count as most attentive where the method names none
_STRONGEST = 0.5  # opacity of the heat where the evidence is greatest


@dataclass(frozen=True)
class Evidence:
    """What one image shows for one class; a grid place is (row, column) from the top left."""

    path: Path
    image: Image.Image  # what the model saw: resized and cropped to a square
    label: int  # the class that the evidence is for
    grid: NDArray[np.float32]  # [h, w], in logits; above 0 speaks for the class
    top: list[tuple[int, int]]  # the most attentive patches, the most attentive first


def evidence(
    classifier: Classifier,
    paths: Sequence[str | Path],
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
    batch_size: int = 8,
) -> Iterator[Evidence]:
    """The evidence maps of image files, one after the other, in order.

    `labels` are the classes to find evidence for (default: the predicted ones). `top` is how many
    patches are named as most attentive (default: the model's own share of patches in training, or
    a tenth). They are the nearest to the class text where the head has one (eq. 8-9 of the paper),
    else those with the most evidence. An unreadable file is a DataError.
    """
    backbone = classifier.backbone
    chosen = None if labels is None else [_known(label, classifier) for label in labels]
    if chosen is not None and len(chosen) != len(paths):
        raise ConfigError(f"There are {len(paths)} images, but {len(chosen)} labels for them.")
    rows, columns = backbone.patch_grid
    kept = _how_many(classifier, top, rows * columns)
    for start in range(0, len(paths), batch_size):
        files = [_with_rule(path, classifier) for path in paths[start : start + batch_size]]
        crops = [center_crop(read_image(file), backbone.preprocessing) for file in files]
        features = _encode(backbone, crops)
        wanted = (
            classifier.head.logits(features.globals).argmax(dim=-1)
            if chosen is None
            else torch.tensor(chosen[start : start + batch_size])
        )
        maps, best = _look(classifier.head, features, wanted, kept)
        for row, (file, crop) in enumerate(zip(files, crops, strict=True)):
            yield Evidence(
                path=file,
                image=Image.fromarray(crop),
                label=int(wanted[row]),
                grid=maps[row].view(rows, columns).float().numpy(),
                top=[divmod(place, columns) for place in best[row].tolist()],
            )


def explain(
    classifier: Classifier,
    paths: str | Path | Sequence[str | Path],
    *,
    labels: Sequence[int] | None = None,
    top: int | None = None,
) -> list[Evidence]:
    """Return the evidence map of each image file; `draw` makes a picture of one.

    Takes one path or several; for very many, `evidence` gives them one at a time. The other
    arguments are those of `evidence`.
    """
    files = [paths] if isinstance(paths, str | Path) else paths
    return list(evidence(classifier, files, labels=labels, top=top))


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
    and without colour blindness, and the heat is also told by lightness.
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


def _known(label: int, classifier: Classifier) -> int:
    if not 0 <= label < len(classifier.class_names):
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


def _with_rule(path: str | Path, classifier: Classifier) -> Path:
    rule = classifier.card.slice
    return with_slice(path, rule) if rule else Path(path)


def _encode(backbone: Backbone, crops: Sequence[NDArray[np.uint8]]) -> ImageFeatures:
    pixels = normalise(crops, backbone.preprocessing).to(backbone.device)
    features = backbone.encode_images(pixels, patches=True)
    if features.patches is None:
        raise ConfigError(f"The backbone '{backbone.name}' gives no patches to find evidence in.")
    return ImageFeatures(features.globals.cpu(), features.patches.cpu())


@torch.no_grad()
def _look(head: Head, features: ImageFeatures, labels: Tensor, kept: int) -> tuple[Tensor, Tensor]:
    """Evidence [B, P], and the places [B, kept] of the most attentive patches."""
    patches = features.patches
    assert patches is not None  # `_encode` saw to it
    logits = head.logits(patches.flatten(0, 1)).unflatten(0, patches.shape[:2])  # [B, P, C]
    maps = patch_evidence(logits, labels)
    T = head.class_texts
    if T is not None and head.is_text_only:
        return maps, select_patches(patches, T, labels, kept, absolute=False)
    return maps, maps.topk(kept, dim=-1).indices


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
