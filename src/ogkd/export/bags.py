"""The answer for one bag inside the graph: `core.pooling` for the pictures of a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.core.pooling import Pooling, relative
from ogkd.errors import ConfigError
from ogkd.model.card import BagCard

WEIGHTS = "weights"  # the output that only models of bags have


class PooledBag(nn.Module):
    """Logits of the pictures of one bag [N, C] in; its logits [1, C] and their weights [N] out."""

    others: Tensor
    nothing: Tensor
    bias: Tensor

    def __init__(self, pooling: Pooling, classes: int) -> None:
        super().__init__()
        self.pooling = pooling
        findings = [label for label in range(classes) if label not in pooling.normal]
        # "Nothing found" is decided by no picture: then the finding that came nearest counts.
        others = torch.full((classes,), -math.inf)
        others[findings] = 0.0
        nothing = torch.zeros(classes, dtype=torch.bool)
        if findings:
            nothing[list(pooling.normal)] = True
        self.register_buffer("others", others)
        self.register_buffer("nothing", nothing)
        self.register_buffer("bias", torch.tensor(pooling.bias or (0.0,) * classes))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        own, tau = relative(z, self.pooling.normal), self.pooling.tau
        if math.isinf(tau):
            pooled = own.mean(0, keepdim=True)
        else:
            top = own.amax(0, keepdim=True)
            pooled = top if tau == 0 else top + tau * ((own - top) / tau).exp().mean(0).log()
        count = torch.ones_like(own[:, 0]).sum()  # inside the graph: bags have any size
        usual = (1 - 1 / count) * own.mean(0, keepdim=True)
        pooled = self.pooling.heat * pooled - self.pooling.usual * usual + self.bias  # [1, C]
        label = pooled.argmax(1)  # [1]
        label = torch.where(self.nothing[label], (pooled + self.others).argmax(1), label)
        said = own.index_select(1, label).squeeze(1)  # [N]
        if math.isinf(tau):
            weights = torch.ones_like(said)
        elif tau == 0:
            weights = (said == said.amax(0)).to(said)
        else:
            weights = (said / tau).softmax(0)
        return pooled, weights / weights.sum()


def refuse_for_bags(*, raw_pixels: bool, int8: bool) -> None:
    """Options that only make sense for images one by one."""
    for option, asked, why in (
        ("raw_pixels", raw_pixels, "pictures of a bag come as one batch, so in one size"),
        ("int8", int8, "what 8 bits cost is measured on single images"),
    ):
        if asked:
            raise ConfigError(
                f"This model answers bags of pictures: {why}. Export without {option}.",
                argument=option,
            )


def bag_metadata(card: BagCard, pooling: Pooling) -> dict[str, Any]:
    """What a program needs to make bags, and to pool those that do not fit into one batch."""
    return {
        "by": card.by,
        "slices": card.slices,
        "tau": None if math.isinf(pooling.tau) else pooling.tau,
        "heat": pooling.heat,
        "usual": pooling.usual,
        "bias": list(pooling.bias),
        "normal": list(pooling.normal),
        "steps": "The N pictures of a batch are one bag: `probabilities` is its answer, `weights` "
        "the share of each picture in it. A bag too large for one batch: run it in parts, ask for "
        "`logits` alone, join them to z [N, C], and pool: r = z - logsumexp(z over the classes "
        "`normal`, or over all if there are none); s = tau * log(mean(exp(r / tau))) over the "
        "pictures (tau 0: the largest; null: the mean); u = (1 - 1 / N) * mean(r) over them; "
        "probabilities = softmax((heat * s - usual * u + bias) / temperature).",
    }
