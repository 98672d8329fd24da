"""Checkpoints in open_clip's folder format: a timm ViT and a Hugging Face BERT.

BiomedCLIP and its relatives. Every file is taken from the folder; no name inside a
configuration is ever looked up on the network.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveFloat

from ogkd.backbones._bert import BERT_KEYS, BertConfigFile, BertTower, derive_bert_config
from ogkd.backbones._folder import (
    FileRecord,
    Size,
    Weights,
    assign_weights,
    backbone_digest,
    find_weights,
    key_table,
    layouts,
    parse_record,
    read_json,
    read_weights,
)
from ogkd.backbones._tokenizer import bert_tokenizer
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.errors import BackboneError
from ogkd.images.transforms import CLIP_MEAN, CLIP_STD, Preprocessing

_CONFIG = "open_clip_config.json"
_NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch\d+_(?:\d+|dinov2)(?:_in21k)?")
_TRUNK = "visual.trunk."
# Positions (0, 1, 2, ...), which older versions of transformers saved; and a constant that a
# sigmoid-trained model adds to all logits, which cancels in a softmax.
_IGNORED = (f"{BERT_KEYS}.embeddings.position_ids", "logit_bias")


def _none_is(word: str) -> BeforeValidator:
    # open_clip sometimes writes null or "" for a default.
    return BeforeValidator(lambda value: word if value in (None, "") else value)


def _one_side(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return value[0]
    return value


class VisionConfig(FileRecord):
    timm_model_name: str
    timm_pool: Annotated[Literal["default", "avg", "token"], _none_is("default")] = "avg"
    # "trunk": open_clip leaves the projection to timm's own classifier layer.
    timm_proj: Annotated[Literal["linear", "mlp", "none", "trunk"], _none_is("trunk")] = "linear"
    timm_proj_bias: bool = False
    image_size: Annotated[Size, BeforeValidator(_one_side)] = 224


class TextConfig(FileRecord):
    hf_model_name: str
    hf_proj_type: Annotated[Literal["linear", "mlp", "none"], _none_is("none")] = "mlp"
    hf_pooler_type: Annotated[
        Literal["cls_last_hidden_state_pooler", "cls_pooler", "mean_pooler"],
        _none_is("cls_pooler"),
    ] = "mean_pooler"
    context_length: Size = 77
    tokenizer_mode: Annotated[Literal["plain"], _none_is("plain")] = "plain"
    tokenizer_kwargs: dict[Literal["clean"], Literal["whitespace"]] | None = None


class OpenClipConfig(FileRecord):
    embed_dim: Size
    vision_cfg: VisionConfig
    text_cfg: TextConfig


class PreprocessConfig(FileRecord):
    mode: Literal["RGB"] = "RGB"
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = CLIP_STD
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    resize_mode: Literal["shortest", "squash"] = "shortest"


class _TimmArgs(BaseModel):
    # Any other argument changes the network in a way that this loader does not support.
    model_config = ConfigDict(extra="forbid", frozen=True)
    img_size: Any = None
    patch_size: Any = None
    embed_dim: Size | None = None
    depth: Size | None = None
    num_heads: Size | None = None
    mlp_ratio: Size | None = None
    init_values: float | None = None
    qkv_bias: bool | None = None
    class_token: Literal[True] = True
    global_pool: Literal["token", "avg"] = "token"
    num_classes: int | None = None
    fc_norm: bool | None = None
    dynamic_img_size: bool | None = None


class TimmConfigFile(FileRecord):
    architecture: str
    model_args: _TimmArgs = _TimmArgs()


def read_open_clip_config(folder: Path) -> tuple[OpenClipConfig, PreprocessConfig]:
    """Read `open_clip_config.json`: the model, and how its images are prepared."""
    path = folder / _CONFIG
    raw = read_json(path)
    preprocess = {k: v for k, v in (raw.get("preprocess_cfg") or {}).items() if v is not None}
    config = parse_record(OpenClipConfig, raw.get("model_cfg"), path)
    return config, parse_record(PreprocessConfig, preprocess, path)


def read_bert_config(folder: Path) -> BertConfigFile | None:
    """Read `config.json`; None if there is no such file."""
    path = folder / "config.json"
    return parse_record(BertConfigFile, read_json(path), path) if path.exists() else None


def _read_timm_config(folder: Path, name: str) -> TimmConfigFile:
    """Read timm's configuration from `timm/config.json`, or else from the model's name."""
    if (path := folder / "timm" / "config.json").is_file():
        return parse_record(TimmConfigFile, read_json(path), path)
    # "hf-hub:timm/vit_base_patch16_224.augreg" names the same network as "vit_base_patch16_224".
    return TimmConfigFile(architecture=re.split(r"[:/]", name)[-1].split(".")[0])


def vision_spec(config: OpenClipConfig, timm: TimmConfigFile, weights: Weights) -> VisionSpec:
    """Derive the architecture from the shapes of the weights, and from names."""
    vision, args = config.vision_cfg, timm.model_args
    if not (match := _NAME.fullmatch(timm.architecture)):
        raise BackboneError(
            f"The image tower {timm.architecture} is not one of timm's plain vision transformers."
        )
    width, depth, heads = layouts("open_clip")["sizes"][match[1]]
    width, heads = args.embed_dim or width, args.num_heads or heads
    pool = args.global_pool if vision.timm_pool == "default" else vision.timm_pool
    spec = VisionSpec(
        width=width,
        depth=args.depth or depth,
        heads=heads,
        inner=width * (args.mlp_ratio or 4),
        patch=weights.shape(f"{_TRUNK}patch_embed.proj.weight", axes=4)[-1],
        image_size=vision.image_size,
        embed_dim=config.embed_dim,
        pool=pool,
        proj="linear" if vision.timm_proj == "trunk" else vision.timm_proj,
        proj_bias=vision.timm_proj_bias or vision.timm_proj == "trunk",
        late_norm=f"{_TRUNK}fc_norm.weight" in weights.tensors,
        qkv_bias=any(key.endswith(".attn.qkv.bias") for key in weights.tensors),
        layer_scale=any(key.endswith(".ls1.gamma") for key in weights.tensors),
    )
    positions = weights.shape(f"{_TRUNK}pos_embed", axes=3)[1]
    if positions != spec.grid**2 + 1:
        raise BackboneError(
            f"{weights.file} has {positions} position embeddings, but image_size "
            f"{vision.image_size} in {_CONFIG} needs {spec.grid**2 + 1}."
        )
    return spec


def open_clip_towers(
    config: OpenClipConfig, spec: VisionSpec, bert: BertConfigFile
) -> tuple[Towers, dict[str, tuple[str, ...]]]:
    """The model without weights, and which keys of a file fill it."""
    text, vision = config.text_cfg, config.vision_cfg
    towers = {
        "image": (vision.timm_proj, spec.width),
        "text": (text.hf_proj_type, bert.hidden_size),
    }
    for tower, (proj, width) in towers.items():
        if proj == "none" and width != config.embed_dim:
            raise BackboneError(
                f"The {tower} tower is {width} wide, but embed_dim is {config.embed_dim}."
            )
    model = Towers(
        ImageTower(spec),
        BertTower(bert, config.embed_dim, pooling=text.hf_pooler_type, proj=text.hf_proj_type),
    )
    layout = layouts("open_clip")
    keys = layout["keys"] | {layout["heads"].get(vision.timm_proj, ""): "image.head"}
    return model, dict(key_table(model, keys))


def load_open_clip(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> TowersBackbone:
    """Load a folder with `open_clip_config.json`, a weight file and a tokenizer.

    `weights` replaces the folder's own weight file.
    """
    config, preprocess = read_open_clip_config(folder)
    stored = read_weights(weights or find_weights(folder, "open_clip"))
    spec = vision_spec(config, _read_timm_config(folder, config.vision_cfg.timm_model_name), stored)
    bert = read_bert_config(folder) or derive_bert_config(stored)
    context = config.text_cfg.context_length
    tokenizer = bert_tokenizer(folder, rows=bert.vocab_size)
    if context > bert.max_position_embeddings:
        raise BackboneError(
            f"{folder}: context_length {context} is more than the text tower's "
            f"{bert.max_position_embeddings} positions."
        )
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        model, table = open_clip_towers(config, spec, bert)
    assign_weights(model, stored, table, ignored=_IGNORED)
    preprocessing = Preprocessing(
        size=spec.image_size,
        mean=preprocess.mean,
        std=preprocess.std,
        # "random" is for training; open_clip evaluates with bicubic.
        interpolation="bilinear" if preprocess.interpolation == "bilinear" else "bicubic",
        resize=preprocess.resize_mode,
    )
    parts = {
        "model": json.dumps(_identity(config, spec, bert), sort_keys=True),
        "preprocessing": json.dumps(asdict(preprocessing), sort_keys=True),
        "tokenizer": tokenizer.digest,
    }
    return TowersBackbone(
        model,
        tokenizer,
        preprocessing,
        name=name,
        digest=backbone_digest(stored.file, parts),
        context_length=context,
        device=device,
    )


def _identity(config: OpenClipConfig, spec: VisionSpec, bert: BertConfigFile) -> dict[str, Any]:
    """The model as the digest sees it: addresses of cached features depend on every letter."""
    same = "width depth heads patch image_size grid layer_scale qkv_bias late_norm pool embed_dim"
    vision = {name: getattr(spec, name) for name in same.split()} | {
        "mlp_ratio": spec.inner // spec.width,
        "proj": config.vision_cfg.timm_proj,
        "proj_bias": config.vision_cfg.timm_proj_bias,
    }
    head = {"hf_proj_type", "hf_pooler_type", "context_length"}
    return {
        "vision": vision,
        "text": bert.model_dump(mode="json"),
        "text_head": config.text_cfg.model_dump(mode="json", include=head),
    }
