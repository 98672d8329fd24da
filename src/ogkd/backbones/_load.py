"""From a name, a folder or a hub id to a loaded backbone on a device."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import Record, find_record, record_for_hub_id, unknown
from ogkd.backbones.engines import require_engine, with_engine
from ogkd.errors import BackboneError, ConfigError

__all__ = ["detect_format", "load_backbone", "load_folder", "resolve", "resolve_device"]


def load_backbone(
    name_or_path_or_hub_id: str | Path, *, device: str = "auto", engine: str = "torch"
) -> Backbone:
    """Load a frozen vision-language model.

    Args:
        name_or_path_or_hub_id: "builtin"; a folder with a model in it; a name of the catalogue
            (`ogkd backbones list`); or a hub id, "org/name". What is on the hub is fetched at
            the first use and then taken from the cache.
        device: "auto" takes a GPU if there is one; else "cpu", "cuda", "cuda:1", "mps".
        engine: how images are encoded: "torch" in float32, or "int8", faster on a CPU but with
            features of its own (ogkd.backbones.engines).

    Example:
        >>> backbone = load_backbone("builtin")
        >>> backbone.encode_texts(["an ultrasound of a benign cyst"]).shape[0]
        1
    """
    require_engine(engine)
    if engine != "torch" and device == "auto":
        device = "cpu"  # where the other engines run
    return with_engine(_load(name_or_path_or_hub_id, resolve_device(device)), engine)


def _load(wanted: str | Path, device: torch.device) -> Backbone:
    found = resolve(wanted)
    if isinstance(found, Path):
        return load_folder(found, name=str(wanted), device=device)
    if found.format == "builtin":
        from ogkd.backbones.builtin import load_builtin

        return load_builtin(device=device)
    from ogkd.backbones.hub import fetch, present

    return load_folder(present(found) or fetch(found), name=found.name, device=device)


def resolve(wanted: str | Path) -> Record | Path:
    """What the user means: a record (built-in, known or a hub id), or a folder that exists."""
    name, path = str(wanted), Path(wanted).expanduser()
    record = None if isinstance(wanted, Path) else find_record(name)
    if record is not None and record.format == "builtin":
        return record
    # A folder of results that happens to be called like a known backbone is not meant.
    if path.is_dir() and (record is None or detect_format(path)):
        return path
    if record is not None:
        return record
    if path.is_file():
        raise BackboneError(f"{path} is a file. Pass the folder that it is in: {path.parent}")
    if isinstance(wanted, Path) or name.startswith((".", "~", "/")) or "\\" in name:
        raise BackboneError(f"There is no folder {path}. Check the path.")
    if (bare := record_for_hub_id(name)) is not None:
        return bare
    raise unknown(name)


def detect_format(folder: Path) -> str | None:
    """Which adapter a folder is for; None if it holds no model."""
    from ogkd.backbones.transformers_clip import FAMILIES

    transformers = _value(folder / "config.json", "model_type") in FAMILIES
    open_clip = (folder / "open_clip_config.json").is_file()
    if open_clip and transformers:
        # Some repositories hold both; open_clip's own towers are only readable as CLIPModel.
        model = _value(folder / "open_clip_config.json", "model_cfg")
        vision = model.get("vision_cfg") if isinstance(model, dict) else None
        open_clip = isinstance(vision, dict) and "timm_model_name" in vision
    if open_clip:
        return "open_clip"
    return "transformers" if transformers else None


def load_folder(folder: Path, *, name: str, device: torch.device) -> Backbone:
    """Load whatever model a local folder holds, without a network."""
    kind = detect_format(folder)
    if kind == "open_clip":
        from ogkd.backbones.open_clip_format import load_open_clip

        return load_open_clip(folder, name=name, device=device)
    if kind == "transformers":
        from ogkd.backbones.transformers_clip import load_transformers

        return load_transformers(folder, name=name, device=device)
    from ogkd.backbones.transformers_clip import FAMILIES

    found = _value(folder / "config.json", "model_type")
    seen = f" Its config.json has model_type {found!r}." if found else ""
    raise BackboneError(
        f"{folder} holds no model that ogkd can load.{seen} Looked for open_clip_config.json (a "
        f"timm ViT with a BERT), and for config.json with model_type {', '.join(FAMILIES)}."
    )


def resolve_device(device: str) -> torch.device:
    """The device that a user's word means, if this machine has it."""
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(
            f"There is no device '{device}'. Use auto, cpu, cuda, cuda:1 or mps."
        ) from error
    usable = {
        "cpu": found.index in (None, 0),
        "cuda": torch.cuda.is_available() and (found.index or 0) < torch.cuda.device_count(),
        "mps": torch.backends.mps.is_available(),
    }
    if not usable.get(found.type, False):
        raise ConfigError(
            f"This machine has no device '{device}' that torch can use. Use auto or cpu"
            + ("; for a GPU install torch's CUDA build." if found.type == "cuda" else ".")
        )
    return found


def _value(path: Path, key: str) -> object:
    """One value of a JSON file; None if it cannot be had."""
    try:
        return json.loads(path.read_text(encoding="utf-8")).get(key)
    except (OSError, ValueError, AttributeError):
        return None
