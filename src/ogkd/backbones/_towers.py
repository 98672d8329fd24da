"""What the backbones of all folder formats share: a tokenizer, a device, checks, unit length."""

from __future__ import annotations

import ctypes
import mmap
import sys
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones._tokenizer import Tokenizer
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

if TYPE_CHECKING:
    from ogkd.backbones.builtin import Domain

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_MAPS = Path("/proc/self/maps")


class TowersBackbone(Backbone):
    """Two frozen towers; a format or family defines where its features come from."""

    # SigLIP pads to the full context, as in its training; the others need no padding.
    pads_fully = False
    float32: TowersBackbone | None = None  # the original of one that encodes in half precision
    domain: Domain | None = None  # what images the model knows, if it knows so few

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
        half = HALVES.get(self.engine)
        with torch.autocast(self.device.type, half) if half else nullcontext():
            image, parts, inner = self._encode_pixels(pixels, patches=patches, deep=deep)
        wanted = normalize(parts.float(), dim=-1) if parts is not None and patches else None
        return ImageFeatures(normalize(image.float(), dim=-1), wanted, inner if deep else None)

    def out_of_domain(self, features: NDArray[np.float32]) -> NDArray[np.bool_] | None:
        return None if self.domain is None else self.domain.excludes(features)

    def release(self) -> None:
        release_pages(self.model.parameters())

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        length = self.context_length if self.pads_fully else 0
        return self._here(self._tokenizer.pack(pieces, length=length))

    def embed(self, tokens: Tokens) -> Tensor:
        embeddings: Tensor = self._word_embeddings()(tokens.ids.to(self.device))
        return embeddings

    def encode_text(
        self, embeddings: Tensor, tokens: Tokens, *, dropout: TextDropout | None = None
    ) -> Tensor:
        expected = (*tokens.ids.shape, self.text_width)
        if tuple(embeddings.shape) != expected:
            raise BackboneError(
                f"Embeddings must have shape {list(expected)}, not {list(embeddings.shape)}.",
                argument="embeddings",
            )
        if expected[1] > self.context_length:
            raise BackboneError(
                f"{self.name} reads at most {self.context_length} tokens, not {expected[1]}.",
                argument="tokens",
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
    return torch.cat([normalize(part.float(), dim=-1) for part in parts], dim=-1)


def deep_parts(depth: int, width: int, *, class_token: bool) -> tuple[int, ...]:
    """The widths of the parts of `deep_features`."""
    blocks = len(deep_blocks(depth))
    return (width,) * (blocks + (blocks - 1) * (1 + class_token))


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding to be filled; torch's own initialisation on "meta" imports its compiler."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width))
    return table


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


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Give back the memory of those frozen tensors that are a map of a file.

    A page of the file takes memory from its first use on; the next use reads it again, most often
    from the system's own cache of files. Only Linux lets us ask for that and check beforehand what
    a piece of memory is; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    maps = _private_file_maps()
    madvise = ctypes.CDLL(None).madvise
    page = mmap.PAGESIZE
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.requires_grad or not tensor.is_contiguous():
            continue
        begin = -(-tensor.data_ptr() // page) * page
        end = (tensor.data_ptr() + tensor.nbytes) // page * page
        # Anything but a file would read as zeros from then on.
        if begin < end and any(low <= begin and end <= high for low, high in maps):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _private_file_maps() -> list[tuple[int, int]]:
    """The ranges of memory that are private maps of regular files."""
    ranges = []
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        addresses, rights, _, _, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if rights[3] == "p" and inode != "0" and name.startswith("/") and name[:5] != "/dev/":
            low, high = addresses.split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges
