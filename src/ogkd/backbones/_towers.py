"""A backbone of two towers, whatever the format of its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

from ogkd.backbones._folder import Stored
from ogkd.backbones._frozen import release_pages
from ogkd.backbones._tokenizer import Tokenizer
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.backbones.builtin import phantom_domain
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Towers(nn.Module):
    """An image tower, a text tower, and the scale of their products.

    `text` maps (embeddings, tokens, dropout) to features, and has the table of `words` and
    `pads_fully`: whether texts must be padded to the full context.
    """

    def __init__(self, image: Any, text: Any) -> None:
        super().__init__()
        self.image, self.text = image, text
        self.logit_scale = nn.Parameter(torch.empty(()))


class TowersBackbone(Backbone):
    """Two frozen towers and a tokenizer."""

    float32: TowersBackbone | None = None  # the original of one that encodes in half precision
    unchanged: TowersBackbone | None = None  # the original of one whose towers are changed
    change: Any = None  # of the image tower (ogkd.backbones.changes)

    def __init__(
        self,
        model: Towers,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        name: str,
        digest: str,
        context_length: int,
        device: torch.device,
        stored: Stored | None = None,
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
        spec = model.image.spec
        self.embed_dim = spec.embed_dim
        self.patch_grid = (spec.grid, spec.grid)
        self.deep_parts = model.image.deep_parts
        self.text_width = model.text.words.embedding_dim
        self.stored = stored  # None: not from a file
        self._tokenizer = tokenizer

    # Not inference_mode: its tensors could not take part in a method's training afterwards.
    @torch.no_grad()
    def encode_images(
        self, pixels: Tensor, *, patches: bool = True, deep: bool = False
    ) -> ImageFeatures:
        self.check_pixels(pixels)
        pixels = pixels.to(self.device, torch.float32)
        half = HALVES.get(self.engine)
        with torch.autocast(self.device.type, half) if half else nullcontext():
            image, parts, inner = self.model.image(
                pixels, patches=patches, deep=deep, change=self.change
            )
        wanted = normalize(parts.float(), dim=-1) if patches else None
        return ImageFeatures(normalize(image.float(), dim=-1), wanted, inner)

    def tuned_globals(self, pixels: Tensor, change: Any) -> Tensor:
        """Global features [B, d], differentiable in what a change was made from."""
        options = {"patches": False, "change": change}
        given = (pixels.to(self.device, torch.float32),)
        image = functional_call(self.model.image, dict(change.image_weights), given, options)[0]
        return normalize(image, dim=-1)

    def out_of_domain(self, features: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        domain = phantom_domain()
        is_builtin = (self.float32 or self).digest == domain.digest
        return domain.excludes(features) if is_builtin else None

    def release(self) -> None:
        release_pages(self.model.parameters())

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        length = self.context_length if self.model.text.pads_fully else 0
        return self._here(self._tokenizer.pack(pieces, length=length))

    def embed(self, tokens: Tokens) -> Tensor:
        embeddings: Tensor = self.model.text.words(tokens.ids.to(self.device))
        return embeddings

    def encode_text(
        self,
        embeddings: Tensor,
        tokens: Tokens,
        *,
        dropout: TextDropout | None = None,
        change: Any = None,
    ) -> Tensor:
        expected = (*tokens.ids.shape, self.text_width)
        if tuple(embeddings.shape) != expected:
            raise BackboneError(
                f"Embeddings must have shape {list(expected)}, not {list(embeddings.shape)}.",
                argument="embeddings",
            )
        shortest = self.context_length if self.model.text.pads_fully else 0
        if not shortest <= expected[1] <= self.context_length:
            raise BackboneError(
                f"{self.name} cannot read {expected[1]} tokens with a context of "
                f"{self.context_length}.",
                argument="tokens",
            )
        given = embeddings.to(self.device), self._here(tokens), dropout
        if change is None:
            return normalize(self.model.text(*given), dim=-1)
        weights = dict(change.text_weights)
        return normalize(functional_call(self.model.text, weights, (*given, change)), dim=-1)

    def _here(self, tokens: Tokens) -> Tokens:
        return Tokens(tokens.ids.to(self.device), tokens.mask.to(self.device))
