"""preprocessor_config.json to our Preprocessing; what we cannot do exactly is an error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ogkd.backbones._open_clip_config import read_json
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

__all__ = ["read_preprocessing"]

# Pillow's numbers
_RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}


def read_preprocessing(folder: Path, default: Preprocessing, *, name: str) -> Preprocessing:
    """How the folder's model wants its images; its family's way (`default`) if it does not say."""
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
            f"{path} asks for image preprocessing that ogkd does not do ({error}). Mend the file, "
            "or take it away to use the usual preprocessing of this family of models."
        ) from error
    if prep.size != default.size:
        raise BackboneError(
            f"{path} makes images of {prep.size} px, but config.json says that the model takes "
            f"{default.size} px. Use the files that were published with the model."
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
    # Height and width together mean both sides at once: the aspect is lost.
    return int(asked["height"]), "squash"
