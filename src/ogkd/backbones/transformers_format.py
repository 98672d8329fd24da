"""Folders in transformers' format: CLIPModel and SiglipModel, read without a network."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from ogkd.backbones._clip import load_clip_model
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
from ogkd.backbones._transformers_families import ClipBackbone, SiglipBackbone
from ogkd.backbones.builtin import phantom_domain
from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HALF = (0.5, 0.5, 0.5)
_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
# Pillow's numbers
_RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}


def load_transformers(folder: Path, *, name: str, device: torch.device) -> TowersBackbone:
    """Load a CLIPModel or SiglipModel folder, offline and strictly.

    Without a preprocessor_config.json the usual preprocessing of the family is used: CLIP
    resizes the short side and crops, SigLIP resizes both sides.
    """
    path = folder / "config.json"
    config = read_json(path)
    check_sizes(config, path)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise BackboneError(f"{path} has model_type {family}, not {' or '.join(FAMILIES)}.")
    weights = read_weights(find_weights(folder, _WEIGHTS))
    model: Any
    prepare: Callable[[str], str] = str
    if family == "clip":  # OpenAI CLIP, PubMedCLIP, PLIP, QuiltNet, the built-in model
        model = load_clip_model(config, weights)
        usual = Preprocessing(size=model.config.vision_config.image_size)
    else:  # SigLIP, MedSigLIP
        from transformers import SiglipModel

        model = load_into_transformers(SiglipModel, config, weights)
        vision = model.config.vision_config
        size, width = model.config.text_config.projection_size, vision.hidden_size
        if size != width or not model.vision_model.use_head:
            raise BackboneError(f"{path} has no shared space: texts {size}, images {width} wide.")
        usual = Preprocessing(size=vision.image_size, mean=_HALF, std=_HALF, resize="squash")
        prepare = _siglip_preparation(folder)
    text = model.config.text_config
    tokenizer = folder_tokenizer(
        folder, vocabulary=text.vocab_size, pad_id=text.pad_token_id, prepare=prepare
    )
    preprocessing = _read_preprocessing(folder, usual)
    files = [folder / file for file in _TOKENIZER_FILES]
    parts = {
        "format": "transformers",
        "config": json.dumps(config, sort_keys=True),
        "preprocessing": repr(preprocessing),
        **{file.name: sha256_file(file) for file in files if file.is_file()},
    }
    backbone = (ClipBackbone if family == "clip" else SiglipBackbone)(
        model,
        tokenizer,
        preprocessing,
        name=name,
        digest=backbone_digest(weights.file, parts),
        context_length=text.max_position_embeddings,
        device=device,
    )
    if isinstance(backbone, ClipBackbone):
        backbone.check_tokenizer(folder)
    if backbone.digest == phantom_domain().digest:
        backbone.domain = phantom_domain()
    return backbone


def _canonical(text: str) -> str:
    """Lower case, no punctuation, single spaces, as SigLIP's tokenizer prepares a text."""
    return re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()


def _siglip_preparation(folder: Path) -> Callable[[str], str]:
    """What the tokenizer's Python class does to a text first; tokenizer.json may not include it."""
    path = folder / "tokenizer_config.json"
    named = read_json(path).get("tokenizer_class") if path.is_file() else None
    # SigLIP 2 uses Gemma's tokenizer and was trained on lower case with punctuation.
    return str.lower if str(named).startswith(("Gemma", "Siglip2")) else _canonical


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
    red, green, blue = map(float, mean)
    of_red, of_green, of_blue = map(float, std)
    return replace(prep, mean=(red, green, blue), std=(of_red, of_green, of_blue))


def _size(asked: Any, default: Preprocessing) -> tuple[int, Any]:
    if isinstance(asked, int):
        return asked, default.resize
    if "shortest_edge" in asked:
        return int(asked["shortest_edge"]), "shortest"
    if asked["height"] != asked["width"]:
        raise ValueError(f"images of {asked['height']} x {asked['width']} px, not square")
    # Height and width together mean that both sides are resized: the aspect ratio is lost.
    return int(asked["height"]), "squash"
