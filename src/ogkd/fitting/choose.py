"""Which backbone to use if none is named, and a warning where the built-in model does not apply.

The images themselves decide: phantoms get the built-in model, everything else a real backbone.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np

from ogkd.backbones import Backbone, catalog, load_backbone
from ogkd.backbones.builtin import domain_warning, is_builtin, mostly_strange
from ogkd.backbones.engines import with_engine
from ogkd.backbones.hub import present_backbones
from ogkd.errors import BackboneError, DataError
from ogkd.features.encode import encode_files
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import unreadable, unreadable_error
from ogkd.fitting.request import FitRequest
from ogkd.images import ImageRef

log = logging.getLogger("ogkd.fit")
AUTO = "auto"  # the name that means: choose
BEST = "biomedclip"  # to fetch, if there is no real backbone yet
_SAMPLE = 24  # images that are looked at


class NoRealBackbone(BackboneError):
    """The images are not phantoms, and no backbone that could know them is on this machine."""


def backbone_for(request: FitRequest, images: Sequence[ImageRef]) -> Backbone:
    """The backbone that was asked for, or the one that suits the images."""
    backbone = request.backbone
    if backbone == AUTO:
        backbone = choose_backbone(images)
        return load_backbone(backbone, device=request.device, engine=request.engine)
    if not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=request.device, engine=request.engine)
    elif request.engine != "torch":
        backbone = with_engine(backbone, request.engine)
    if warning := warning_about(backbone, images):
        log.warning(f"WARNING: {warning}")
    return backbone


def choose_backbone(images: Sequence[ImageRef]) -> str:
    """The built-in model for phantoms; for other images, or none, the best real one present.

    Nothing is downloaded.
    """
    if images:
        strange, seen = _look(load_backbone("builtin", device="cpu"), images)
        if not seen and (bad := unreadable(images)):
            raise unreadable_error(bad)
        if seen and not mostly_strange(strange, seen):
            return "builtin"
    name = best_present()
    if name is None:
        size = (catalog()[BEST].size or 0) / 1e9
        raise NoRealBackbone(
            "The built-in model knows only phantoms, and no other backbone is on this machine. "
            f"Fetch one, once, with a network: `ogkd backbones fetch {BEST}` ({size:.1f} GB), or "
            "pass the folder of a model that you have.",
            argument="backbone",
        )
    log.info(f"Backbone: {name} ({catalog()[name].modality}), the best one on this machine.")
    return name


def best_present() -> str | None:
    """The first real backbone of the catalogue that is on this machine."""
    return next(iter(present_backbones()), None)


def warning_about(backbone: Backbone, images: Sequence[ImageRef]) -> str:
    """The warning if this is the built-in model and the images are not phantoms; else nothing."""
    return domain_warning(*_look(backbone, images)) if is_builtin(backbone) else ""


def _look(backbone: Backbone, images: Sequence[ImageRef]) -> tuple[int, int]:
    """Of some images, spread over all: how many are out of its domain, and how many were read."""
    if not images:
        return 0, 0
    rows = np.unique(np.linspace(0, len(images) - 1, _SAMPLE).round().astype(int))
    sample = [images[row] for row in rows]
    try:  # kept, so that they are not encoded again if this backbone is used
        deep = bool(backbone.deep_parts)
        features = [FeatureStore(backbone).get(sample, deep=deep).globals[:, 0]]
    except DataError:
        batches = (batch.features for batch in encode_files(backbone, sample))
        features = [batch.globals for batch in batches if batch is not None]
    outside = [backbone.out_of_domain(part.cpu().numpy()) for part in features]
    known = [part for part in outside if part is not None]
    return sum(int(part.sum()) for part in known), sum(map(len, known))
