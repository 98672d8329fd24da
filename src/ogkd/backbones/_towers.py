"""What the backbones of all folder formats share: a tokenizer, a device, checks, unit length."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones._tokenizer import Tokenizer
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing


class TowersBackbone(Backbone):
    """Two frozen towers; a format or family says where its features come from."""

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
        self.text_width = self._word_embeddings().embedding_dim
        self._tokenizer = tokenizer

    @abstractmethod
    def _image_sizes(self) -> tuple[int, int]:
        """embed_dim, and the number of patches along one side."""

    @abstractmethod
    def _word_embeddings(self) -> nn.Embedding: ...

    @abstractmethod
    def _encode_pixels(self, pixels: Tensor, *, patches: bool) -> tuple[Tensor, Tensor | None]:
        """Unnormalised global features [B, d] and, if wanted, patch features [B, P, d]."""

    @abstractmethod
    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        """Unnormalised text features [B, d]."""

    # Not inference_mode: its tensors could not take part in a method's training afterwards.
    @torch.no_grad()
    def encode_images(self, pixels: Tensor, *, patches: bool = True) -> ImageFeatures:
        self.check_pixels(pixels)
        pixels = pixels.to(self.device, torch.float32)
        image, parts = self._encode_pixels(pixels, patches=patches)
        if parts is None or not patches:
            return ImageFeatures(normalize(image, dim=-1))
        return ImageFeatures(normalize(image, dim=-1), normalize(parts, dim=-1))

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
