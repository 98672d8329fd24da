"""Checkpoints of open_clip, and of OpenAI's own code.

The image tower is a timm ViT (BiomedCLIP), the package's own ViT or CLIP's ResNet; the text tower
is a Hugging Face BERT or CLIP's. Which, the keys of the weight file tell. Every file is taken from
the folder; no name inside a configuration is ever looked up on the network.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, PositiveFloat

from ogkd.backbones._bert import BertConfigFile, BertTower, derive_bert_config
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
    tower_keys,
)
from ogkd.backbones._resnet import ResNetSpec, ResNetTower
from ogkd.backbones._text import TextSpec, TextTower
from ogkd.backbones._tokenizer import Tokenizer, bert_tokenizer, clean_text, folder_tokenizer
from ogkd.backbones._towers import Towers, TowersBackbone
from ogkd.backbones._vit import ImageTower, VisionSpec
from ogkd.errors import BackboneError
from ogkd.images.transforms import CLIP_MEAN, CLIP_STD, Preprocessing

_CONFIG = "open_clip_config.json"
_NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch\d+_(?:\d+|dinov2)(?:_in21k)?")
_TRUNK = "visual.trunk."
_WORDS = "embeddings.word_embeddings.weight"
# Positions (0, 1, 2, ...) and masks, which older versions saved; sizes, in OpenAI's archives; and
# a constant that a sigmoid-trained model adds to all logits, which cancels in a softmax.
_IGNORED = (
    *("*.embeddings.position_ids", "logit_bias", "*.num_batches_tracked", "attn_mask"),
    *("text.attn_mask", "input_resolution", "context_length", "vocab_size"),
)


def _none_is(word: str) -> BeforeValidator:
    # open_clip sometimes writes null or "" for a default.
    return BeforeValidator(lambda value: word if value in (None, "") else value)


def _one_side(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return value[0]
    return value


class VisionConfig(FileRecord):
    timm_model_name: str = ""
    timm_pool: Annotated[Literal["default", "avg", "token"], _none_is("default")] = "avg"
    # "trunk": open_clip leaves the projection to timm's own classifier layer.
    timm_proj: Annotated[Literal["linear", "mlp", "none", "trunk"], _none_is("trunk")] = "linear"
    timm_proj_bias: bool = False
    image_size: Annotated[Size, BeforeValidator(_one_side)] = 224
    # Of the package's own ViT; its sizes are those of the weights.
    head_width: Size = 64
    pool_type: Literal["tok"] = "tok"
    final_ln_after_pool: Literal[False] = False
    pos_embed_type: Literal["learnable"] = "learnable"
    norm_kwargs: None = None
    act_kwargs: None = None


class TextConfig(FileRecord):
    hf_proj_type: Annotated[Literal["linear", "mlp", "none"], _none_is("none")] = "mlp"
    hf_pooler_type: Annotated[
        Literal["cls_last_hidden_state_pooler", "cls_pooler", "mean_pooler"],
        _none_is("cls_pooler"),
    ] = "mean_pooler"
    context_length: Size = 77
    tokenizer_mode: Annotated[Literal["plain"], _none_is("plain")] = "plain"
    tokenizer_kwargs: dict[Literal["clean"], Literal["whitespace"]] | None = None
    # Of the package's own transformer; its other sizes are those of the weights.
    heads: Size | None = None
    pool_type: Literal["argmax"] = "argmax"
    no_causal_mask: Literal[False] = False
    norm_kwargs: None = None
    act_kwargs: None = None


class OpenClipConfig(FileRecord):
    embed_dim: Size | None = None
    quick_gelu: bool = False
    vision_cfg: VisionConfig = VisionConfig()
    text_cfg: TextConfig = TextConfig()

    @property
    def act(self) -> str:
        """The activation of the package's own towers; timm's and BERT's have theirs."""
        return "quick_gelu" if self.quick_gelu else "gelu"


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


class Part(NamedTuple):
    """One tower without weights, the keys that fill it, and what of it the digest covers."""

    tower: Any
    keys: dict[str, str]
    identity: dict[str, Any]


def read_open_clip_config(folder: Path) -> tuple[OpenClipConfig, PreprocessConfig]:
    """Read `open_clip_config.json`: the model, and how its images are prepared."""
    path = folder / _CONFIG
    if not path.is_file():
        raise BackboneError(
            f"{folder} has no {_CONFIG}, and weights do not tell their activation. Write one: "
            '{"model_cfg": {"quick_gelu": true}} for a model made from OpenAI\'s code or weights, '
            "else false."
        )
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


def _timm_part(config: OpenClipConfig, folder: Path, weights: Weights) -> Part:
    vision = config.vision_cfg
    spec = _timm_spec(config, _read_timm_config(folder, vision.timm_model_name), weights)
    head = {layouts("open_clip")["heads"].get(vision.timm_proj, ""): "image.head"}
    same = "width depth heads patch image_size grid layer_scale qkv_bias late_norm pool embed_dim"
    identity = {name: getattr(spec, name) for name in same.split()} | {
        "mlp_ratio": spec.inner // spec.width,
        "proj": vision.timm_proj,
        "proj_bias": vision.timm_proj_bias,
    }
    return Part(ImageTower(spec), tower_keys("timm", _TRUNK[:-1], "image") | head, identity)


def _timm_spec(config: OpenClipConfig, timm: TimmConfigFile, weights: Weights) -> VisionSpec:
    """Derive the architecture from the shapes of the weights, and from names."""
    vision, args = config.vision_cfg, timm.model_args
    if not (match := _NAME.fullmatch(timm.architecture)):
        raise BackboneError(
            f"The image tower {timm.architecture} is not one of timm's plain vision transformers."
        )
    width, depth, heads = layouts("open_clip")["sizes"][match[1]]
    width, heads = args.embed_dim or width, args.num_heads or heads
    if vision.timm_proj == "none" and width != config.embed_dim:
        raise _not_shared("image", width, config.embed_dim)
    pool = args.global_pool if vision.timm_pool == "default" else vision.timm_pool
    spec = VisionSpec(
        width=width,
        depth=args.depth or depth,
        heads=heads,
        inner=width * (args.mlp_ratio or 4),
        patch=weights.shape(f"{_TRUNK}patch_embed.proj.weight", axes=4)[-1],
        image_size=vision.image_size,
        embed_dim=_shared_width(config),
        pool=pool,
        proj="linear" if vision.timm_proj == "trunk" else vision.timm_proj,
        proj_bias=vision.timm_proj_bias or vision.timm_proj == "trunk",
        late_norm=f"{_TRUNK}fc_norm.weight" in weights.tensors,
        qkv_bias=any(key.endswith(".attn.qkv.bias") for key in weights.tensors),
        layer_scale=any(key.endswith(".ls1.gamma") for key in weights.tensors),
    )
    _check_positions(weights, weights.shape(f"{_TRUNK}pos_embed", axes=3)[1], spec)
    return spec


def _check_positions(weights: Weights, positions: int, spec: VisionSpec | ResNetSpec) -> None:
    if positions != spec.grid**2 + 1:
        raise BackboneError(
            f"{weights.file} has {positions} position embeddings, but image_size "
            f"{spec.image_size} in {_CONFIG} needs {spec.grid**2 + 1}."
        )


def _shared_width(config: OpenClipConfig) -> int:
    if config.embed_dim is None:
        raise BackboneError(f"{_CONFIG} has no embed_dim, which a timm tower needs.")
    return config.embed_dim


def _not_shared(tower: str, width: int, embed_dim: int | None) -> BackboneError:
    return BackboneError(f"The {tower} tower is {width} wide, but embed_dim is {embed_dim}.")


def _vit_part(config: OpenClipConfig, weights: Weights) -> Part:
    """OpenAI's ViT, which is open_clip's own."""
    vision = config.vision_cfg
    width, _, _, patch = weights.shape("visual.conv1.weight", axes=4)
    positions = weights.shape("visual.positional_embedding", axes=2)[0]
    spec = VisionSpec(
        width=width,
        depth=weights.count("visual.transformer.resblocks"),
        heads=max(1, width // vision.head_width),
        inner=weights.shape("visual.transformer.resblocks.0.mlp.c_fc.weight", axes=2)[0],
        patch=patch,
        image_size=_image_size(config, patch * math.isqrt(max(0, positions - 1))),
        embed_dim=weights.shape("visual.proj", axes=2)[1],
        act=config.act,
        eps=1e-5,
        patch_bias=False,
        early_norm=True,
    )
    _check_positions(weights, positions, spec)
    blocks = tower_keys("resblocks", "visual.transformer.resblocks.*", "image.blocks.*")
    return Part(ImageTower(spec), tower_keys("vit", "visual", "image") | blocks, asdict(spec))


def _image_size(config: OpenClipConfig, derived: int) -> int:
    """The size in the configuration if it names one, else what the positions make."""
    vision = config.vision_cfg
    return vision.image_size if "image_size" in vision.model_fields_set else derived


def clip_resnet(weights: Weights, prefix: str, image_size: int, heads: int) -> ResNetTower:
    """CLIP's ResNet, whose sizes are those of the weights below `prefix`."""
    channels = weights.shape(f"{prefix}attnpool.q_proj.weight", axes=2)[0]
    spec = ResNetSpec(
        width=channels // 32,
        depths=tuple(weights.count(f"{prefix}layer{stage}") for stage in (1, 2, 3, 4)),
        image_size=image_size,
        embed_dim=weights.shape(f"{prefix}attnpool.c_proj.weight", axes=2)[0],
        head="attention",
        heads=heads or max(1, channels // 64),
        pools=True,
    )
    positions = weights.shape(f"{prefix}attnpool.positional_embedding", axes=2)[0]
    _check_positions(weights, positions, spec)
    return ResNetTower(spec)


def _resnet_part(config: OpenClipConfig, weights: Weights) -> Part:
    positions = weights.shape("visual.attnpool.positional_embedding", axes=2)[0]
    size = _image_size(config, 32 * math.isqrt(max(0, positions - 1)))
    tower = clip_resnet(weights, "visual.", size, 0)
    return Part(tower, tower_keys("resnet", "visual", "image"), asdict(tower.spec))


def _image_part(config: OpenClipConfig, folder: Path, weights: Weights) -> Part:
    keys = weights.tensors
    if any(key.startswith(_TRUNK) for key in keys) or config.vision_cfg.timm_model_name:
        return _timm_part(config, folder, weights)
    if any(key.startswith("visual.attnpool.") for key in keys):
        return _resnet_part(config, weights)
    return _vit_part(config, weights)


def _bert_part(
    config: OpenClipConfig, folder: Path, weights: Weights, prefix: str, width: int
) -> tuple[Part, Tokenizer]:
    text = config.text_cfg
    bert = read_bert_config(folder) or derive_bert_config(weights, f"{prefix}.transformer.")
    tokenizer = bert_tokenizer(folder, rows=bert.vocab_size)
    if text.context_length > bert.max_position_embeddings:
        raise BackboneError(
            f"{folder}: context_length {text.context_length} is more than the text tower's "
            f"{bert.max_position_embeddings} positions."
        )
    if text.hf_proj_type == "none" and bert.hidden_size != width:
        raise _not_shared("text", bert.hidden_size, width)
    tower = BertTower(bert, width, pooling=text.hf_pooler_type, proj=text.hf_proj_type)
    keys = {f"{prefix}.transformer": "text.bert", f"{prefix}.proj": "text.proj"}
    head = {"hf_proj_type", "hf_pooler_type", "context_length"}
    identity = {
        "text": bert.model_dump(mode="json"),
        "text_head": text.model_dump(mode="json", include=head),
    }
    return Part(tower, keys, identity), tokenizer


def _text_part(
    config: OpenClipConfig, folder: Path, weights: Weights, prefix: str, width: int
) -> tuple[Part, Tokenizer]:
    """OpenAI's text tower, which is open_clip's own."""
    rows = weights.shape(f"{prefix}token_embedding.weight", axes=2)[0]
    tokenizer = folder_tokenizer(folder, rows=rows, pad_id=0, prepare=clean_text)
    if not tokenizer.trailing:
        raise BackboneError(f"The tokenizer in {folder} does not end texts.")
    end, heads = tokenizer.trailing[-1], config.text_cfg.heads
    spec, keys = text_spec(weights, prefix, act=config.act, end=end, heads=heads)
    if spec.embed_dim != width:
        raise _not_shared("text", spec.embed_dim, width)
    return Part(TextTower(spec), keys, {"text": asdict(spec)}), tokenizer


def text_spec(
    weights: Weights, prefix: str, *, act: str, heads: int | None = None, **options: Any
) -> tuple[TextSpec, dict[str, str]]:
    """OpenAI's text tower, whose sizes are those of the weights below `prefix`; and its keys."""
    rows, width = weights.shape(f"{prefix}token_embedding.weight", axes=2)
    blocks = f"{prefix}transformer.resblocks"
    spec = TextSpec(
        width=width,
        depth=weights.count(blocks),
        heads=heads or max(1, width // 64),
        inner=weights.shape(f"{blocks}.0.mlp.c_fc.weight", axes=2)[0],
        vocabulary=rows,
        positions=weights.shape(f"{prefix}positional_embedding", axes=2)[0],
        embed_dim=weights.shape(f"{prefix}text_projection", axes=2)[1],
        act=act,
        eps=1e-5,
        dropout=0.0,
        **options,
    )
    keys = tower_keys("text", prefix.removesuffix("."), "text")
    return spec, keys | tower_keys("resblocks", f"{blocks}.*", "text.blocks.*")


def load_open_clip(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> TowersBackbone:
    """Load a folder with `open_clip_config.json`, a weight file and a tokenizer.

    `weights` replaces the folder's own weight file.
    """
    config, preprocess = read_open_clip_config(folder)
    stored = read_weights(weights or find_weights(folder, "open_clip"))
    bert = next((key for key in stored.tensors if key.endswith(f".transformer.{_WORDS}")), None)
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        image = _image_part(config, folder, stored)
        width = config.embed_dim or image.tower.spec.embed_dim
        if bert is not None:
            prefix = bert.removesuffix(f".transformer.{_WORDS}")
            text, tokenizer = _bert_part(config, folder, stored, prefix, width)
        else:
            prefix = "text." if "text.token_embedding.weight" in stored.tensors else ""
            text, tokenizer = _text_part(config, folder, stored, prefix, width)
        model = Towers(image.tower, text.tower)
    context = config.text_cfg.context_length if bert else text.tower.spec.positions
    table = key_table(model, image.keys | text.keys | {"logit_scale": "logit_scale"})
    matrices = ("visual.proj", f"{prefix}text_projection")
    kept = assign_weights(model, stored, table, ignored=_IGNORED, transposed=matrices)
    preprocessing = Preprocessing(
        size=image.tower.spec.image_size,
        mean=preprocess.mean,
        std=preprocess.std,
        # "random" is for training; open_clip evaluates with bicubic.
        interpolation="bilinear" if preprocess.interpolation == "bilinear" else "bicubic",
        resize=preprocess.resize_mode,
    )
    # Addresses of cached features depend on every letter.
    identity = {"vision": image.identity, **text.identity}
    parts = {
        "model": json.dumps(identity, sort_keys=True),
        "preprocessing": json.dumps(preprocessing.identity(), sort_keys=True),
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
        stored=kept,
    )
