"""Folders in transformers' format: CLIPModel and SiglipModel.

`load_transformers` reads a folder without a network. What the two families share is here;
what differs is in _transformers_families.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from ogkd.backbones._folder import (
    FAMILIES,
    backbone_digest,
    check_sizes,
    find_weights,
    load_into_transformers,
    read_json,
    read_weights,
)
from ogkd.backbones._tokenizer import folder_tokenizer
from ogkd.backbones._towers import TowersBackbone
from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
# Pillow's numbers
_RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}
Kind = TypeVar("Kind", bound=TowersBackbone)


def load_transformers(folder: Path, *, name: str, device: torch.device) -> TowersBackbone:
    """Load a CLIPModel or SiglipModel folder, offline and strictly.

    Without a preprocessor_config.json the usual preprocessing of the family is used: CLIP
    resizes the short side and crops, SigLIP resizes both sides.
    """
    from ogkd.backbones._transformers_families import LOADERS

    config = read_json(folder / "config.json")
    check_sizes(config, folder / "config.json")
    family = str(config.get("model_type"))
    if family not in FAMILIES:
        raise BackboneError(
            f"{folder / 'config.json'} has model_type {family}, not {' or '.join(FAMILIES)}."
        )
    return LOADERS[family](
        ModelFolder(folder, name, device, find_weights(folder, _WEIGHTS), config)
    )


@dataclass(frozen=True)
class ModelFolder:
    """A model folder: its path, its config.json and the name that the user gave."""

    path: Path
    name: str
    device: torch.device
    weights: Path
    config: dict[str, Any]

    def model(self, model_class: Any) -> Any:
        """The model in float32, with exactly the stored weights."""
        return load_into_transformers(model_class, self.config, read_weights(self.weights))

    def backbone(
        self,
        kind: type[Kind],
        model: Any,
        usual: Preprocessing,
        *,
        prepare: Callable[[str], str] = str,
    ) -> Kind:
        """Put the model together with the folder's tokenizer and preprocessing.

        `usual` is the family's preprocessing, for a folder that says nothing; `prepare` is
        applied to each text first.
        """
        text = model.config.text_config
        tokenizer = folder_tokenizer(
            self.path, vocabulary=text.vocab_size, pad_id=text.pad_token_id, prepare=prepare
        )
        preprocessing = _read_preprocessing(self.path, usual)
        files = [self.path / name for name in _TOKENIZER_FILES]
        parts = {
            "format": "transformers",
            "config": json.dumps(self.config, sort_keys=True),
            "preprocessing": repr(preprocessing),
            **{file.name: sha256_file(file) for file in files if file.is_file()},
        }
        return kind(
            model,
            tokenizer,
            preprocessing,
            name=self.name,
            digest=backbone_digest(self.weights, parts),
            context_length=text.max_position_embeddings,
            device=self.device,
        )


def _read_preprocessing(folder: Path, default: Preprocessing) -> Preprocessing:
    """Translate preprocessor_config.json; `default` if the folder has none.

    Preprocessing that cannot be reproduced exactly is an error.
    """
    path = folder / "preprocessor_config.json"
    if path.is_file():
        settings = read_json(path)
    else:
        # transformers 5 writes the image processor inside processor_config.json.
        path = folder / "processor_config.json"
        nested = read_json(path) if path.is_file() else {}
        settings = nested.get("image_processor", {})
    if not settings:
        return default
    try:
        prep = _translate(settings, default)
    except (KeyError, TypeError, ValueError) as error:
        raise BackboneError(f"{path} cannot be followed exactly: {error}.") from error
    if prep.size != default.size:
        raise BackboneError(
            f"{path} produces images of {prep.size} px, but the model takes {default.size} px."
        )
    return prep


def _translate(settings: dict[str, Any], default: Preprocessing) -> Preprocessing:
    if abs(float(settings.get("rescale_factor") or 1 / 255) * 255 - 1) > 1e-6:
        raise ValueError(f"rescale_factor {settings['rescale_factor']}, not 1/255")
    number = settings.get("resample")
    if number is not None and number not in _RESAMPLE:
        raise ValueError(f"resample {number}, not one of {sorted(_RESAMPLE)}")
    if not settings.get("do_resize", True):
        raise ValueError("no resizing")
    size, resize = default.size, default.resize
    if (asked := settings.get("size")) is not None:
        size, resize = _size(asked, default)
    if settings.get("do_center_crop", resize == "shortest"):
        crop = settings.get("crop_size") or size
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
    if not settings.get("do_normalize", True):
        return replace(prep, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    mean = settings.get("image_mean") or default.mean
    std = settings.get("image_std") or default.std
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
