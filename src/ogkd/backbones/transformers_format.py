"""Folders in transformers' format: CLIPModel, SiglipModel and VisionTextDualEncoderModel.

`load_transformers` reads a folder without a network. What the three families share is here;
what differs is in _transformers_families.py.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones._folder import (
    backbone_digest,
    find_weights,
    read_json,
    read_preprocessing,
    read_state,
)
from ogkd.backbones._tokenizer import Tokenizer, folder_tokenizer
from ogkd.backbones._weights import load_into_transformers, quiet_transformers
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

FAMILIES = ("clip", "siglip", "vision-text-dual-encoder")
WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")


def load_transformers(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> Backbone:
    """Load a CLIPModel, SiglipModel or VisionTextDualEncoderModel folder, offline and strictly.

    Without a preprocessor_config.json the usual preprocessing of the family is used: CLIP
    resizes the short side and crops, SigLIP and ViT resize both sides.
    """
    from ogkd.backbones import _transformers_families as families

    config = read_json(folder / "config.json", name=name)
    file = weights or find_weights(folder, WEIGHT_FILES, name=name)
    source = ModelFolder(folder, name, device, file, config)
    loaders = dict(
        zip(FAMILIES, (families.load_clip, families.load_siglip, families.load_dual), strict=True)
    )
    family = config.get("model_type")
    if family not in loaders:
        raise BackboneError(
            f"{folder / 'config.json'} has model_type {family!r}. ogkd loads "
            f"{', '.join(FAMILIES)} and folders in open_clip's format (open_clip_config.json)."
        )
    return loaders[family](source)


@dataclass(frozen=True)
class ModelFolder:
    """A model folder: its path, its config.json and the name that the user gave."""

    path: Path
    name: str
    device: torch.device
    weights: Path
    config: dict[str, Any]

    def model(self, config_class: Any, model_class: Any) -> Any:
        """The model in float32, with exactly the stored weights."""
        try:
            with quiet_transformers():
                config = config_class.from_dict(self.config)
        except Exception as error:  # transformers raises many kinds for a bad configuration
            raise BackboneError(
                f"{self.path / 'config.json'} is not a valid {config_class.__name__} ({error}). "
                "Use the config.json that was published with these weights."
            ) from error
        state = read_state(self.weights, name=self.name)
        return load_into_transformers(model_class, config, state, file=self.weights, name=self.name)

    def tokenizer(self, text: Any, prepare: Callable[[str], str] = str) -> Tokenizer:
        """The folder's tokenizer, checked against the text tower's configuration."""
        return folder_tokenizer(
            self.path,
            name=self.name,
            vocabulary=text.vocab_size,
            pad_id=text.pad_token_id,
            prepare=prepare,
        )

    def preprocessing(self, default: Preprocessing) -> Preprocessing:
        """How images are prepared: as the folder says, or else as usual for the family."""
        return read_preprocessing(self.path, default, name=self.name)

    def digest(self, preprocessing: Preprocessing) -> str:
        """A hash of everything that determines the features."""
        files = [self.path / name for name in _TOKENIZER_FILES]
        return backbone_digest(
            self.weights,
            {
                "format": "transformers",
                "config": json.dumps(self.config, sort_keys=True),
                "preprocessing": repr(preprocessing),
                **{file.name: sha256_file(file) for file in files if file.is_file()},
            },
        )


class TransformersBackbone(Backbone):
    """A transformers image-text model in evaluation mode; each family has a subclass."""

    # SigLIP pads to the full context, as in its training; the others need no padding.
    pads_fully = False

    def __init__(
        self,
        source: ModelFolder,
        model: Any,
        *,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        context_length: int,
    ) -> None:
        self.model = model.to(source.device).eval().requires_grad_(False)
        self.name = source.name
        self.device = source.device
        self.preprocessing = preprocessing
        self.logit_scale = float(model.logit_scale.exp())
        self.context_length = context_length
        self.leading_tokens = len(tokenizer.leading)
        self.trailing_tokens = len(tokenizer.trailing)
        self.embed_dim, self.text_width = self._widths()
        side = model.config.vision_config.image_size // model.config.vision_config.patch_size
        self.patch_grid = (side, side)
        self._tokenizer = tokenizer
        self.digest = source.digest(preprocessing)

    @abstractmethod
    def _widths(self) -> tuple[int, int]:
        """embed_dim and text_width."""

    @abstractmethod
    def _encode_pixels(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Unnormalised global features [B, d] and patch features [B, P, d]."""

    @abstractmethod
    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        """Unnormalised text features [B, d]."""

    @abstractmethod
    def _word_embeddings(self) -> nn.Embedding: ...

    # Not inference_mode: its tensors could not take part in a method's training afterwards.
    @torch.no_grad()
    def encode_images(self, pixels: Tensor, *, patches: bool = True) -> ImageFeatures:
        size = self.preprocessing.size
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != (3, size, size):
            raise BackboneError(
                f"{self.name} takes pixels of shape [B, 3, {size}, {size}] but got "
                f"{list(pixels.shape)}. Prepare them with ogkd.images.transforms.to_pixels(images, "
                "backbone.preprocessing)."
            )
        pooled, tokens = self._encode_pixels(pixels.to(self.device, torch.float32))
        return ImageFeatures(
            normalize(pooled, dim=-1), normalize(tokens, dim=-1) if patches else None
        )

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        length = self.context_length if self.pads_fully else 0
        tokens = self._tokenizer.pack(pieces, length=length)
        return Tokens(tokens.ids.to(self.device), tokens.mask.to(self.device))

    def embed(self, tokens: Tokens) -> Tensor:
        found: Tensor = self._word_embeddings()(tokens.ids.to(self.device))
        return found

    def encode_text(
        self, embeddings: Tensor, tokens: Tokens, *, dropout: TextDropout | None = None
    ) -> Tensor:
        expected = (*tokens.ids.shape, self.text_width)
        if tuple(embeddings.shape) != expected:
            raise BackboneError(
                f"{self.name} takes embeddings of shape {list(expected)} for these tokens but got "
                f"{list(embeddings.shape)}."
            )
        if expected[1] > self.context_length:
            raise BackboneError(
                f"{self.name} reads at most {self.context_length} tokens but got {expected[1]}. "
                "Shorten the texts or the learnable context."
            )
        moved = Tokens(tokens.ids.to(self.device), tokens.mask.to(self.device))
        features = self._encode_embeddings(embeddings.to(self.device), moved, dropout)
        return normalize(features, dim=-1)


def run_layers(
    layers: Iterable[Any],
    hidden: Tensor,
    *,
    causal: bool,
    dropout: TextDropout | None = None,
    rate: float = 0.0,
) -> Tensor:
    """Run the pre-norm layers of a CLIP or SigLIP text tower on hidden states [B, L, w].

    transformers' own towers accept ids only, so their layers are run one by one here.
    """
    for layer in layers:
        hidden = hidden + _attend(
            layer.self_attn, layer.layer_norm1(hidden), causal=causal, dropout=dropout, rate=rate
        )
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
    return hidden


def _attend(
    attention: Any, hidden: Tensor, *, causal: bool, dropout: TextDropout | None, rate: float
) -> Tensor:
    shape = (*hidden.shape[:2], attention.num_heads, -1)
    query, key, value = (
        projection(hidden).view(shape).transpose(1, 2)  # [B, heads, L, w / heads]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if dropout is None or rate == 0.0:
        mixed = scaled_dot_product_attention(query, key, value, is_causal=causal)
    else:
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(later, float("-inf"))
        mixed = dropout(scores.softmax(-1), rate) @ value
    output: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(hidden.shape))
    return output
