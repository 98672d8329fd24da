"""What the backbones of all folder formats share: a tokenizer, a device, checks, unit length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones._pages import give_back
from ogkd.backbones._tokenizer import Tokenizer
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing


class TowersBackbone(Backbone):
    """Two frozen towers; a format or family defines where its features come from."""

    # SigLIP pads to the full context, as in its training; the others need no padding.
    pads_fully = False

    def __init__(
        self,
        model: Any,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        name: str,
        digest: str,
        context_length: int,
        device: torch.device,
    ) -> None:
        self.model = model.to(device).eval().requires_grad_(False)
        self.name = name
        self.digest = digest
        self.preprocessing = preprocessing
        self.context_length = context_length
        self.leading_tokens = len(tokenizer.leading)
        self.trailing_tokens = len(tokenizer.trailing)
        self.logit_scale = float(model.logit_scale.exp())
        self.device = device
        self.embed_dim, side = self._image_sizes()
        self.patch_grid = (side, side)
        self.deep_parts = self._deep_parts()
        self.text_width = self._word_embeddings().embedding_dim
        self._tokenizer = tokenizer

    @abstractmethod
    def _image_sizes(self) -> tuple[int, int]:
        """embed_dim, and the number of patches along one side."""

    @abstractmethod
    def _deep_parts(self) -> tuple[int, ...]:
        """The widths of the parts of deeper features."""

    @abstractmethod
    def _word_embeddings(self) -> nn.Embedding: ...

    @abstractmethod
    def _encode_pixels(
        self, pixels: Tensor, *, patches: bool, deep: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Unnormalised global features [B, d] and, if wanted, patches [B, P, d] and deep [B, D]."""

    @abstractmethod
    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        """Unnormalised text features [B, d]."""

    # Not inference_mode: its tensors could not take part in a method's training afterwards.
    @torch.no_grad()
    def encode_images(
        self, pixels: Tensor, *, patches: bool = True, deep: bool = False
    ) -> ImageFeatures:
        self.check_pixels(pixels)
        pixels = pixels.to(self.device, torch.float32)
        image, parts, inner = self._encode_pixels(pixels, patches=patches, deep=deep)
        wanted = normalize(parts, dim=-1) if parts is not None and patches else None
        return ImageFeatures(normalize(image, dim=-1), wanted, inner if deep else None)

    def release(self) -> None:
        give_back(self.model.parameters())

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        length = self.context_length if self.pads_fully else 0
        return self._here(self._tokenizer.pack(pieces, length=length))

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
        moved = embeddings.to(self.device)
        return normalize(self._encode_embeddings(moved, self._here(tokens), dropout), dim=-1)

    def _here(self, tokens: Tokens) -> Tokens:
        return Tokens(tokens.ids.to(self.device), tokens.mask.to(self.device))


def deep_blocks(depth: int) -> tuple[int, ...]:
    """The blocks, counted from 1, that deeper features come from: the end of each third.

    >>> deep_blocks(12), deep_blocks(32), deep_blocks(2)
    ((4, 8, 12), (11, 22, 32), (1, 2))
    """
    return tuple(sorted({-(-depth * third // 3) for third in (1, 2, 3)}))


def deep_features(states: Sequence[Tensor], *, class_token: bool) -> Tensor:
    """Deeper features [B, D] of the states [B, T, w] after each of `deep_blocks`.

    The class token of each (the mean patch where there is none); and of all but the last, whose
    patches may not have been computed, mean and standard deviation of the patches. Every part
    has unit length.
    """
    parts = [state[:, 0] if class_token else state.mean(dim=1) for state in states]
    for state in states[:-1]:
        patches = state[:, int(class_token) :]
        mean = patches.mean(dim=1)
        # Not torch.std, for which ONNX has no operator.
        spread = (patches - mean.unsqueeze(1)).square().mean(dim=1).clamp_min(1e-12).sqrt()
        parts += [mean, spread] if class_token else [spread]
    return torch.cat([normalize(part, dim=-1) for part in parts], dim=-1)


def deep_parts(depth: int, width: int, *, class_token: bool) -> tuple[int, ...]:
    """The widths of the parts of `deep_features`."""
    blocks = len(deep_blocks(depth))
    return (width,) * (blocks + (blocks - 1) * (1 + class_token))


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding to be filled; torch's own initialisation on "meta" imports its compiler."""
    found: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width))
    return found


def tree(**parts: nn.Module) -> Any:
    """Modules under one, by the names that they have in a checkpoint."""
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: TextDropout | None = None,
    rate: float = 0.0,
) -> Tensor:
    """Attention of [B, heads, L, w / heads] where `mask` is True, with dropout if there is any.

    The probabilities are computed explicitly only if dropout is applied to them.
    """
    if dropout is None or rate == 0.0:
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
    if causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return dropout(scores.softmax(dim=-1), rate) @ value
