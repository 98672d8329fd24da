"""What each patch contributes to the features of a vision transformer, so that the parts add up.

The class token after a block is its first value plus what attention and MLP of each block added.
What attention adds is a sum over the tokens that it reads, so it is known which patch wrote what.
Deeper features are class tokens, and means and spreads of patches, which are sums over patches.
Norms divide by numbers that are taken as they are; with these fixed, all of it is linear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._clip import Clip
from ogkd.backbones._towers import deep_blocks
from ogkd.backbones._transformers_families import run_layers
from ogkd.backbones._vit import ImageTower
from ogkd.backbones.base import Backbone

Step = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parts:
    """Products of weights with features, by patch: patches.sum(1) + rest is rows @ W', [B, K]."""

    patches: Tensor  # [B, P, K]
    rest: Tensor  # [B, K]: the tokens' own start, MLPs, what a token read from itself, biases


@dataclass(frozen=True)
class _Way:
    """How pixels become a feature: first tokens, blocks, the last norm, a linear projection."""

    start: Step  # pixels [B, 3, H, W] to tokens [B, 1 + P, w]
    blocks: list[tuple[Step, Step]]  # what the class token reads [B, 1 + P, w], and the whole block
    norm: Any
    head: Any


def split_products(backbone: Backbone, pixels: Tensor, W: Tensor) -> Parts | None:
    """Split what weights W [K, D] make of preprocessed pixels; None if the tower cannot be split.

    D is the width of the global feature, or of `ImageFeatures.rows` with its deeper parts.
    """
    way = _way_of(getattr(backbone, "model", None)) if backbone.engine == "torch" else None
    if way is None:
        return None
    d = backbone.embed_dim
    if W.shape[1] == d:
        return _split(way, pixels, W, ())
    deeper = W[:, d:].split(list(backbone.deep_parts), dim=1)
    # Rows are parts of unit length side by side, made one of unit length.
    factor = (1 + len(deeper)) ** -0.5
    return _split(way, pixels, factor * W[:, :d], [factor * part for part in deeper])


def _way_of(model: Any) -> _Way | None:
    tower = getattr(model, "image", model)
    if isinstance(tower, ImageTower):
        if tower.spec.pool != "token" or not isinstance(tower.head, nn.Linear | nn.Identity):
            return None
        norm = tower.late_norm if tower.spec.late_norm else tower.norm
        return _Way(
            tower.first_tokens,
            [(_of_timm(block), block) for block in tower.blocks],
            norm,
            tower.head,
        )
    if isinstance(model, Clip):
        vision = model.vision_model
        return _Way(
            lambda pixels: vision.pre_layrnorm(vision.embeddings(pixels)),
            [(_of_clip(layer), partial(run_layers, [layer])) for layer in vision.encoder.layers],
            vision.post_layernorm,
            model.visual_projection,
        )
    return None


@torch.no_grad()
def _split(way: _Way, pixels: Tensor, W: Tensor, deeper: Sequence[Tensor]) -> Parts:
    """`W` [K, d] is for the global feature, `deeper` [K, w] for each part of the deeper ones."""
    tokens = way.start(pixels)
    written = torch.zeros_like(tokens[:, 1:])  # [B, P, w]: by each patch into the class token
    products: list[tuple[Tensor, Tensor]] = []  # of patches [B, P, K], and of the rest [B, K]
    ends = deep_blocks(len(way.blocks)) if deeper else ()
    of_tokens, of_patches = list(deeper[: len(ends)]), list(deeper[len(ends) :])
    for number, (read, block) in enumerate(way.blocks, start=1):
        written = written + read(tokens)[:, 1:]
        tokens = block(tokens)
        if number not in ends:
            continue
        token, patches = tokens[:, 0], tokens[:, 1:]
        weights = of_tokens.pop(0).mT / token.norm(dim=-1).view(-1, 1, 1)  # [B, w, K]
        products.append((written @ weights, _rest(token - written.sum(1), weights)))
        if number < len(way.blocks):
            products += [
                _of_patches(share, of_patches.pop(0)) for share in _mean_and_spread(patches)
            ]
    norm, head, token = way.norm, way.head, tokens[:, 0]
    spread = (token.var(dim=-1, unbiased=False) + norm.eps).sqrt()  # [B]
    length = head(norm(token)).norm(dim=-1)  # [B]

    def linear(part: Tensor) -> Tensor:
        """From the token's space to the feature's, without constants."""
        centred: Tensor = (part - part.mean(dim=-1, keepdim=True)) * norm.weight
        return centred @ head.weight.mT if isinstance(head, nn.Linear) else centred

    last = W.mT / (spread * length).view(-1, 1, 1)  # [B, d, K]
    constant = (head(norm.bias) / length.unsqueeze(1)) @ W.mT
    products.append(
        (linear(written) @ last, _rest(linear(token - written.sum(1)), last) + constant)
    )
    return Parts(sum(patch for patch, _ in products), sum(rest for _, rest in products))  # type: ignore[arg-type]


def _rest(part: Tensor, weights: Tensor) -> Tensor:
    """[B, w] times [B, w, K]."""
    return (part.unsqueeze(1) @ weights).squeeze(1)


def _mean_and_spread(patches: Tensor) -> tuple[Tensor, Tensor]:
    """What each patch [B, P, w] adds to their mean and to their standard deviation."""
    P = patches.shape[1]
    away = (patches - patches.mean(1, keepdim=True)).square() / P
    spread = away.sum(1, keepdim=True).clamp_min(1e-12).sqrt()
    return patches / P, away / spread


def _of_patches(shares: Tensor, W: Tensor) -> tuple[Tensor, Tensor]:
    """Shares [B, P, w] of a part that is made one of unit length, times W [K, w]."""
    length = shares.sum(1).norm(dim=-1).view(-1, 1, 1)
    products = shares / length @ W.mT
    return products, torch.zeros_like(products[:, 0])


def _reader(norm: Any, projections: Sequence[Any], heads: int, output: Any, scale: Any) -> Step:
    """What the class token reads in a block whose attention has these layers."""
    query, key, value = projections

    def read(tokens: Tensor) -> Tensor:
        normed = norm(tokens)
        states = query(normed[:, :1]), key(normed), value(normed)
        written: Tensor = scale(_read(*states, heads) @ output.weight.mT)
        return written

    return read


def _of_timm(block: Any) -> Step:
    projections = block.query, block.key, block.value
    return _reader(block.norm1, projections, block.heads, block.proj, block.ls1)


def _of_clip(layer: Any) -> Step:
    attention = layer.self_attn
    projections = attention.q_proj, attention.k_proj, attention.v_proj
    heads, output = attention.num_heads, attention.out_proj
    return _reader(layer.layer_norm1, projections, heads, output, nn.Identity())


def _read(query: Tensor, key: Tensor, value: Tensor, heads: int) -> Tensor:
    """What the class token reads from each token, before the attention's projection: [B, T, w]."""
    q, k, v = (
        states.unflatten(-1, (heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
        for states in (query, key, value)
    )
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(dim=-1)  # [B, heads, 1, T]
    read: Tensor = (weights.mT * v).transpose(1, 2).flatten(2)
    return read
