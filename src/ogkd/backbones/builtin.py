"""The embedded model: a small CLIP whose weights are part of the package.

It knows phantoms only (see builtin_data/MODEL_CARD.md); it is there so that everything runs
at once and offline.
"""

from __future__ import annotations

from pathlib import Path

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.transformers_clip import load_transformers
from ogkd.errors import BackboneError

__all__ = ["BUILTIN_FOLDER", "load_builtin"]

BUILTIN_FOLDER = Path(__file__).parent / "builtin_data"


def load_builtin(*, device: torch.device, folder: Path = BUILTIN_FOLDER) -> Backbone:
    """Load the embedded model; no network, no cache."""
    missing = [
        name
        for name in ("config.json", "tokenizer.json", "model.safetensors")
        if not (folder / name).is_file()
    ]
    if missing:
        raise BackboneError(
            f"The built-in model is not complete: {', '.join(missing)} not in {folder}. "
            "Install ogkd again, or train the model with `python tools/train_builtin.py`."
        )
    return load_transformers(folder, name="builtin", device=device)
