"""Optimiser and schedule of contexts: settings, rates, and a state to go on from."""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, model_validator
from torch import Tensor

from ogkd.core.checkpoint import TrainingState

_ADAM = ("exp_avg", "exp_avg_sq")  # torch's names of its two averages


class Settings(BaseModel):
    """Settings whose numbers tensors of single precision can hold; unknown ones are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @model_validator(mode="after")
    def _representable(self) -> Self:
        most = torch.finfo(torch.float32).max
        for name, value in self:
            if isinstance(value, float) and abs(value) > most:
                raise ValueError(f"{name} must be at most {most:.2g}, but is {value:g}")
        return self


class TrainConfig(Settings):
    """Optimiser and schedule (fidelity.md, 23-26) with the released code's values.

    "sgd" is the released recipe. "adam" has a constant rate and drops no image; images that are
    one batch stay in their order. "adamw" has the schedule of "sgd" and decoupled weight decay.
    `tolerance` and `enough` end a run (`converged`). With `average`, (mean, deviation), the result
    is the contexts of all epochs, epoch e weighted by N(e; mean, deviation), as in PromptSRC.
    """

    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"  # sgd as released, adam at a constant rate
    epochs: int = Field(default=100, ge=1)  # passes over the images, at most
    tolerance: float = Field(default=0.0, ge=0, lt=1)  # end at a fall below this share; 0: never
    enough: float = Field(default=0.0, ge=0)  # end at this cross-entropy of the images; 0: never
    batch_size: int = Field(default=4, ge=1)  # images in each step
    lr: float = Field(default=2.5e-3, gt=0)  # learning rate
    momentum: float = Field(default=0.9, ge=0, lt=1)  # of sgd
    weight_decay: float = Field(default=5e-4, ge=0)  # of the context
    warmup_epochs: int = Field(default=1, ge=0)  # first epochs, at warmup_lr
    warmup_lr: float = Field(default=1e-5, ge=0)  # rate in them
    drop_last: bool = True  # leave out an incomplete last batch
    checkpoint_every: int = Field(default=5, ge=1)  # epochs between saved states
    average: tuple[PositiveFloat, PositiveFloat] | None = None  # of epochs: mean, deviation


def learning_rate(epoch: int, config: TrainConfig) -> float:
    """Constant warm-up, then a cosine over all epochs, stepped per epoch (fidelity.md, 24)."""
    if config.optimiser == "adam":
        return config.lr
    if epoch < config.warmup_epochs:
        return config.warmup_lr
    turn = math.pi * (epoch - config.warmup_epochs) / config.epochs
    return config.lr * (1 + math.cos(turn)) / 2


def epoch_weights(config: TrainConfig, epochs: int) -> list[float]:
    """The weight of each of so many epochs, the first numbered 1, in a Gaussian average: sum 1.

    Empty if contexts are not averaged.

    >>> epoch_weights(TrainConfig(average=(2.0, 1e-3)), 3)
    [0.0, 1.0, 0.0]
    """
    if config.average is None:
        return []
    mean, deviation = config.average
    exponents = [-(((epoch - mean) / deviation) ** 2) / 2 for epoch in range(1, epochs + 1)]
    powers = [math.exp(exponent - max(exponents)) for exponent in exponents]
    return [power / sum(powers) for power in powers]


def make_optimiser(
    contexts: Tensor, state: TrainingState, config: TrainConfig, steps: int
) -> torch.optim.Optimizer:
    """The optimiser as it was when `state` was saved, after that many steps."""
    kept, decay = state.momentum.to(contexts.device), config.weight_decay
    if config.optimiser == "sgd":
        sgd = torch.optim.SGD(
            [contexts], lr=config.lr, momentum=config.momentum, weight_decay=decay
        )
        if kept.numel():
            sgd.state[contexts]["momentum_buffer"] = kept
        return sgd
    plain = config.optimiser == "adam"
    betas = (config.momentum, 0.99 if plain else 0.999)  # 0.999 would be longer than `auto` trains
    kind = torch.optim.Adam if plain else torch.optim.AdamW
    adam = kind([contexts], lr=config.lr, betas=betas, weight_decay=decay)
    if kept.numel():
        averages = dict(zip(_ADAM, kept, strict=True))
        adam.state[contexts] = {"step": torch.tensor(float(steps)), **averages}
    return adam


def snapshot(
    contexts: Tensor,
    optimiser: torch.optim.Optimizer,
    epoch: int,
    losses: Tensor,
    average: Tensor,
) -> TrainingState:
    known = optimiser.state[contexts]
    parts = [known[name] for name in _ADAM if name in known]
    momentum = torch.stack(parts) if parts else known.get("momentum_buffer")
    kept = torch.zeros(0) if momentum is None else momentum.detach().cpu().clone()
    return TrainingState(contexts.detach().cpu().clone(), kept, epoch, losses, average)
