"""What each patch wrote into the class token of a vision transformer, block by block.

The token after the last block is its first value plus what attention and MLP of each block added.
What attention adds is a sum over the tokens that it reads, so it can be told which patch wrote
what. The last norm and the L2 normalisation divide by numbers that are taken as they are; with
these fixed, the way from the token to the feature is linear, and the parts sum to the feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._clip import Clip
from ogkd.backbones._vit import ImageTower
from ogkd.backbones.base import Backbone

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class TokenParts:
    """Parts of the normalised global feature: patches.sum((1, 2)) + rest is the feature [B, d]."""

    patches: Tensor  # [B, L, P, d]: what patch p wrote into the class token in block l
    rest: Tensor  # [B, d]: the token's own start, its MLPs, what it read from itself, biases


@dataclass(frozen=True)
class _Way:
    """How pixels become a feature: first tokens, blocks, the last norm, a linear projection."""

    start: Step  # pixels [B, 3, H, W] to tokens [B, 1 + P, w]
    blocks: list[tuple[Step, Step]]  # what the class token reads [B, 1 + P, w], and the whole block
    norm: Any
    head: Any


def split_feature(backbone: Backbone, pixels: Tensor) -> TokenParts | None:
    """Split the features of preprocessed pixels; None if the tower pools or projects otherwise."""
    way = _way_of(getattr(backbone, "model", None)) if backbone.engine == "torch" else None
    return None if way is None else _split(way, pixels)


def _way_of(model: Any) -> _Way | None:
    tower = getattr(model, "image", model)
    if isinstance(tower, ImageTower):
        if tower.spec.pool != "token" or not isinstance(tower.head, nn.Linear | nn.Identity):
            return None
        norm = tower.late_norm if tower.spec.late_norm else tower.norm
        return _Way(
            lambda pixels: _timm_start(tower, pixels),
            [(_timm_reader(block), block) for block in tower.blocks],
            norm,
            tower.head,
        )
    if isinstance(model, Clip):
        vision = model.vision_model
        return _Way(
            lambda pixels: vision.pre_layrnorm(vision.embeddings(pixels)),
            [(_clip_reader(layer), _clip_block(layer)) for layer in vision.encoder.layers],
            vision.post_layernorm,
            model.visual_projection,
        )
    return None


@torch.no_grad()
def _split(way: _Way, pixels: Tensor) -> TokenParts:
    tokens = way.start(pixels)
    rest = tokens[:, 0]  # [B, w]
    written = []
    for read, block in way.blocks:
        parts = read(tokens)[:, 1:]  # [B, P, w]
        written.append(parts)
        before, tokens = tokens[:, 0], block(tokens)
        rest = rest + (tokens[:, 0] - before - parts.sum(dim=1))
    norm, head, token = way.norm, way.head, tokens[:, 0]
    spread = (token.var(dim=-1, unbiased=False) + norm.eps).sqrt()  # [B]
    length = head(norm(token)).norm(dim=-1)  # [B]

    def linear(part: Tensor) -> Tensor:
        """From the token's space to the feature's, without constants."""
        centred: Tensor = (part - part.mean(dim=-1, keepdim=True)) * norm.weight
        return centred @ head.weight.mT if isinstance(head, nn.Linear) else centred

    factor = 1 / (spread * length)
    patches = linear(torch.stack(written, dim=1)) * factor.view(-1, 1, 1, 1)
    constant: Tensor = head(norm.bias) / length.unsqueeze(1)
    return TokenParts(patches, linear(rest) * factor.unsqueeze(1) + constant)


def _timm_start(tower: ImageTower, pixels: Tensor) -> Tensor:
    patches = tower.patch_embed(pixels).flatten(2).transpose(1, 2)
    first = tower.cls_token.expand(len(patches), -1, -1)
    return torch.cat([first, patches], dim=1) + tower.pos_embed


def _timm_reader(block: Any) -> Step:
    def read(tokens: Tensor) -> Tensor:
        normed = block.norm1(tokens)
        states = block.query(normed[:, :1]), block.key(normed), block.value(normed)
        found: Tensor = block.ls1(_read(*states, block.heads) @ block.proj.weight.mT)
        return found

    return read


def _clip_block(layer: Any) -> Step:
    from ogkd.backbones._transformers_families import _run_layers

    return lambda tokens: _run_layers([layer], tokens)


def _clip_reader(layer: Any) -> Step:
    def read(tokens: Tensor) -> Tensor:
        normed, own = layer.layer_norm1(tokens), layer.self_attn
        states = own.q_proj(normed[:, :1]), own.k_proj(normed), own.v_proj(normed)
        found: Tensor = _read(*states, own.num_heads) @ own.out_proj.weight.mT
        return found

    return read


def _read(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """What the class token reads from each token, before the attention's projection: [B, T, w]."""
    q, k, v = (
        states.unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
        for states in (query, key, value)
    )
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)  # [B, heads, 1, T]
    found: Tensor = (weights.mT * v).transpose(1, 2).flatten(2)
    return found
