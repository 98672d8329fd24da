"""Read the JSON files of an open_clip folder into typed records.

No name in them is ever looked up on the network.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
)

from ogkd.backbones._folder import check_sizes, read_json
from ogkd.errors import BackboneError
from ogkd.images.transforms import CLIP_MEAN, CLIP_STD

Record = TypeVar("Record", bound=BaseModel)
Triple = tuple[float, float, float]
Rate = Annotated[float, Field(ge=0, lt=1)]


def _none_is(word: str) -> BeforeValidator:
    # open_clip sometimes writes null or "" for a default.
    return BeforeValidator(lambda value: word if value in (None, "") else value)


def _one_side(value: Any) -> Any:
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        return value[0]
    return value


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class VisionConfig(_Record):
    timm_model_name: str
    timm_pool: Annotated[Literal["default", "avg", "token"], _none_is("default")] = "avg"
    # "trunk": open_clip leaves the projection to timm's own classifier layer.
    timm_proj: Annotated[Literal["linear", "mlp", "none", "trunk"], _none_is("trunk")] = "linear"
    timm_proj_bias: bool = False
    image_size: Annotated[PositiveInt, BeforeValidator(_one_side)] = 224


class TextConfig(_Record):
    hf_model_name: str
    hf_proj_type: Annotated[Literal["linear", "mlp", "none"], _none_is("none")] = "mlp"
    hf_pooler_type: Annotated[
        Literal["cls_last_hidden_state_pooler", "cls_pooler", "mean_pooler", "max_pooler"],
        _none_is("cls_pooler"),
    ] = "mean_pooler"
    context_length: PositiveInt = 77
    tokenizer_mode: Annotated[Literal["plain"], _none_is("plain")] = "plain"
    tokenizer_kwargs: dict[str, Any] | None = None


class OpenClipConfig(_Record):
    embed_dim: PositiveInt
    vision_cfg: VisionConfig
    text_cfg: TextConfig


class PreprocessConfig(_Record):
    mode: Literal["RGB"] = "RGB"
    mean: Triple = CLIP_MEAN
    std: tuple[PositiveFloat, PositiveFloat, PositiveFloat] = CLIP_STD
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    resize_mode: Literal["shortest", "squash"] = "shortest"


class _TimmArgs(BaseModel):
    # Any other argument changes the network in a way that this loader does not support.
    model_config = ConfigDict(extra="forbid", frozen=True)
    img_size: Any = None
    patch_size: Any = None
    embed_dim: PositiveInt | None = None
    depth: PositiveInt | None = None
    num_heads: PositiveInt | None = None
    mlp_ratio: PositiveInt | None = None  # transformers builds whole ratios only
    init_values: float | None = None
    qkv_bias: bool | None = None
    class_token: Literal[True] = True
    global_pool: Literal["token", "avg"] = "token"
    num_classes: int | None = None
    fc_norm: bool | None = None
    dynamic_img_size: bool | None = None


class TimmConfigFile(_Record):
    architecture: str
    model_args: _TimmArgs = _TimmArgs()


class BertConfigFile(_Record):
    model_type: Literal["bert"] = "bert"
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    max_position_embeddings: PositiveInt = 512
    type_vocab_size: PositiveInt = 2
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu"
    hidden_dropout_prob: Rate = 0.1
    attention_probs_dropout_prob: Rate = 0.1
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


def _token_text(value: Any) -> Any:
    # A token is written as its text, or as an object that describes it.
    return value.get("content") if isinstance(value, dict) else value


Token = Annotated[str, BeforeValidator(_token_text)]


class TokenizerSettings(_Record):
    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    cls_token: Token = "[CLS]"
    sep_token: Token = "[SEP]"
    pad_token: Token = "[PAD]"
    unk_token: Token = "[UNK]"


def read_open_clip_config(folder: Path) -> tuple[OpenClipConfig, PreprocessConfig]:
    """Read `open_clip_config.json`: the model, and how its images are prepared."""
    path = folder / "open_clip_config.json"
    raw = read_json(path)
    model = raw.get("model_cfg", raw)
    preprocess = raw.get("preprocess_cfg") or {}
    if isinstance(preprocess, dict):
        preprocess = {key: value for key, value in preprocess.items() if value is not None}
    return _record(OpenClipConfig, model, path), _record(PreprocessConfig, preprocess, path)


def read_bert_config(folder: Path) -> BertConfigFile | None:
    """Read `config.json`; None if there is no such file."""
    path = folder / "config.json"
    return _record(BertConfigFile, read_json(path), path) if path.exists() else None


def read_timm_config(folder: Path, vision: VisionConfig) -> TimmConfigFile:
    """Read timm's configuration from `timm/config.json`, or else from the model's name."""
    folders = [folder / "timm"]
    if vision.timm_model_name.startswith("local-dir:"):
        folders.append(Path(vision.timm_model_name.removeprefix("local-dir:")))
    for path in (candidate / "config.json" for candidate in folders):
        if path.is_file():
            return _record(TimmConfigFile, read_json(path), path)
    # "hf-hub:timm/vit_base_patch16_224.augreg" names the same network as "vit_base_patch16_224".
    architecture = re.split(r"[:/]", vision.timm_model_name)[-1].split(".")[0]
    return TimmConfigFile(architecture=architecture)


def read_tokenizer_settings(folder: Path) -> TokenizerSettings:
    """Read `special_tokens_map.json`, then `tokenizer_config.json`, which takes precedence."""
    raw: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            raw |= read_json(folder / file)
    # null means that a setting is absent (and for strip_accents, its default).
    raw = {key: value for key, value in raw.items() if value is not None}
    return _record(TokenizerSettings, raw, folder / "tokenizer_config.json")


def _record(kind: type[Record], raw: Any, path: Path) -> Record:
    if isinstance(raw, dict) and kind is not TokenizerSettings:
        check_sizes(raw, path)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:4]
        )
        raise BackboneError(f"{path} is not supported: {problems}.") from error
