"""Text features on disk, addressed by the texts and the backbone: a bank is encoded once.

One file for each list of texts, because a batch's rounding depends on all that is in it: a list
that is encoded again has the same bits whatever else was encoded before.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.errors import StorageError
from ogkd.files import cache_dir, write_atomically


def text_features(backbone: Backbone, texts: Sequence[str], *, root: Path | None = None) -> Tensor:
    """Features [N, d] of `backbone.encode_texts(texts)`, found in the cache or kept there."""
    address = hashlib.sha256(json.dumps([backbone.digest, *texts]).encode()).hexdigest()
    place = (root or cache_dir() / "texts") / address[:2] / f"{address}.safetensors"
    found = _read(place)
    if found is not None and found.shape == (len(texts), backbone.embed_dim):
        return found
    found = backbone.encode_texts(texts)
    if found.isfinite().all():
        # A cache that cannot be written costs time, nothing else.
        with contextlib.suppress(StorageError), write_atomically(place, ours=True) as aside:
            aside.write_bytes(save({"features": found}, {"sha256": _digest(found)}))
    return found


def _read(place: Path) -> Tensor | None:
    """What is kept there; None if there is nothing, or it is not what was written."""
    try:
        with safe_open(place, "pt") as file:
            found: Tensor = file.get_tensor("features").clone()  # not a map of the file
            digest = (file.metadata() or {}).get("sha256")
    except (SafetensorError, OSError):
        return None
    return found if digest == _digest(found) else None


def _digest(features: Tensor) -> str:
    return hashlib.sha256(features.contiguous().numpy().tobytes()).hexdigest()
