"""CLIP's two towers under transformers' names, without transformers.

Importing CLIPModel takes longer than encoding an image. The layers are run one by one in
_transformers_families.py, because a learned context takes the place of words in the text tower.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from pydantic import BaseModel, PositiveInt, ValidationError, model_validator
from torch import Tensor, nn

from ogkd.backbones._folder import Weights, assign_weights
from ogkd.backbones._towers import empty_embedding, tree
from ogkd.errors import BackboneError

# Positions (0, 1, 2, ...), which older versions of transformers saved.
_IGNORED = tuple(f"{tower}.embeddings.position_ids" for tower in ("text_model", "vision_model"))


class _QuickGelu(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values * torch.sigmoid(1.702 * values)


_TANH = partial(nn.GELU, approximate="tanh")
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "quick_gelu": _QuickGelu,
    "gelu": nn.GELU,
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
}


class _Tower(BaseModel):
    """Fields that both towers have; transformers leaves its defaults out of config.json."""

    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    num_attention_heads: PositiveInt
    num_hidden_layers: PositiveInt = 12
    hidden_act: str = "quick_gelu"
    layer_norm_eps: float = 1e-5
    attention_dropout: float = 0.0

    @model_validator(mode="after")
    def _possible(self) -> _Tower:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(f"{self.hidden_size} is not a multiple of the attention heads")
        if self.hidden_act not in _ACTIVATIONS:
            raise ValueError(f"hidden_act {self.hidden_act} is not one of {[*_ACTIVATIONS]}")
        return self


class TextConfig(_Tower):
    """The text tower, by default OpenAI's."""

    hidden_size: PositiveInt = 512
    intermediate_size: PositiveInt = 2048
    num_attention_heads: PositiveInt = 8
    vocab_size: PositiveInt = 49408
    max_position_embeddings: PositiveInt = 77
    pad_token_id: int | None = 1
    eos_token_id: int | None = 49407


class VisionConfig(_Tower):
    """The image tower, by default OpenAI's."""

    hidden_size: PositiveInt = 768
    intermediate_size: PositiveInt = 3072
    num_attention_heads: PositiveInt = 12
    image_size: PositiveInt = 224
    patch_size: PositiveInt = 32


class ClipConfig(BaseModel):
    """config.json of a CLIPModel."""

    projection_dim: PositiveInt = 512
    text_config: TextConfig = TextConfig()
    vision_config: VisionConfig = VisionConfig()


def _encoder(config: _Tower) -> Any:
    width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps

    def layer() -> Any:
        names = ("q_proj", "k_proj", "v_proj", "out_proj")
        attention = tree(**{name: nn.Linear(width, width) for name in names})
        attention.num_heads = config.num_attention_heads
        mlp = OrderedDict(
            fc1=nn.Linear(width, inner),
            activation_fn=_ACTIVATIONS[config.hidden_act](),
            fc2=nn.Linear(inner, width),
        )
        return tree(
            self_attn=attention,
            layer_norm1=nn.LayerNorm(width, eps),
            mlp=nn.Sequential(mlp),
            layer_norm2=nn.LayerNorm(width, eps),
        )

    return tree(layers=nn.ModuleList(layer() for _ in range(config.num_hidden_layers)))


class _TextEmbeddings(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.token_embedding = empty_embedding(config.vocab_size, config.hidden_size)
        self.position_embedding = empty_embedding(
            config.max_position_embeddings, config.hidden_size
        )

    def forward(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds + self.position_embedding.weight[: inputs_embeds.shape[1]]


class _Text(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.embeddings = _TextEmbeddings(config)
        self.encoder = _encoder(config)
        self.final_layer_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.token_embedding


class _ImageEmbeddings(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        width, patch = config.hidden_size, config.patch_size
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.patch_embedding = nn.Conv2d(3, width, patch, stride=patch, bias=False)
        self.position_embedding = empty_embedding((config.image_size // patch) ** 2 + 1, width)

    def forward(self, pixels: Tensor) -> Tensor:
        patches = self.patch_embedding(pixels).flatten(2).transpose(1, 2)
        first = self.class_embedding.expand(pixels.shape[0], 1, -1)
        return torch.cat([first, patches], dim=1) + self.position_embedding.weight


def _vision(config: VisionConfig) -> Any:
    width, eps = config.hidden_size, config.layer_norm_eps
    return tree(
        embeddings=_ImageEmbeddings(config),
        pre_layrnorm=nn.LayerNorm(width, eps),
        encoder=_encoder(config),
        post_layernorm=nn.LayerNorm(width, eps),
    )


class Clip(nn.Module):
    """The layers of a CLIPModel."""

    def __init__(self, config: ClipConfig) -> None:
        super().__init__()
        self.config = config
        text, vision, size = config.text_config, config.vision_config, config.projection_dim
        self.text_model, self.vision_model = _Text(text), _vision(vision)
        self.visual_projection = nn.Linear(vision.hidden_size, size, bias=False)
        self.text_projection = nn.Linear(text.hidden_size, size, bias=False)
        self.logit_scale = nn.Parameter(torch.empty(()))


def load_clip_model(config: Mapping[str, Any], weights: Weights) -> Clip:
    """Build the model in float32 from exactly these tensors."""
    towers = {
        # Old checkpoints have the same thing twice; the second one counts.
        name: {**(config.get(name) or {}), **(config.get(f"{name}_dict") or {})}
        for name in ("text_config", "vision_config")
    }
    try:
        read = ClipConfig.model_validate({**config, **towers})
    except (ValidationError, TypeError) as error:
        raise BackboneError(
            f"The config.json for {weights.file} describes no CLIPModel: {error}."
        ) from error
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        model = Clip(read)
    table = {key: (key,) for key, _ in model.named_parameters()}
    assign_weights(model, weights, table, ignored=_IGNORED)
    return model
