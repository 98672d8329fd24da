"""BERT's forward pass from word embeddings to hidden states, with optional dropout.

The forward pass is differentiable in the word embeddings and takes its dropout from the caller's
random streams. It reads transformers' BertModel, or `Bert`: the same layers under the same names,
without the import, which takes longer than encoding a text.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from ogkd.backbones._folder import FileRecord, Size, Weights
from ogkd.backbones._frozen import frozen_linear
from ogkd.backbones._layers import ACTIVATIONS, attend, empty_embedding
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.errors import BackboneError

_EARLY = (1, 2)
_STANDARD_WIDTHS = (128, 256, 512, 768, 1024)  # of the BERT family with heads of 64


class BertConfigFile(FileRecord):
    """config.json of a BERT."""

    model_type: Literal["bert"] = "bert"
    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size = 512
    type_vocab_size: Size = 2
    hidden_act: Literal["gelu", "gelu_new", "relu"] = "gelu"
    hidden_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    attention_probs_dropout_prob: Annotated[float, Field(ge=0, lt=1)] = 0.1
    layer_norm_eps: float = 1e-12
    pad_token_id: int = 0
    position_embedding_type: Literal["absolute"] = "absolute"
    is_decoder: Literal[False] = False


def derive_bert_config(weights: Weights, prefix: str = "text.transformer.") -> BertConfigFile:
    """Derive BERT's configuration from the shapes of its weights, for want of a config.json."""

    def shape(key: str) -> tuple[int, ...]:
        return weights.shape(f"{prefix}{key}.weight", axes=2)

    rows, width = shape("embeddings.word_embeddings")
    if width not in _STANDARD_WIDTHS:
        raise BackboneError(f"{weights.file.parent} needs the config.json of its BERT.")
    return BertConfigFile(
        hidden_size=width,
        num_hidden_layers=weights.count(f"{prefix}encoder.layer"),
        num_attention_heads=width // 64,
        intermediate_size=shape("encoder.layer.0.intermediate.dense")[0],
        vocab_size=rows,
        max_position_embeddings=shape("embeddings.position_embeddings")[0],
        type_vocab_size=shape("embeddings.token_type_embeddings")[0],
    )


def _tree(**parts: nn.Module) -> Any:
    """Modules under one, by the names that they have in a checkpoint."""
    module = nn.Module()
    for name, part in parts.items():
        module.add_module(name, part)
    return module


class Bert(nn.Module):
    """BERT's layers under transformers' names; `bert_hidden` computes with them."""

    def __init__(self, config: BertConfigFile, *, pooler: bool) -> None:
        super().__init__()
        self.config = config
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps

        def output(size: int) -> Any:
            return _tree(dense=nn.Linear(size, width), LayerNorm=nn.LayerNorm(width, eps))

        def layer() -> Any:
            queries = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
            dense, act = nn.Linear(width, inner), ACTIVATIONS[config.hidden_act]()
            return _tree(
                attention=_tree(self=_tree(**queries), output=output(width)),
                intermediate=_tree(dense=dense, intermediate_act_fn=act),
                output=output(inner),
            )

        self.embeddings: Any = _tree(
            word_embeddings=empty_embedding(config.vocab_size, width),
            position_embeddings=empty_embedding(config.max_position_embeddings, width),
            token_type_embeddings=empty_embedding(config.type_vocab_size, width),
            LayerNorm=nn.LayerNorm(width, eps),
        )
        layers = nn.ModuleList(layer() for _ in range(config.num_hidden_layers))
        self.encoder = _tree(layer=layers)
        if pooler:
            dense = OrderedDict(dense=nn.Linear(width, width), activation=nn.Tanh())
            self.pooler = nn.Sequential(dense)


class BertTower(nn.Module):
    """Map word embeddings [B, L, w] to one projected feature per text."""

    pads_fully = False

    def __init__(self, bert: BertConfigFile, embed_dim: int, *, pooling: str, proj: str) -> None:
        super().__init__()
        # open_clip's hf_pooler_type; or "early_mean" (FLAIR, MedCLIP): of the blocks in _EARLY
        self.pooling = pooling
        self.bert = Bert(bert, pooler=pooling == "cls_pooler")
        self.proj = _projection(proj, bert.hidden_size, embed_dim)

    @property
    def words(self) -> nn.Embedding:
        table: nn.Embedding = self.bert.embeddings.word_embeddings
        return table

    def forward(
        self,
        embeddings: Tensor,
        tokens: Tokens,
        dropout: TextDropout | None,
        change: Any = None,
    ) -> Tensor:
        """Features [B, d], not normalised."""
        means = self.pooling in ("mean_pooler", "early_mean")
        early = _EARLY if self.pooling == "early_mean" else ()
        hidden = bert_hidden(
            self.bert,
            embeddings,
            tokens.mask,
            dropout,
            first_only=not means,
            early=early,
            change=change,
        )
        features: Tensor = self.proj(self._pool(hidden, tokens.mask))
        return features

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.pooling in ("mean_pooler", "early_mean"):
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        if self.pooling == "cls_pooler":
            return self.bert.pooler(hidden[:, 0])  # type: ignore[no-any-return]
        return hidden[:, 0]


def _projection(kind: str, width: int, out: int) -> nn.Module:
    """open_clip's hf_proj_type, "linear", "mlp" or "none"; or "norm" (CXR-BERT)."""
    if kind == "none":
        return nn.Identity()
    if kind == "linear":
        return nn.Linear(width, out, bias=False)
    if kind == "norm":
        act, norm = nn.GELU(), nn.LayerNorm(out, 1e-12)
        return nn.Sequential(nn.Linear(width, out), act, norm, nn.Linear(out, out))
    middle = (width + out) // 2
    return nn.Sequential(
        nn.Linear(width, middle, bias=False), nn.GELU(), nn.Linear(middle, out, bias=False)
    )


def bert_hidden(
    model: Any,
    embeddings: Tensor,
    mask: Tensor,
    dropout: TextDropout | None = None,
    *,
    first_only: bool = False,
    early: Collection[int] = (),
    change: Any = None,
) -> Tensor:
    """Last hidden states [B, L, w] of a BertModel for word embeddings [B, L, w].

    `mask` [B, L] is True where there is a token. With `dropout`, BERT's own rates apply in
    BERT's own places: after the embeddings' norm, on the attention probabilities, and after
    both output layers of a block. `first_only` returns only the first token's state, [B, 1, w],
    and skips what the last block computes for the others. With `early` the states are the mean of
    the last ones and of those after the blocks of these numbers, counted from 1.
    """
    config = model.config
    rate: float = config.hidden_dropout_prob

    def drop(values: Tensor) -> Tensor:
        return values if dropout is None else dropout(values, rate)

    table = model.embeddings
    rows = _Rows(mask)
    hidden: Tensor = embeddings + table.token_type_embeddings.weight[0]
    hidden = rows.take(hidden + table.position_embeddings.weight[: mask.shape[1]])  # [n, w]
    hidden = drop(table.LayerNorm(hidden))
    last = len(model.encoder.layer) - 1
    states = []
    for number, layer in enumerate(model.encoder.layer):
        queries = rows
        if change is not None:
            hidden = rows.take(change.text(number, rows.put_back(hidden)))
        if first_only and number == last:
            queries = _Rows(mask[:, :1])
        attended, hidden = _attention(layer.attention.self, hidden, rows, queries, config, dropout)
        output = layer.attention.output
        hidden = output.LayerNorm(drop(frozen_linear(output.dense, attended)) + hidden)
        output, inner = layer.output, layer.intermediate
        wide = inner.intermediate_act_fn(frozen_linear(inner.dense, hidden))
        hidden = output.LayerNorm(drop(frozen_linear(output.dense, wide)) + hidden)
        if number + 1 in early:
            states.append(hidden)
    if early:
        hidden = torch.stack([*states, hidden]).mean(dim=0)
    return queries.put_back(hidden)


class _Rows:
    """The tokens of a padded batch as rows without padding, which linear layers do not need."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self.indices = None if bool(mask.all()) else mask.flatten().nonzero().squeeze(1)

    def take(self, values: Tensor) -> Tensor:
        """[B, L, w] -> [n, w]."""
        flat = values.flatten(0, 1)
        return flat if self.indices is None else flat[self.indices]

    def put_back(self, rows: Tensor) -> Tensor:
        """[n, w] -> [B, L, w], zeros in the padding."""
        shape = (*self.mask.shape, rows.shape[1])
        if self.indices is None:
            return rows.view(shape)
        empty = rows.new_zeros(self.mask.numel(), rows.shape[1])
        return empty.index_copy(0, self.indices, rows).view(shape)


def _attention(
    module: Any,
    hidden: Tensor,
    rows: _Rows,
    queries: _Rows,
    config: Any,
    dropout: TextDropout | None,
) -> tuple[Tensor, Tensor]:
    """Attend from the `queries` tokens to all tokens; returns that and their own states, [m, w]."""
    heads: int = config.num_attention_heads
    rate: float = config.attention_probs_dropout_prob
    asking = hidden
    if queries is not rows:
        asking = queries.take(rows.put_back(hidden)[:, : queries.mask.shape[1]])

    def split(part: Any, values: Tensor, tokens: _Rows) -> Tensor:
        padded = tokens.put_back(frozen_linear(part, values))
        batch, length, _ = padded.shape
        return padded.view(batch, length, heads, -1).transpose(1, 2)  # [B, heads, L, w / heads]

    query = split(module.query, asking, queries)
    key, value = split(module.key, hidden, rows), split(module.value, hidden, rows)
    # Attention without a mask is faster, and without padding none is needed.
    keys = None if rows.indices is None else rows.mask[:, None, None, :]
    mixed = attend(query, key, value, mask=keys, dropout=dropout, rate=rate)
    return queries.take(mixed.transpose(1, 2).flatten(2)), asking
