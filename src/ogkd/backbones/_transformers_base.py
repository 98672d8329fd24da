"""What the three transformers families share: the frozen model, its checks, text layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones._hf_tokenizer import FolderTokenizer
from ogkd.backbones._model_folder import ModelFolder
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

__all__ = ["TransformersBackbone", "run_layers", "unit"]


class TransformersBackbone(Backbone):
    """A transformers image-text model in evaluation mode; subclasses know their family."""

    # SigLIP pads to the full context, as it was trained; the others need no padding.
    pads_fully = False

    def __init__(
        self,
        source: ModelFolder,
        model: Any,
        *,
        tokenizer: FolderTokenizer,
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
                f"{list(pixels.shape)}. Make them with ogkd.images.transforms.to_pixels(images, "
                "backbone.preprocessing)."
            )
        pooled, tokens = self._encode_pixels(pixels.to(self.device, torch.float32))
        return ImageFeatures(unit(pooled), unit(tokens) if patches else None)

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        length = self.context_length if self.pads_fully else None
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
        return unit(self._encode_embeddings(embeddings.to(self.device), moved, dropout))


def unit(features: Tensor) -> Tensor:
    """L2-normalise the last dimension."""
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

    transformers' own towers take ids only, so the layers are walked here, with their modules.
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
