"""BERT's forward pass from word embeddings to hidden states, with optional dropout.

The forward pass is differentiable in the word embeddings and takes its dropout from the caller's
random streams. It reads transformers' BertModel, or `Bert`: the same layers under the same names,
without the import, which takes longer than encoding a text.

A training step passes a few dozen tokens through the text tower. A plain product of so few rows
spends much of its time rearranging the weights into the kernel's layout. Frozen weights never
change, so `frozen_linear` keeps them in that layout, for the product and for its gradient.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

from ogkd.backbones._folder import KeyTable, Weights
from ogkd.backbones._open_clip_config import BertConfigFile, OpenClipConfig
from ogkd.backbones._towers import attend, empty_embedding, release_pages, tree
from ogkd.backbones.base import TextDropout
from ogkd.errors import BackboneError

_BERT = "text.transformer."
_STANDARD_WIDTHS = (128, 256, 512, 768, 1024)  # of the BERT family with heads of 64
# With AVX-512 the laid-out product is faster for any number of rows. Without, torch's own is as
# fast from some number on. Without a gradient, few rows do not repay the laying out.
MOST_ROWS = 128
WORTH_IT = 512

_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "gelu": nn.GELU,
    "gelu_new": partial(nn.GELU, approximate="tanh"),
    "relu": nn.ReLU,
}

_packs: WeakKeyDictionary[nn.Linear, Tensor] = WeakKeyDictionary()  # for the product
_back_packs: WeakKeyDictionary[nn.Linear, Tensor] = WeakKeyDictionary()  # for its gradient


def derive_bert_config(weights: Weights) -> BertConfigFile:
    """Derive BERT's configuration from the shapes of its weights, for want of a config.json."""

    def shape(key: str) -> tuple[int, ...]:
        return weights.shape(_BERT + key, axes=2)

    rows, width = shape("embeddings.word_embeddings.weight")
    if width not in _STANDARD_WIDTHS:
        raise BackboneError(f"{weights.file.parent} needs the config.json of its BERT.")
    prefix = _BERT + "encoder.layer."
    named = [key.removeprefix(prefix) for key in weights.tensors if key.startswith(prefix)]
    return BertConfigFile(
        hidden_size=width,
        num_hidden_layers=max((int(key.split(".")[0]) for key in named), default=0) + 1,
        num_attention_heads=width // 64,
        intermediate_size=shape("encoder.layer.0.intermediate.dense.weight")[0],
        vocab_size=rows,
        max_position_embeddings=shape("embeddings.position_embeddings.weight")[0],
        type_vocab_size=shape("embeddings.token_type_embeddings.weight")[0],
    )


class Bert(nn.Module):
    """BERT's layers under transformers' names; `bert_hidden` computes with them."""

    def __init__(self, config: BertConfigFile, *, pooler: bool) -> None:
        super().__init__()
        self.config = config
        width, inner, eps = config.hidden_size, config.intermediate_size, config.layer_norm_eps

        def output(size: int) -> Any:
            return tree(dense=nn.Linear(size, width), LayerNorm=nn.LayerNorm(width, eps))

        def layer() -> Any:
            queries = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
            dense, act = nn.Linear(width, inner), _ACTIVATIONS[config.hidden_act]()
            return tree(
                attention=tree(self=tree(**queries), output=output(width)),
                intermediate=tree(dense=dense, intermediate_act_fn=act),
                output=output(inner),
            )

        self.embeddings: Any = tree(
            word_embeddings=empty_embedding(config.vocab_size, width),
            position_embeddings=empty_embedding(config.max_position_embeddings, width),
            token_type_embeddings=empty_embedding(config.type_vocab_size, width),
            LayerNorm=nn.LayerNorm(width, eps),
        )
        layers = nn.ModuleList(layer() for _ in range(config.num_hidden_layers))
        self.encoder = tree(layer=layers)
        if pooler:
            dense = OrderedDict(dense=nn.Linear(width, width), activation=nn.Tanh())
            self.pooler = nn.Sequential(dense)


class TextTower(nn.Module):
    """Map word embeddings [B, L, w] to one projected feature per text."""

    def __init__(self, config: OpenClipConfig, bert: BertConfigFile) -> None:
        super().__init__()
        if bert.hidden_size % bert.num_attention_heads:
            raise BackboneError(
                f"hidden_size {bert.hidden_size} in config.json is not a multiple of "
                f"num_attention_heads {bert.num_attention_heads}."
            )
        self.pooling = config.text_cfg.hf_pooler_type
        self.bert = Bert(bert, pooler=self.pooling == "cls_pooler")
        self.proj = _projection(config, bert.hidden_size)

    def forward(self, embeddings: Tensor, mask: Tensor, dropout: TextDropout | None) -> Tensor:
        """Features [B, d], not normalised."""
        first_only = self.pooling not in ("mean_pooler", "max_pooler")
        hidden = bert_hidden(self.bert, embeddings, mask, dropout, first_only=first_only)
        return self.proj(self._pool(hidden, mask))  # type: ignore[no-any-return]

    def _pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        if self.pooling == "mean_pooler":
            weight = mask.unsqueeze(-1).to(hidden.dtype)
            return (hidden * weight).sum(dim=1) / weight.sum(dim=1)
        if self.pooling == "max_pooler":
            return hidden.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(dim=1)
        if self.pooling == "cls_pooler":
            return self.bert.pooler(hidden[:, 0])  # type: ignore[no-any-return]
        return hidden[:, 0]


def _projection(config: OpenClipConfig, width: int) -> nn.Module:
    out, kind = config.embed_dim, config.text_cfg.hf_proj_type
    if kind == "linear":
        return nn.Linear(width, out, bias=False)
    if kind == "mlp":
        middle = (width + out) // 2
        return nn.Sequential(
            nn.Linear(width, middle, bias=False), nn.GELU(), nn.Linear(middle, out, bias=False)
        )
    if width != out:
        raise BackboneError(f"The text tower is {width} wide, but embed_dim is {out}.")
    return nn.Identity()


def bert_hidden(
    model: Any,
    embeddings: Tensor,
    mask: Tensor,
    dropout: TextDropout | None = None,
    *,
    first_only: bool = False,
) -> Tensor:
    """Last hidden states [B, L, w] of a BertModel for word embeddings [B, L, w].

    `mask` [B, L] is True where there is a token. With `dropout`, BERT's own rates apply in
    BERT's own places: after the embeddings' norm, on the attention probabilities, and after
    both output layers of a block. `first_only` returns only the first token's state, [B, 1, w],
    and skips what the last block computes for the others.
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
    for number, layer in enumerate(model.encoder.layer):
        queries = rows
        if first_only and number == last:
            queries = _Rows(mask[:, :1])
        attended, hidden = _attention(layer.attention.self, hidden, rows, queries, config, dropout)
        output = layer.attention.output
        hidden = output.LayerNorm(drop(frozen_linear(output.dense, attended)) + hidden)
        output, inner = layer.output, layer.intermediate
        wide = inner.intermediate_act_fn(frozen_linear(inner.dense, hidden))
        hidden = output.LayerNorm(drop(frozen_linear(output.dense, wide)) + hidden)
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


def text_table(tower: TextTower, prefix: str) -> KeyTable:
    """Map keys of the file to parameters of `tower`, whose name in the whole model is `prefix`.

    Both sides follow transformers, so BERT's keys differ only by the prefix.
    """
    table = {f"{_BERT}{key}": (f"{prefix}bert.{key}",) for key, _ in tower.bert.named_parameters()}
    for key, _ in tower.proj.named_parameters():
        table[f"text.proj.{key}"] = (f"{prefix}proj.{key}",)
    return table


def frozen_linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """Compute `layer(values)` for a frozen layer, faster for a gradient or for many rows.

    Which product it is depends on the values alone, not on what was computed before: their
    last bits differ.
    """
    if not _packable(layer, values):
        return functional.linear(values, layer.weight, layer.bias)
    if layer not in _packs:
        _packs[layer] = _pack(layer.weight.detach())
    if not values.requires_grad:
        return _product(values.contiguous(), _packs[layer], layer.bias)
    if layer not in _back_packs:
        _back_packs[layer] = _pack(layer.weight.detach().mT.contiguous())
        release_pages([layer.weight])  # there are two copies of it now
    product: Tensor = _PackedLinear.apply(  # type: ignore[no-untyped-call]
        values, _packs[layer], _back_packs[layer], layer.bias
    )
    return product


def _packable(layer: nn.Linear, values: Tensor) -> bool:
    weight, rows = layer.weight, values.numel() // values.shape[-1]
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return (
        values.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and not weight.requires_grad
        and (wide or rows <= MOST_ROWS if values.requires_grad else wide and rows >= WORTH_IT)
        and min(weight.shape) >= 128  # small layers gain nothing
        and _supported()
    )


def _supported() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_reorder_linear_weight"
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, MOST_ROWS // 4)
    return packed


def _product(values: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, packed, bias, "none", [], "")
    return product


class _PackedLinear(torch.autograd.Function):
    """v W' + b, differentiable in v alone."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, there: Tensor, back: Tensor, bias: Tensor) -> Tensor:
        ctx.back = back
        return _product(values.contiguous(), there, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _product(gradients[0].contiguous(), ctx.back, None), None, None, None
