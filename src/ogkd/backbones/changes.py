"""Changes of frozen towers: what enters their blocks, and weights in place of their own.

A learner makes a change from what it trains, so gradients reach that; a fitted one makes a
backbone with a digest of its own (`with_change`), whose features are never mixed with others.
Changed weights become a folder in the format of their base (`write_backbone`).
"""

from __future__ import annotations

import copy
import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ogkd.backbones._folder import Stored, read_weights, save_weights, weight_files
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import without_engine
from ogkd.errors import ConfigError
from ogkd.files import folder_atomically, holds_files, resolved


class Change:
    """What a method does to both towers; here nothing.

    Weights are by name in the tower. Tokens after the patches are left out at the end.
    """

    image_weights: Mapping[str, Tensor] = {}
    text_weights: Mapping[str, Tensor] = {}

    def image(self, number: int, tokens: Tensor) -> Tensor:
        """What enters block `number`, from 0, of the image tower, in place of [B, T, w]."""
        return tokens

    def text(self, number: int, tokens: Tensor) -> Tensor:
        """What enters block `number`, from 0, of the text tower, in place of [B, L, w]."""
        return tokens


class BlankPatches(Change):
    """Zeros over the first patches, before every block: the visual prompt of Biomed-DPT."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count  # tokens before the patches, patches

    def image(self, number: int, tokens: Tensor) -> Tensor:
        blanked = tokens.clone()
        blanked[:, self.first : self.first + self.count] = 0
        return blanked


def towers_of(backbone: Backbone) -> TowersBackbone:
    """The backbone as one whose towers can be changed; it encodes in float32."""
    backbone = without_change(without_engine(backbone))
    if isinstance(backbone, TowersBackbone) and hasattr(backbone.model.image, "blocks"):
        return backbone
    raise ConfigError(
        f"The towers of {backbone.name} cannot be changed: they are not transformers known here.",
        argument="backbone",
    )


def image_width(backbone: Backbone) -> int:
    """The width of the image tower's tokens."""
    return int(towers_of(backbone).model.image.spec.width)


def depth(backbone: Backbone) -> int:
    """The blocks of the tower that has fewer."""
    model = towers_of(backbone).model
    texts = model.text.blocks if hasattr(model.text, "blocks") else model.text.bert.encoder.layer
    return int(min(model.image.spec.depth, len(texts)))


def with_change(backbone: Backbone, change: Change, fingerprint: str) -> Backbone:
    """The backbone with changed towers; `fingerprint` identifies the change.

    Its texts go through changed weights, but not through what a change does between blocks, which
    is meant for the texts of its own method.
    """
    original = towers_of(backbone)
    if backbone.engine != original.engine:
        raise ConfigError(
            f"Images go through a tuned tower in float32, not in {backbone.engine}.",
            argument="engine",
        )
    twin = copy.copy(original)
    twin.unchanged = original
    twin.digest = hashlib.sha256(f"{original.digest} {fingerprint}".encode()).hexdigest()
    twin.change = change
    if change.image_weights or change.text_weights:
        twin.model = copy.deepcopy(original.model)
        for tower, weights in (
            (twin.model.image, change.image_weights),
            (twin.model.text, change.text_weights),
        ):
            state = {name: weight.detach() for name, weight in weights.items()}
            tower.load_state_dict(state, strict=False)
    return twin


def without_change(backbone: Backbone) -> Backbone:
    """The backbone with its own towers."""
    unchanged = getattr(backbone, "unchanged", None)
    return unchanged if isinstance(unchanged, Backbone) else backbone


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
