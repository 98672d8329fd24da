"""Published models whose weights have a layout of their own: one table each in layouts.toml.

The towers are those of the other formats. Sizes are those of the weights, so a folder needs the
weight files and the text tower's tokenizer, no configuration.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ogkd.backbones._bert import BertConfigFile, BertTower, derive_bert_config
from ogkd.backbones._folder import (
    Weights,
    assign_weights,
    backbone_digest,
    detect_format,
    key_table,
    known_sha256,
    layouts,
    parse_record,
    peek,
    read_weights,
    tower_keys,
    weight_files,
)
from ogkd.backbones._resnet import ResNetSpec, ResNetTower
from ogkd.backbones._text import TextTower
from ogkd.backbones._tokenizer import Tokenizer, bert_tokenizer, folder_tokenizer
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.backbones.open_clip_format import clip_resnet, text_spec
from ogkd.images.transforms import Preprocessing


def load_checkpoint(folder: Path, *, name: str, device: torch.device) -> TowersBackbone:
    """Load a folder whose weights have one of the layouts, offline and strictly."""
    kind = str(detect_format(folder))
    layout = layouts("checkpoints")[kind]
    files, weights = _read_all(folder)
    if "scale" in layout:
        scale = torch.tensor(layout["scale"])
        weights = Weights(weights.file, {"logit_scale": scale, **weights.tensors})
    prepared: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in layout["preprocessing"].items()
    }
    if "encoder.backbone_to_vit.weight" in weights.tensors:
        prepared["size"] = 448  # BioViL-T
    preprocessing = Preprocessing(**prepared)
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        image, image_keys = _image_tower(layout, weights, preprocessing.size)
        text, text_keys, tokenizer = _text_tower(layout, folder, weights, image.spec.embed_dim)
        model = Towers(image, text)
    keys = image_keys | text_keys | layout["keys"] | {"logit_scale": "logit_scale"}
    table, transposed = key_table(model, keys), layout.get("transposed", ())
    stored = assign_weights(model, weights, table, ignored=layout["ignored"], transposed=transposed)
    most = math.log(layout.get("most", math.inf))
    model.logit_scale = torch.nn.Parameter(model.logit_scale.detach().clamp(max=most))
    first, *others = files
    parts = {
        "format": kind,
        "layout": json.dumps(layout, sort_keys=True),
        "preprocessing": repr(preprocessing),
        "text": repr(text.spec if isinstance(text, TextTower) else text.bert.config),
        "tokenizer": tokenizer.digest,
        **{file.stem: known_sha256(file) for file in others},
    }
    return TowersBackbone(
        model,
        tokenizer,
        preprocessing,
        name=name,
        digest=backbone_digest(first, parts),
        context_length=layout["context"],
        device=device,
        stored=stored,
    )


def _read_all(folder: Path) -> tuple[list[Path], Weights]:
    """The weight files of a folder that add to those before, and all their tensors."""
    files: list[Path] = []
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        state = read_weights(path).tensors
        if not state.keys() <= tensors.keys():
            files.append(path)
            tensors = {**state, **tensors}
    return files, Weights(files[0], tensors)


def _image_tower(
    layout: dict[str, Any], weights: Weights, size: int
) -> tuple[ImageTower | ResNetTower, dict[str, str]]:
    table = layout["image"]
    kind, prefix, options = table["kind"], _dotted(table["prefix"]), table["options"]
    keys = tower_keys("timm" if kind == "timm" else "resnet", table["prefix"], "image")
    if kind == "clip_resnet":
        return clip_resnet(weights, prefix, size, **options), keys
    d = _shared_width(layout, weights)
    if kind == "timm":
        width, _, _, patch = weights.shape(f"{prefix}patch_embed.proj.weight", axes=4)
        vit = VisionSpec(
            width=width,
            depth=weights.count(f"{prefix}blocks"),
            heads=max(1, width // 64),
            inner=weights.shape(f"{prefix}blocks.0.mlp.fc1.weight", axes=2)[0],
            patch=patch,
            image_size=size,
            embed_dim=d,
            proj_inner=d,
            layer_scale=any(key.endswith(".ls1.gamma") for key in weights.tensors),
            **options,
        )
        return ImageTower(vit), keys
    reduce = weights.tensors.get("encoder.backbone_to_vit.weight")
    spec = ResNetSpec(
        width=weights.shape(f"{prefix}conv1.weight", axes=4)[0],
        depths=tuple(weights.count(f"{prefix}layer{stage}") for stage in (1, 2, 3, 4)),
        image_size=size,
        embed_dim=d,
        reduced=0 if reduce is None else reduce.shape[0],
        **options,
    )
    return ResNetTower(spec), keys


def _dotted(prefix: str) -> str:
    return f"{prefix}." if prefix else ""


def _shared_width(layout: dict[str, Any], weights: Weights) -> int:
    """The number of outputs of the image tower's last matrix, or convolution of one pixel."""
    last = ("image.head.fc2", "image.head.weight")
    (name,) = (key for key, target in layout["keys"].items() if target in last)
    key = name if name in weights.tensors else f"{name}.weight"
    is_convolution = layout["image"]["options"].get("head") == "mlp"
    return weights.shape(key, axes=4 if is_convolution else 2)[0]


def _text_tower(
    layout: dict[str, Any], folder: Path, weights: Weights, width: int
) -> tuple[BertTower | TextTower, dict[str, str], Tokenizer]:
    table = layout["text"]
    prefix = _dotted(table["prefix"])
    if "options" in table:
        bert = _bert_config(folder, weights, prefix)
        tokenizer = bert_tokenizer(folder, rows=bert.vocab_size, prepare=str)
        return BertTower(bert, width, **table["options"]), {table["prefix"]: "text.bert"}, tokenizer
    rows = weights.shape(f"{prefix}token_embedding.weight", axes=2)[0]
    tokenizer = folder_tokenizer(folder, rows=rows, pad_id=0)
    spec, keys = text_spec(weights, prefix, act="gelu", summary_pad=tokenizer.pad_id)
    return TextTower(spec), keys, tokenizer


def _bert_config(folder: Path, weights: Weights, prefix: str) -> BertConfigFile:
    """BERT's configuration in config.json, or a part of it, or else by its weights' shapes."""
    path = folder / "config.json"
    for raw in (peek(path, "text_config"), peek(path)):
        if isinstance(raw, Mapping) and "hidden_size" in raw:
            return parse_record(BertConfigFile, {**raw, "model_type": "bert"}, path)
    return derive_bert_config(weights, prefix)
