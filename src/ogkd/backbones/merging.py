"""A backbone whose weights a method has changed becomes a folder in the format of its base."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from ogkd.backbones._folder import Stored, read_weights, save_weights, weight_files
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones.base import Backbone
from ogkd.backbones.changes import Change
from ogkd.errors import ConfigError
from ogkd.files import folder_atomically, holds_files, resolved

# Weights, and the record of a fetched backbone, which describes them.
_NOT_COPIED = shutil.ignore_patterns("*.safetensors", "*.bin", "*.pt", "*.pth", "source.json", ".*")


def write_backbone(backbone: Backbone, folder: str | Path) -> Path:
    """Write the changed backbone of a model as a folder that `load_backbone` reads.

    The folder has the files of the base, the changed weights merged into its own, so every method
    fits on it. What a method does between blocks is no weight, so it cannot be written.
    """
    change = getattr(backbone, "change", None)
    if (
        not isinstance(backbone, TowersBackbone)
        or backbone.stored is None
        or not isinstance(change, Change)
        or (type(change).image, type(change).text) != (Change.image, Change.text)
    ):
        raise ConfigError(
            f"There are no changed weights to merge into {backbone.name}: the model's method left "
            "its towers as they are, or changes what enters their blocks.",
            argument="model",
        )
    target = resolved(folder)
    if target.is_file() or (target.is_dir() and holds_files(target)):
        raise ConfigError(f"{folder} is not empty. Choose another folder.", argument="out")
    base = backbone.stored.file.parent
    with folder_atomically(target) as aside:
        shutil.copytree(base, aside, ignore=_NOT_COPIED, dirs_exist_ok=True)
        for path in weight_files(base):
            _merge(backbone.model, change, backbone.stored, path, aside)
    return target


def _merge(model: Towers, change: Change, stored: Stored, path: Path, folder: Path) -> None:
    """Write one weight file of the base, its changed tensors in float32."""
    parameters = dict(model.named_parameters())
    state = dict(read_weights(path).tensors)
    if state.keys().isdisjoint(stored.table):
        return
    changed = {f"image.{name}" for name in change.image_weights}
    changed |= {f"text.{name}" for name in change.text_weights}
    for key, targets in stored.table.items():
        if key in state and changed.intersection(targets):
            whole = torch.cat([parameters[name].detach().cpu() for name in targets])
            whole = whole.T if key in stored.transposed else whole
            state[key] = whole.reshape(state[key].shape)
    stem = "model" if path.stem == "pytorch_model" else path.stem  # as transformers names it
    save_weights(state, folder / f"{stem}.safetensors")
