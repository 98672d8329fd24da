"""Read the files of a model folder: JSON, weights, preprocessing and the digest of it all.

No network, and nothing in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

# Pillow's numbers
_RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}


def try_again(name: str) -> str:
    """The next step for a damaged or wrong file."""
    return (
        f"Download it again (`ogkd backbones fetch {name}`), or, if the folder is your own, copy "
        "the file again from its source."
    )


def read_json(path: Path, *, name: str) -> dict[str, Any]:
    """Read one JSON object, or say which file is wrong and where."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BackboneError(f"There is no file {path}. {try_again(name)}") from error
    except OSError as error:
        raise BackboneError(f"Cannot read {path}: {error.strerror}.") from error
    except ValueError as error:
        raise BackboneError(f"{path} is not valid JSON: {error}. {try_again(name)}") from error
    if not isinstance(value, dict):
        raise BackboneError(f"{path} does not contain a JSON object. {try_again(name)}")
    return value


def find_weights(folder: Path, names: Sequence[str], *, name: str) -> Path:
    """The first of the files `names` that is in `folder`."""
    for file in names:
        if (folder / file).is_file():
            return folder / file
    if shards := sorted(folder.glob("*.index.json")):
        raise BackboneError(
            f"The weights in {folder} are split into several files ({shards[0].name}), which ogkd "
            "does not read. Save the model again as one file (transformers: max_shard_size='50GB')."
        )
    raise BackboneError(
        f"{folder} has no weight file: none of {', '.join(names)}. {try_again(name)}"
    )


def read_state(path: Path, *, name: str) -> dict[str, Tensor]:
    """Map the tensors of a weight file into memory, by their names."""
    if not path.is_file():
        raise BackboneError(f"There is no weight file {path}. {try_again(name)}")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        pickle.UnpicklingError,
    ) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise BackboneError(
            f"{path} ({path.stat().st_size:,} bytes) is damaged, incomplete or not a weight file: "
            f"{reason}. {try_again(name)}"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a training checkpoint stores the optimiser beside the weights
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise BackboneError(f"{path} is not a table of named tensors. {try_again(name)}")
    return {key.removeprefix("module."): value for key, value in state.items()}


def backbone_digest(weights: Path, parts: Mapping[str, str]) -> str:
    """Hash the weight file together with everything else that determines the output.

    `parts` are named texts or hashes, such as the canonical JSON of the configuration and
    the hash of the tokenizer file; their order does not matter.
    """
    try:
        record = {"weights": sha256_file(weights), "parts": dict(parts)}
    except OSError as error:
        raise BackboneError(
            f"Cannot read {weights}: {error.strerror or error}. Check the path and its permissions."
        ) from error
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def read_preprocessing(folder: Path, default: Preprocessing, *, name: str) -> Preprocessing:
    """Translate preprocessor_config.json; `default` if the folder has none.

    Preprocessing that cannot be reproduced exactly is an error.
    """
    path = folder / "preprocessor_config.json"
    if path.is_file():
        found = read_json(path, name=name)
    else:
        # transformers 5 writes the image processor inside processor_config.json.
        path = folder / "processor_config.json"
        nested = read_json(path, name=name) if path.is_file() else {}
        found = nested.get("image_processor", {})
    if not found:
        return default
    try:
        prep = _translate(found, default)
    except (KeyError, TypeError, ValueError) as error:
        raise BackboneError(
            f"{path} asks for image preprocessing that ogkd does not support ({error}). Correct "
            "the file, or remove it to use the usual preprocessing of this model family."
        ) from error
    if prep.size != default.size:
        raise BackboneError(
            f"{path} produces images of {prep.size} px, but according to config.json the model "
            f"takes {default.size} px. Use the files that were published with the model."
        )
    return prep


def _translate(found: dict[str, Any], default: Preprocessing) -> Preprocessing:
    if abs(float(found.get("rescale_factor") or 1 / 255) * 255 - 1) > 1e-6:
        raise ValueError(f"rescale_factor {found['rescale_factor']}, not 1/255")
    number = found.get("resample")
    if number is not None and number not in _RESAMPLE:
        raise ValueError(f"resample {number}, not one of {sorted(_RESAMPLE)}")
    if not found.get("do_resize", True):
        raise ValueError("no resizing")
    size, resize = default.size, default.resize
    if (asked := found.get("size")) is not None:
        size, resize = _size(asked, default)
    if found.get("do_center_crop", resize == "shortest"):
        crop = found.get("crop_size") or size
        crop = crop if isinstance(crop, int) else crop["height"]
        if crop != size:
            raise ValueError(f"a resize to {size} px but a crop of {crop} px")
    elif resize == "shortest":
        raise ValueError("the short side resized but no crop")
    prep = replace(
        default,
        size=size,
        resize=resize,
        interpolation=default.interpolation if number is None else _RESAMPLE[number],
    )
    if not found.get("do_normalize", True):
        return replace(prep, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    mean = found.get("image_mean") or default.mean
    std = found.get("image_std") or default.std
    if min(std) <= 0:
        raise ValueError(f"image_std {std}")
    return replace(prep, mean=_triple(mean), std=_triple(std))


def _triple(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = values
    return float(red), float(green), float(blue)


def _size(asked: Any, default: Preprocessing) -> tuple[int, Any]:
    if isinstance(asked, int):
        return asked, default.resize
    if "shortest_edge" in asked:
        return int(asked["shortest_edge"]), "shortest"
    if asked["height"] != asked["width"]:
        raise ValueError(f"images of {asked['height']} x {asked['width']} px, not square")
    # Height and width together mean that both sides are resized: the aspect ratio is lost.
    return int(asked["height"]), "squash"
