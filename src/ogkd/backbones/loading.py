"""Load a backbone from a name, a folder or a hub id onto a device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from ogkd.backbones._folder import (
    FORMAT_HELP,
    detect_format,
    layouts,
    peek,
    weight_keys,
)
from ogkd.backbones.base import Backbone
from ogkd.backbones.builtin import BUILTIN_FOLDER
from ogkd.backbones.catalog import Record, catalog, find_record, hub_record, loaders
from ogkd.backbones.checkpoint_format import load_checkpoint
from ogkd.backbones.engines import require_engine, with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.backbones.transformers_format import load_transformers
from ogkd.errors import BackboneError, ConfigError
from ogkd.files import home

_LOADERS = {"open_clip": load_open_clip, "transformers": load_transformers} | dict.fromkeys(
    layouts("checkpoints"), load_checkpoint
)


def load_backbone(
    name_or_path_or_hub_id: str | Path, *, device: str = "auto", engine: str = "torch"
) -> Backbone:
    """Load a frozen vision-language model.

    Args:
        name_or_path_or_hub_id: "builtin"; a folder with a model in it; a name in the catalogue
            (`ogkd.backbones.catalog()`); or a hub id, "org/name". A model on the hub is fetched
            at its first use and then taken from the cache.
        device: "auto" uses a GPU if there is one; or "cpu", "cuda", "cuda:1", "mps".
        engine: how images are encoded: "torch" in float32; on a GPU faster, but with slightly
            different features, "bf16" or "fp16"; "auto" tries (ogkd.backbones.engines).

    Example:
        >>> backbone = load_backbone("builtin")
        >>> backbone.encode_texts(["an ultrasound of a benign cyst"]).shape[0]
        1
    """
    require_engine(engine)
    return with_engine(_load(name_or_path_or_hub_id, resolve_device(device)), engine)


def _load(wanted: str | Path, device: torch.device) -> Backbone:
    source = resolve(wanted)
    if isinstance(source, Path):
        return load_folder(source, name=str(wanted), device=device)
    if source.format == "builtin":
        return load_builtin(device=device)
    if source.format == "plugin":
        loaded: object = loaders[source.name](device)
        if isinstance(loaded, Backbone):
            return loaded
        kind = type(loaded).__name__
        raise BackboneError(f"The loader of the backbone '{source.name}' returned a {kind}.")
    source.require_loadable()
    from ogkd.backbones.hub import fetch, present

    return load_folder(present(source) or fetch(source), name=source.name, device=device)


@cache
def load_builtin(*, device: torch.device) -> Backbone:
    """Load the built-in model, without a network; once per device and process."""
    return load_transformers(BUILTIN_FOLDER, name="builtin", device=device)


def resolve(wanted: str | Path) -> Record | Path:
    """What a name means: a record (built-in, known or a hub id) or a folder that exists."""
    name, path = str(wanted), home(wanted)
    record = None if isinstance(wanted, Path) else find_record(name)
    if record is not None and record.format == "builtin":
        return record
    # A folder without a model that has the name of a known backbone is not meant.
    if path.is_dir() and (record is None or detect_format(path)):
        return path
    if record is not None:
        return record
    if path.is_file() or isinstance(wanted, Path) or name.startswith((".", "~", "/")):
        raise BackboneError(f"There is no folder {path}.", argument="backbone")
    return hub_record(name)


def load_folder(folder: Path, *, name: str, device: torch.device) -> Backbone:
    """Load the model in a local folder, whatever its format, without a network."""
    load = _LOADERS.get(detect_format(folder) or "")
    if load is None:
        if record := recognise(folder):
            record.require_loadable()
        raise BackboneError(f"{folder} has no {FORMAT_HELP}.", argument="backbone")
    return load(folder, name=name, device=device)


def recognise(folder: Path) -> Record | None:
    """The model in a folder, if it is one of those that are known and cannot be loaded."""
    signs = {str(peek(folder / "config.json", "model_type")), *weight_keys(folder)}
    signs |= {path.name for path in folder.iterdir()}
    for record in catalog().values():
        if record.signature and any(sign.startswith(record.signature) for sign in signs):
            return record
    return None


def resolve_device(device: str) -> torch.device:
    """The torch device of that name, if this machine has it."""
    if device == "auto":
        accelerators = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
        device = next((name for name, usable in accelerators.items() if usable), "cpu")
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"There is no device '{device}'. Use auto, cpu, cuda, cuda:1 or mps.", argument="device"
        ) from error
    usable = {
        "cpu": resolved.index in (None, 0),
        "cuda": torch.cuda.is_available() and (resolved.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable.get(resolved.type, False):
        raise ConfigError(
            f"This machine has no device '{device}' that torch can use.", argument="device"
        )
    if resolved.type == "cuda":
        # Features are kept and compared, so all runs compute them in float32 in the same way.
        # Torch rounds convolutions to ten bits (TF32) otherwise, and tries several algorithms.
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = True
    return resolved
