"""The layers that towers are assembled from, frozen, without transformers or timm.

Importing a model class of transformers takes longer than encoding an image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from ogkd.backbones.base import TextDropout


class QuickGelu(nn.Module):
    """OpenAI's approximation, x sigmoid(1.702 x)."""

    def forward(self, values: Tensor) -> Tensor:
        return values * torch.sigmoid(1.702 * values)


_TANH = partial(nn.GELU, approximate="tanh")
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "quick_gelu": QuickGelu,
    "gelu": nn.GELU,
    "gelu_new": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "relu": nn.ReLU,
}


class Scale(nn.Module):
    """LayerScale: one factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.gamma


class Block(nn.Module):
    """Norm, attention, LayerScale, norm, MLP, LayerScale; identities where there is no scale."""

    def __init__(
        self,
        width: int,
        heads: int,
        inner: int,
        *,
        act: str,
        eps: float,
        qkv_bias: bool = True,
        layer_scale: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.query, self.key, self.value = (
            nn.Linear(width, width, bias=qkv_bias) for _ in range(3)
        )
        self.proj = nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, inner), nn.Linear(inner, width)
        self.act = ACTIVATIONS[act]()
        self.ls1, self.ls2 = (Scale(width) if layer_scale else nn.Identity() for _ in range(2))

    def forward(
        self,
        hidden: Tensor,
        *,
        first_only: bool = False,
        mask: Tensor | None = None,
        causal: bool = False,
        dropout: TextDropout | None = None,
        rate: float = 0.0,
    ) -> Tensor:
        """Tokens [B, T, w] to tokens, or to the first one alone, [B, 1, w]."""
        count = 1 if first_only else hidden.shape[1]
        normed = self.norm1(hidden)
        query, key, value = (
            states.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
            for states in (self.query(normed[:, :count]), self.key(normed), self.value(normed))
        )
        mixed = attend(query, key, value, mask=mask, causal=causal, dropout=dropout, rate=rate)
        hidden = hidden[:, :count] + self.ls1(self.proj(mixed.transpose(1, 2).flatten(2)))
        return self.add_mlp(hidden)

    def add_mlp(self, hidden: Tensor) -> Tensor:
        """The second half of the block."""
        wide = self.act(self.fc1(self.norm2(hidden)))
        final: Tensor = hidden + self.ls2(self.fc2(wide))
        return final


class CrossAttention(nn.Module):
    """Queries of one width attend to tokens of another."""

    def __init__(self, width: int, context: int, heads: int, out: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key, self.value = nn.Linear(context, width), nn.Linear(context, width)
        self.proj = nn.Linear(width, out)

    def forward(self, query: Tensor, tokens: Tensor) -> Tensor:
        """[B, Q, w] and [B, T, c] to [B, Q, o]."""
        q, k, v = (
            states.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
            for states in (self.query(query), self.key(tokens), self.value(tokens))
        )
        mixed: Tensor = self.proj(attend(q, k, v).transpose(1, 2).flatten(2))
        return mixed

    def alone(self, tokens: Tensor) -> Tensor:
        """What any query reads from each token if that is the only one, [B, T, o]."""
        states: Tensor = self.proj(self.value(tokens))
        return states


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


def empty_embedding(rows: int, width: int) -> nn.Embedding:
    """An embedding to be filled; torch's own initialisation on "meta" imports its compiler."""
    table: nn.Embedding = nn.Embedding.from_pretrained(torch.empty(rows, width))
    return table


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
