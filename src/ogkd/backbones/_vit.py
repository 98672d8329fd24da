"""Vision transformers: timm's, CLIP's and SigLIP's are one tower with other options."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._layers import (
    ACTIVATIONS,
    Block,
    CrossAttention,
    deep_blocks,
    deep_features,
    deep_parts,
)

_CACHE = 16 * 2**20  # bytes; larger activations also need new memory pages at each call


@dataclass(frozen=True)
class VisionSpec:
    """Everything that determines what the image tower computes, besides its weights.

    By default timm's network with a linear head of open_clip.
    """

    width: int
    depth: int
    heads: int
    inner: int  # width of the MLP
    patch: int
    image_size: int
    embed_dim: int
    # "token", "avg", "attention" (SigLIP's, over patches without a class token), "query" (CONCH's)
    pool: str = "token"
    proj: str = "linear"  # "linear", "mlp" or "none"
    proj_bias: bool = False
    proj_inner: int = 0  # width inside an MLP head; 0: twice embed_dim, as in open_clip
    pool_heads: int = 0  # of "query"
    act: str = "gelu"
    eps: float = 1e-6
    patch_bias: bool = True
    early_norm: bool = False  # before the first block
    late_norm: bool = False  # timm's fc_norm: the final norm comes after pooling, not before
    qkv_bias: bool = True
    layer_scale: bool = False
    # All tokens of all images in one pass, although a class token alone would take less work: the
    # last bits of features depend on it.
    whole: bool = False

    @property
    def grid(self) -> int:
        """Patches along one side."""
        return self.image_size // self.patch

    @property
    def first(self) -> int:
        """Tokens before the patches."""
        return int(self.pool != "attention")


class AttentionPool(nn.Module):
    """SigLIP's pooling: one learned query attends to the patches, then an MLP."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        width = spec.width
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attention = nn.MultiheadAttention(width, spec.heads, batch_first=True)
        self.norm = nn.LayerNorm(width, spec.eps)
        self.fc1, self.fc2 = nn.Linear(width, spec.inner), nn.Linear(spec.inner, width)
        self.act = ACTIVATIONS[spec.act]()

    def forward(self, patches: Tensor) -> Tensor:
        probe = self.probe.repeat(patches.shape[0], 1, 1)
        pooled: Tensor = self.attention(probe, patches, patches)[0]
        final: Tensor = pooled + self.fc2(self.act(self.fc1(self.norm(pooled))))
        return final[:, 0]


class QueryPool(nn.Module):
    """CONCH's pooling: one learned query attends to all tokens, in the shared space already."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        width, d = spec.width, spec.embed_dim
        self.query = nn.Parameter(torch.empty(1, 1, d))
        self.query_norm, self.norm = nn.LayerNorm(d), nn.LayerNorm(width)
        self.attention = CrossAttention(d, width, spec.pool_heads, d)
        self.late_norm = nn.LayerNorm(d)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, T, w] to what is pooled of all [B, d] and of each patch alone [B, P, d]."""
        query = self.query_norm(self.query).expand(tokens.shape[0], -1, -1)
        keys = self.norm(tokens)
        pooled = self.late_norm(self.attention(query, keys)[:, 0])
        return pooled, self.late_norm(self.attention.alone(keys[:, 1:]))


class ImageTower(nn.Module):
    """Map pixels [B, 3, H, W] to projected features."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        width, positions = spec.width, spec.first + spec.grid**2
        self.patch_embed = nn.Conv2d(3, width, spec.patch, stride=spec.patch, bias=spec.patch_bias)
        if spec.first:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, width))
        self.early_norm = _norm(spec, spec.early_norm)
        self.blocks = nn.ModuleList(
            Block(
                width,
                spec.heads,
                spec.inner,
                act=spec.act,
                eps=spec.eps,
                qkv_bias=spec.qkv_bias,
                layer_scale=spec.layer_scale,
            )
            for _ in range(spec.depth)
        )
        self.norm = _norm(spec, not spec.late_norm)
        self.late_norm = _norm(spec, spec.late_norm)
        if spec.pool == "attention":
            self.pooling: nn.Module = AttentionPool(spec)
        elif spec.pool == "query":
            self.pooling = QueryPool(spec)
        self.head = _head(spec)

    def forward(
        self, pixels: Tensor, *, patches: bool, deep: bool = False, change: Any = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Global features [B, d] and, if wanted, patches [B, P, d] and deep [B, D].

        Only the deeper features are normalised. A `change` sees what enters each block.
        """
        encode = partial(self._encode, patches=patches, deep=deep, change=change)
        if self.spec.whole or pixels.device.type != "cpu" or torch.compiler.is_compiling():
            return encode(pixels)
        chunks = pixels.split(self._at_once())
        images, *others = zip(*map(encode, chunks), strict=True)
        parts, inner = (
            None if kind[0] is None else torch.cat([part for part in kind if part is not None])
            for kind in others
        )
        return torch.cat(images), parts, inner

    def first_tokens(self, pixels: Tensor) -> Tensor:
        """What enters the first block: the class token, if any, and the patches, [B, T, w]."""
        tokens = self.patch_embed(pixels).flatten(2).transpose(1, 2)
        if self.spec.first:
            tokens = torch.cat([self.cls_token.expand(tokens.shape[0], -1, -1), tokens], dim=1)
        final: Tensor = self.early_norm(tokens + self.pos_embed)
        return final

    def _encode(
        self, pixels: Tensor, *, patches: bool, deep: bool, change: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        spec = self.spec
        hidden = self.first_tokens(pixels)
        # The last block skips the patches if they are not needed.
        first_only = self.has_class_token and not patches and not spec.whole
        wanted = deep_blocks(spec.depth) if deep else ()
        states = []
        for number, block in enumerate(self.blocks, start=1):
            if change is not None:
                hidden = change.image(number - 1, hidden)
            hidden = block(hidden, first_only=first_only and number == spec.depth)
            if number in wanted:
                states.append(hidden[:, : self.pos_embed.shape[1]])
        hidden = hidden[:, : self.pos_embed.shape[1]]  # without tokens that a change added
        image, parts = self._project(self.norm(hidden), patches=patches)
        # A class token that is not read is left out: nothing was trained to read it.
        skipped = 0 if self.has_class_token else spec.first
        inner = [state[:, skipped:] for state in states]
        return (
            image,
            parts,
            deep_features(inner, class_token=self.has_class_token) if deep else None,
        )

    def _project(self, tokens: Tensor, *, patches: bool) -> tuple[Tensor, Tensor | None]:
        """Tokens [B, T, w] to the image's features and those of patches.

        Patches reach the shared space in the same way as the pooled token.
        """
        if self.spec.pool == "attention":
            return self.pooling(tokens), tokens
        if self.spec.pool == "query":
            image, parts = self.pooling(tokens)
            return self.head(image), self.head(parts)
        if self.spec.whole:
            projected = self.head(tokens)
            return projected[:, 0], projected[:, 1:]
        pooled = tokens[:, 0] if self.has_class_token else tokens[:, 1:].mean(dim=1)
        image = self.head(self.late_norm(pooled))
        return image, self.head(self.late_norm(tokens[:, 1:])) if patches else None

    @property
    def has_class_token(self) -> bool:
        """Whether the image feature comes from a class token, not from its patches."""
        return self.spec.pool == "token"

    @property
    def deep_parts(self) -> tuple[int, ...]:
        """The widths of the parts of deeper features."""
        return deep_parts(self.spec.depth, self.spec.width, class_token=self.has_class_token)

    def _at_once(self) -> int:
        """How many images to encode together so that the MLP's hidden states fit in the cache."""
        floats = self.pos_embed.shape[1] * self.spec.inner  # of one image
        return max(1, _CACHE // (4 * floats))


def _norm(spec: VisionSpec, present: bool) -> nn.Module:
    return nn.LayerNorm(spec.width, spec.eps) if present else nn.Identity()


def _head(spec: VisionSpec) -> nn.Module:
    if spec.proj == "none":
        return nn.Identity()
    if spec.proj == "mlp":
        hidden = spec.proj_inner or 2 * spec.embed_dim
        return nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(spec.width, hidden),
                act=nn.GELU(),
                fc2=nn.Linear(hidden, spec.embed_dim, bias=spec.proj_bias),
            )
        )
    width = spec.embed_dim if spec.pool == "query" else spec.width
    return nn.Linear(width, spec.embed_dim, bias=spec.proj_bias)
