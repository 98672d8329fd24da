"""CLIP's and SigLIP's text towers: pre-norm blocks, then one token's state is projected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._layers import Block, empty_embedding
from ogkd.backbones.base import TextDropout, Tokens


@dataclass(frozen=True)
class TextSpec:
    """Everything that determines what the text tower computes, besides its weights."""

    width: int
    depth: int
    heads: int
    inner: int  # width of the MLP
    vocabulary: int
    positions: int
    embed_dim: int
    act: str
    eps: float
    dropout: float
    # The id of the token whose state is projected (CLIP). None: the last position, padding or not
    # (SigLIP, which attends in both directions without a mask).
    end: int | None = None
    proj_bias: bool = False
    # CONCH: a vector of its own after the text is projected; padding has this id.
    summary_pad: int | None = None


class TextTower(nn.Module):
    """Map word embeddings [B, L, w] to one projected feature per text.

    With an end token, attention is causal, so what follows the end of a text changes nothing: texts
    trimmed to the longest of them give exactly the features of padded ones. Without one, texts are
    padded to the full context, as in training.
    """

    def __init__(self, spec: TextSpec) -> None:
        super().__init__()
        self.spec = spec
        self.pads_fully = spec.end is None and spec.summary_pad is None
        self.words = empty_embedding(spec.vocabulary, spec.width)
        self.positions = empty_embedding(spec.positions, spec.width)
        self.blocks = nn.ModuleList(
            Block(spec.width, spec.heads, spec.inner, act=spec.act, eps=spec.eps)
            for _ in range(spec.depth)
        )
        self.norm = nn.LayerNorm(spec.width, spec.eps)
        self.proj = nn.Linear(spec.width, spec.embed_dim, bias=spec.proj_bias)
        if spec.summary_pad is not None:
            self.summary = nn.Parameter(torch.empty(spec.width))

    def forward(
        self,
        embeddings: Tensor,
        tokens: Tokens,
        dropout: TextDropout | None,
        change: Any = None,
    ) -> Tensor:
        """Features [B, d], not normalised."""
        if self.spec.summary_pad is not None:
            return self._summarised(embeddings, tokens.mask, change)
        hidden = embeddings + self.positions.weight[: embeddings.shape[1]]
        rate, causal = self.spec.dropout, self.spec.end is not None
        for number, block in enumerate(self.blocks):
            if change is not None:
                hidden = change.text(number, hidden)
            hidden = block(hidden, causal=causal, dropout=dropout, rate=rate)
        rows = torch.arange(len(hidden), device=hidden.device)
        features: Tensor = self.proj(self.norm(hidden[rows, self.ends(tokens)]))
        return features

    def _summarised(self, embeddings: Tensor, mask: Tensor, change: Any) -> Tensor:
        """CONCH's reading: the vector stands at the last position and attends to the text.

        As published, its mask is one position too late: it also attends to the padding after the
        text, but to itself only where a text leaves no padding.
        """
        last = self.spec.positions - 1
        if embeddings.shape[1] < last:
            padding = self.words.weight[self.spec.summary_pad].expand(len(mask), 1, -1)
            embeddings = torch.cat([embeddings, padding], dim=1)
        length = embeddings.shape[1]
        summary = (self.summary + self.positions.weight[last]).expand(len(mask), 1, -1)
        hidden = torch.cat([embeddings + self.positions.weight[:length], summary], dim=1)
        reads = torch.ones(length + 1, length + 1, dtype=torch.bool, device=mask.device).tril()
        reads = reads.expand(len(mask), -1, -1).clone()  # [B, L, L]
        reads[:, -1] = False
        reads[:, -1, 0] = True
        reads[:, -1, 1 : mask.shape[1] + 1] = mask
        for number, block in enumerate(self.blocks):
            if change is not None:
                hidden = change.text(number, hidden)
            hidden = block(hidden, mask=reads.unsqueeze(1))
        features: Tensor = self.proj(self.norm(hidden[:, -1]))
        return features

    def ends(self, tokens: Tokens) -> Tensor:
        """The position of the token that stands for each text, [B]."""
        if self.spec.end is None:
            return torch.full_like(tokens.ids[:, 0], tokens.ids.shape[1] - 1)
        if self.spec.end == 2:
            # Checkpoints from before 2023 name a wrong id; their end-of-text id is the largest.
            return tokens.ids.masked_fill(~tokens.mask, -1).argmax(dim=1)
        is_end: Tensor = (tokens.ids == self.spec.end) & tokens.mask
        return is_end.int().argmax(dim=1)
