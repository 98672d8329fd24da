"""The contract of every frozen encoder, whatever its family: `Backbone`.

Nothing here depends on a file format. Global and patch features are projected to the shared space
and L2-normalised; deeper ones are not projected. No parameter ever requires a gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing


@dataclass(frozen=True)
class ImageFeatures:
    """Features of B images; `patches` and `deep` are None if they were not asked for."""

    globals: Tensor  # [B, d], L2-normalised
    patches: Tensor | None = None  # [B, P, d], L2-normalised, row-major over the patch grid
    deep: Tensor | None = None  # [B, D], parts of unit length side by side (Backbone.deep_parts)

    @property
    def rows(self) -> Tensor:
        """What a head sees, of unit length: the globals, and the deeper parts if there are any.

        The first d numbers are the global feature up to a factor, the same for all images.
        """
        if self.deep is None:
            return self.globals
        return normalize(torch.cat([self.globals, self.deep], dim=-1), dim=-1)


@dataclass(frozen=True)
class Tokens:
    """B texts as ids, padded on the right to the longest of them."""

    ids: Tensor  # [B, L] int64
    mask: Tensor  # [B, L] bool, True where there is a token


class TextDropout:
    """Dropout for the text tower: one independent random stream per equal slice of the batch.

    If S seeds are trained in one batch of S*C texts, each seed's slice gets exactly the masks
    that it would have drawn alone. A stream is SplitMix64, started at its key: whole numbers alone,
    computed where the values are, so that every device draws the same bits and none is copied.
    """

    def __init__(self, keys: Sequence[int]) -> None:
        self.keys = list(keys)  # of 64 bits
        self._drawn = 0  # numbers of each stream
        self._starts: Tensor | None = None  # [S, 1]

    def __call__(self, values: Tensor, rate: float) -> Tensor:
        """Zero each value with probability `rate` and rescale the rest; `values` is [B, ...]."""
        if rate == 0.0:
            return values
        slices = len(self.keys)
        if values.shape[0] % slices:
            raise ValueError(f"A batch of {values.shape[0]} does not divide into {slices} streams.")
        keep = self._coins(values.numel() // slices, rate, values.device)
        return values * keep.to(values.dtype).mul_(1.0 / (1.0 - rate)).view(values.shape)

    def _coins(self, count: int, rate: float, device: torch.device) -> Tensor:
        """Booleans [S, count], False with probability `rate` (to 16 bits), four per number."""
        if self._starts is None or self._starts.device != device:
            keys = [_signed(key) for key in self.keys]
            self._starts = torch.tensor(keys, device=device).unsqueeze(1)
        numbers = (count + 3) // 4
        first = self._drawn + 1
        self._drawn += numbers
        z = torch.arange(first, first + numbers, device=device) * _STEP + self._starts
        for shift, factor in _MIXES:
            z ^= (z >> shift) & (1 << 64 - shift) - 1  # a shift that does not copy the sign
            z *= factor
        z ^= (z >> 31) & (1 << 33) - 1
        return z.view(torch.int16)[:, :count] >= round(rate * 2**16) - 2**15


def _signed(number: int) -> int:
    """64 bits as a signed integer, as torch has them."""
    return (number + 2**63) % 2**64 - 2**63


_STEP = _signed(0x9E3779B97F4A7C15)
_MIXES = ((30, _signed(0xBF58476D1CE4E5B9)), (27, _signed(0x94D049BB133111EB)))


class Backbone(ABC):
    """A frozen vision-language model in evaluation mode."""

    name: str  # the name or path that the user gave
    digest: str  # SHA-256 that identifies the computed function (weights and configuration)
    preprocessing: Preprocessing  # how an image becomes pixels for this model
    embed_dim: int  # d, the size of the shared space
    text_width: int  # of a word embedding (a learnable context vector has this size)
    context_length: int  # the most tokens the text tower accepts, special tokens included
    leading_tokens: int  # special tokens before a text
    trailing_tokens: int  # and after it
    patch_grid: tuple[int, int]  # rows and columns of patches; P is their product
    logit_scale: float  # tau, already exponentiated (about 85 for BiomedCLIP)
    device: torch.device
    engine: str = "torch"  # how images are encoded (ogkd.backbones.engines): features differ
    deep_parts: tuple[int, ...] = ()  # widths of the parts of deeper features; empty: it has none

    def __repr__(self) -> str:
        return f"<Backbone: {self.name}, engine {self.engine}>"

    def release(self) -> None:
        """Give back memory whose content is read again when it is needed; nothing else changes."""
        return

    def out_of_domain(self, features: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        """Whether each feature [N, d] is of an image of a kind the model knows nothing of, [N].

        None if nobody knows. Of rows with deeper features only the global one counts.
        """
        return None

    @abstractmethod
    def encode_images(
        self, pixels: Tensor, *, patches: bool = True, deep: bool = False
    ) -> ImageFeatures:
        """Encode preprocessed pixels [B, 3, H, W] without gradient.

        `deep` asks for what the image tower knew before the projection, in the same pass; only
        a backbone with `deep_parts` is asked for it.
        """

    def check_pixels(self, pixels: Tensor) -> None:
        """Raise unless these are pixels [B, 3, H, W] of the model's own size."""
        size = self.preprocessing.size
        if pixels.ndim != 4 or tuple(pixels.shape[1:]) != (3, size, size):
            raise BackboneError(
                f"Pixels must have shape [B, 3, {size}, {size}], not {list(pixels.shape)}.",
                argument="pixels",
            )

    @abstractmethod
    def pieces(self, text: str) -> list[int]:
        """Ids of a text, not truncated and without special tokens."""

    @abstractmethod
    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        """Put special tokens around each list of ids and pad to the longest of them."""

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Turn texts into ids, truncated to `context_length`, padded to the longest of them."""
        room = self.context_length - self.leading_tokens - self.trailing_tokens
        return self.pack([self.pieces(text)[:room] for text in texts])

    @abstractmethod
    def embed(self, tokens: Tokens) -> Tensor:
        """Look up word embeddings [B, L, w]; positions are added by `encode_text`."""

    @abstractmethod
    def encode_text(
        self, embeddings: Tensor, tokens: Tokens, *, dropout: TextDropout | None = None
    ) -> Tensor:
        """Encode word embeddings [B, L, w] to features [B, d], differentiable in `embeddings`.

        `dropout` applies the tower's own dropout rates, as released prompt learners do in
        training; without it the tower is deterministic.
        """

    @torch.no_grad()  # not inference_mode: the features enter losses that are differentiated
    def encode_texts(self, texts: Sequence[str], *, batch_size: int = 64) -> Tensor:
        """Encode texts to features [N, d] without gradient, in batches of similar length."""
        features = torch.empty(len(texts), self.embed_dim)
        order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            tokens = self.tokenize([texts[row] for row in rows])
            features[rows] = self.encode_text(self.embed(tokens), tokens).cpu()
        return features
