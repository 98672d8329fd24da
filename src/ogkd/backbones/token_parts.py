"""What each patch contributes to the features of a vision transformer, so that the parts add up.

The class token after a block is its first value plus what attention and MLP of each block added.
What attention adds is a sum over the tokens that it reads, so it is known which patch wrote what.
Deeper features are class tokens, and means and spreads of patches, which are sums over patches.
Norms divide by numbers that are taken as they are; with these fixed, all of it is linear.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._layers import deep_blocks
from ogkd.backbones._vit import ImageTower
from ogkd.backbones.base import Backbone


@dataclass(frozen=True)
class Parts:
    """Products of weights with features, by patch: patches.sum(1) + rest is rows @ W', [B, K]."""

    patches: Tensor  # [B, P, K]
    rest: Tensor  # [B, K]: the tokens' own start, MLPs, what a token read from itself, biases


def split_products(backbone: Backbone, pixels: Tensor, W: Tensor) -> Parts | None:
    """Split what weights W [K, D] make of preprocessed pixels; None if the tower cannot be split.

    D is the width of the global feature, or of `ImageFeatures.rows` with its deeper parts.
    """
    tower = getattr(getattr(backbone, "model", None), "image", None)
    changed = getattr(backbone, "change", None) is not None
    if backbone.engine != "torch" or changed or not isinstance(tower, ImageTower):
        return None
    if not tower.has_class_token or not isinstance(tower.head, nn.Linear | nn.Identity):
        return None
    d = backbone.embed_dim
    if W.shape[1] == d:
        return _split(tower, pixels, W, ())
    deeper = W[:, d:].split(list(backbone.deep_parts), dim=1)
    # Rows are parts of unit length side by side, made one of unit length.
    factor = (1 + len(deeper)) ** -0.5
    return _split(tower, pixels, factor * W[:, :d], [factor * part for part in deeper])


@torch.no_grad()
def _split(tower: ImageTower, pixels: Tensor, W: Tensor, deeper: Sequence[Tensor]) -> Parts:
    """`W` [K, d] is for the global feature, `deeper` [K, w] for each part of the deeper ones."""
    tokens = tower.first_tokens(pixels)
    written = torch.zeros_like(tokens[:, 1:])  # [B, P, w]: by each patch into the class token
    products: list[tuple[Tensor, Tensor]] = []  # of patches [B, P, K], and of the rest [B, K]
    ends = deep_blocks(tower.spec.depth) if deeper else ()
    of_tokens, of_patches = list(deeper[: len(ends)]), list(deeper[len(ends) :])
    for number, block in enumerate(tower.blocks, start=1):
        written = written + read_tokens(block, tokens)[:, 1:]
        tokens = block(tokens)
        if number not in ends:
            continue
        token, patches = tokens[:, 0], tokens[:, 1:]
        weights = of_tokens.pop(0).mT / token.norm(dim=-1).view(-1, 1, 1)  # [B, w, K]
        products.append((written @ weights, _rest(token - written.sum(1), weights)))
        if number < tower.spec.depth:
            products += [
                _of_patches(share, of_patches.pop(0)) for share in _mean_and_spread(patches)
            ]
    norm: Any = tower.late_norm if tower.spec.late_norm else tower.norm
    head, token = tower.head, tokens[:, 0]
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


def read_tokens(block: Any, tokens: Tensor) -> Tensor:
    """What the class token reads from each token in a block, [B, T, w], without the bias."""
    normed = block.norm1(tokens)
    q, k, v = (
        states.unflatten(-1, (block.heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
        for states in (block.query(normed[:, :1]), block.key(normed), block.value(normed))
    )
    weights = attention_weights(q, k)  # [B, heads, 1, T]
    read = (weights.mT * v).transpose(1, 2).flatten(2)
    written: Tensor = block.ls1(read @ block.proj.weight.mT)
    return written


def attention_weights(query: Tensor, key: Tensor) -> Tensor:
    weights: Tensor = (query @ key.mT * query.shape[-1] ** -0.5).softmax(dim=-1)
    return weights
