"""Folders in transformers' format: CLIPModel and SiglipModel, read without transformers."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, PositiveFloat, model_validator

from ogkd.backbones._folder import (
    FileRecord,
    Size,
    assign_weights,
    backbone_digest,
    find_weights,
    key_table,
    layouts,
    parse_record,
    read_json,
    read_weights,
)
from ogkd.backbones._layers import ACTIVATIONS
from ogkd.backbones._text import TextSpec, TextTower
from ogkd.backbones._tokenizer import folder_tokenizer
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_HALF = (0.5, 0.5, 0.5)
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")
# Pillow's numbers
_RESAMPLE: dict[int, Literal["bicubic", "bilinear", "nearest"]] = {
    0: "nearest",
    2: "bilinear",
    3: "bicubic",
}
# Positions (0, 1, 2, ...), which older versions of transformers saved; and SigLIP's constant that
# is the same for all classes and cancels in a softmax.
_IGNORED = (
    *(f"{tower}.embeddings.position_ids" for tower in ("text_model", "vision_model")),
    "logit_bias",
)


class TowerConfig(FileRecord):
    """Fields that both towers have."""

    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_hidden_layers: Size
    hidden_act: str
    layer_norm_eps: float
    attention_dropout: float = 0.0

    @model_validator(mode="after")
    def _possible(self) -> TowerConfig:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.hidden_size} is not a multiple of the attention heads")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act {self.hidden_act} is not one of {[*ACTIVATIONS]}")
        return self


class TextConfig(TowerConfig):
    vocab_size: Size
    max_position_embeddings: Size
    pad_token_id: int | None = 1
    eos_token_id: int | None = 49407
    projection_size: Size | None = None


class VisionConfig(TowerConfig):
    image_size: Size = 224
    patch_size: Size
    vision_use_head: Literal[True] = True


class ModelConfig(FileRecord):
    """config.json of a CLIPModel or a SiglipModel."""

    model_type: Literal["clip", "siglip"]
    projection_dim: Size = 512
    text_config: TextConfig
    vision_config: VisionConfig

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, raw: dict[str, Any]) -> dict[str, Any]:
        defaults = layouts("transformers")["defaults"].get(str(raw.get("model_type")), {})
        towers = {
            # Old checkpoints have the same thing twice; the second one counts.
            name: default | (raw.get(name) or {}) | (raw.get(f"{name}_dict") or {})
            for name, default in defaults.items()
        }
        return raw | towers


def load_transformers(folder: Path, *, name: str, device: torch.device) -> TowersBackbone:
    """Load a CLIPModel or SiglipModel folder, offline and strictly.

    Without a preprocessor_config.json the usual preprocessing of the family is used: CLIP
    resizes the short side and crops, SigLIP resizes both sides.
    """
    path = folder / "config.json"
    raw = read_json(path)
    config = parse_record(ModelConfig, raw, path)
    weights = read_weights(find_weights(folder, "transformers"))
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        model = _towers(config)
    layout = layouts("transformers")
    keys = layout["keys"] | {layout["text_heads"][config.model_type]: "text.proj"}
    stored = assign_weights(model, weights, key_table(model, keys), ignored=_IGNORED)
    text, size = config.text_config, config.vision_config.image_size
    prepare: Callable[[str], str] = str
    if config.model_type == "clip":  # OpenAI CLIP, PubMedCLIP, PLIP, QuiltNet, the built-in model
        usual = Preprocessing(size=size)
    else:  # SigLIP, MedSigLIP
        usual = Preprocessing(size=size, mean=_HALF, std=_HALF, resize="squash")
        prepare = _siglip_preparation(folder)
    tokenizer = folder_tokenizer(
        folder, rows=text.vocab_size, pad_id=text.pad_token_id, prepare=prepare
    )
    preprocessing = _read_preprocessing(folder, usual)
    files = [folder / file for file in _TOKENIZER_FILES]
    parts = {
        "format": "transformers",
        "config": json.dumps(raw, sort_keys=True),
        "preprocessing": repr(preprocessing),
        **{file.name: sha256_file(file) for file in files if file.is_file()},
    }
    backbone = TowersBackbone(
        model,
        tokenizer,
        preprocessing,
        name=name,
        digest=backbone_digest(weights.file, parts),
        context_length=text.max_position_embeddings,
        device=device,
        stored=stored,
    )
    tokens = backbone.tokenize(["a photo"])
    if int(model.text.ends(tokens)) != tokens.ids.shape[1] - 1:
        raise BackboneError(
            f"The tokenizer in {folder} does not end texts with text_config.eos_token_id of "
            "config.json."
        )
    return backbone


def _towers(config: ModelConfig) -> Towers:
    """CLIP: class token and end-of-text token, each through its projection.

    SigLIP: attention pooling of the image, last token of the text. Its image tower has no
    projection to share: patches are its normalised final states, only roughly in the space of the
    pooled feature, as the pooling head has its own weights.
    """
    vision, text, clip = config.vision_config, config.text_config, config.model_type == "clip"
    if not clip and (text.projection_size or text.hidden_size) != vision.hidden_size:
        raise BackboneError(
            f"The SiglipModel in config.json has no shared space: texts are "
            f"{text.projection_size or text.hidden_size} wide, images {vision.hidden_size}."
        )
    width = config.projection_dim if clip else vision.hidden_size
    image = VisionSpec(
        width=vision.hidden_size,
        depth=vision.num_hidden_layers,
        heads=vision.num_attention_heads,
        inner=vision.intermediate_size,
        patch=vision.patch_size,
        image_size=vision.image_size,
        embed_dim=width,
        pool="token" if clip else "attention",
        proj="linear" if clip else "none",
        act=vision.hidden_act,
        eps=vision.layer_norm_eps,
        patch_bias=not clip,
        early_norm=clip,
        whole=True,
    )
    words = TextSpec(
        width=text.hidden_size,
        depth=text.num_hidden_layers,
        heads=text.num_attention_heads,
        inner=text.intermediate_size,
        vocabulary=text.vocab_size,
        positions=text.max_position_embeddings,
        embed_dim=width,
        act=text.hidden_act,
        eps=text.layer_norm_eps,
        dropout=text.attention_dropout,
        end=(text.eos_token_id or 0) if clip else None,
        proj_bias=not clip,
    )
    return Towers(ImageTower(image), TextTower(words))


def _canonical(text: str) -> str:
    """Lower case, no punctuation, single spaces, as SigLIP's tokenizer prepares a text."""
    return re.sub(r"\s+", " ", text.lower().translate(_PUNCTUATION)).strip()


def _siglip_preparation(folder: Path) -> Callable[[str], str]:
    """What the tokenizer's Python class does to a text first; tokenizer.json may not include it."""
    path = folder / "tokenizer_config.json"
    named = read_json(path).get("tokenizer_class") if path.is_file() else None
    # SigLIP 2 uses Gemma's tokenizer and was trained on lower case with punctuation.
    return str.lower if str(named).startswith(("Gemma", "Siglip2")) else _canonical


class PreprocessorFile(FileRecord):
    """preprocessor_config.json, as far as it can be followed exactly."""

    do_resize: Literal[True] = True
    size: int | dict[str, int] | None = None
    resample: Literal[0, 2, 3] | None = None
    do_center_crop: bool | None = None
    crop_size: int | dict[str, int] | None = None
    rescale_factor: Annotated[float, Field(ge=0.999999 / 255, le=1.000001 / 255)] | None = None
    do_normalize: bool = True
    image_mean: tuple[float, float, float] | None = None
    image_std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = None

    def preprocessing(self, default: Preprocessing) -> Preprocessing:
        """What the file changes of the family's default; a ValueError if it cannot be followed."""
        size, resize = default.size, default.resize
        if isinstance(self.size, int):
            size = self.size
        elif self.size is not None and "shortest_edge" in self.size:
            size, resize = self.size["shortest_edge"], "shortest"
        elif self.size is not None:
            # Height and width together mean that both sides are resized: the aspect ratio is lost.
            size, resize = _square(self.size), "squash"
        crops = resize == "shortest" if self.do_center_crop is None else self.do_center_crop
        if crops and _square(self.crop_size or size) != size:
            raise ValueError(f"a resize to {size} px but a crop of {self.crop_size}")
        if resize == "shortest" and not crops:
            raise ValueError("the short side resized but no crop")
        if size != default.size:
            raise ValueError(f"images of {size} px, but the model takes {default.size} px")
        mean, std = self.image_mean or default.mean, self.image_std or default.std
        if not self.do_normalize:
            mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
        how = default.interpolation if self.resample is None else _RESAMPLE[self.resample]
        return replace(default, resize=resize, interpolation=how, mean=mean, std=std)


def _square(size: int | dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    if size.get("height") != size.get("width") or "height" not in size:
        raise ValueError(f"images of {size}, not square")
    return size["height"]


def _read_preprocessing(folder: Path, default: Preprocessing) -> Preprocessing:
    """Translate preprocessor_config.json; `default` if the folder has none."""
    path = folder / "preprocessor_config.json"
    if path.is_file():
        settings = read_json(path)
    else:
        # transformers 5 writes the image processor inside processor_config.json.
        path = folder / "processor_config.json"
        settings = read_json(path).get("image_processor", {}) if path.is_file() else {}
    try:
        return parse_record(PreprocessorFile, settings, path).preprocessing(default)
    except ValueError as error:
        raise BackboneError(f"{path} cannot be followed exactly: {error}.") from error
