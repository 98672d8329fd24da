"""The one loop that trains contexts: S runs side by side in one pass of the text tower.

A method gives the objective; the loop has batches, steps and checkpoints. All randomness of an
epoch is a function of (seed, epoch), so an interrupted run resumes exactly as it would have
continued, and a run trained with others sees the same draws as when trained alone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ogkd.backbones.base import ImageFeatures, TextDropout
from ogkd.core.checkpoint import Checkpoint, TrainingState
from ogkd.core.prompting import PromptLearner
from ogkd.errors import ConfigError, Interrupted, TrainingError
from ogkd.progress import progress_bar

# Streams of one epoch's randomness, kept separate so that using one never shifts another.
_ORDER, _DROPOUT, _INIT = range(3)
_SMALL_STEP = 10_000_000  # tokens times width squared; BiomedCLIP at 4 classes has twice that


class TrainConfig(BaseModel):
    """Optimiser and schedule (fidelity.md, 23-26) with the released code's values."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=4, ge=1)
    lr: float = Field(default=2.5e-3, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=5e-4, ge=0)
    warmup_epochs: int = Field(default=1, ge=0)
    warmup_lr: float = Field(default=1e-5, ge=0)
    drop_last: bool = True
    checkpoint_every: int = Field(default=5, ge=1)


class Views(Protocol):
    """The support images as training sees them: cached crops, or a new one each time."""

    def __len__(self) -> int: ...

    def look(self, images: NDArray[np.int64], rng: np.random.Generator) -> ImageFeatures:
        """Return the features of one view of each image."""
        ...


@dataclass(frozen=True)
class Run:
    """One training run: its images, its labels [N] and the seed of all its randomness."""

    views: Views
    labels: Tensor
    seed: int


@dataclass(frozen=True)
class Batch:
    """One batch of each of S runs."""

    globals: Tensor  # [S, B, d]
    labels: Tensor  # [S, B]
    patches: Tensor | None  # [S, B, P, d]


class Objective(Protocol):
    """What a method minimises: a dict of terms, one value per run [S], including "total".

    T_hat is [S, C, d], or [S, B, C, d] if each image has its own texts.
    """

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]: ...


@runtime_checkable
class OwnGradient(Protocol):
    """An objective that replaces the gradient of "total" with its own direction."""

    def gradient(self, terms: Mapping[str, Tensor], parameters: Tensor) -> Tensor:
        """Return what the optimiser uses as gradient, in the shape of the parameters [S, ...]."""
        ...


def learning_rate(epoch: int, config: TrainConfig) -> float:
    """Constant warm-up, then a cosine over all epochs, stepped per epoch (fidelity.md, 24)."""
    if epoch < config.warmup_epochs:
        return config.warmup_lr
    turn = math.pi * (epoch - config.warmup_epochs) / config.epochs
    return config.lr * (1 + math.cos(turn)) / 2


def train_contexts(
    learner: PromptLearner,
    runs: Sequence[Run],
    objective: Objective,
    config: TrainConfig,
    *,
    text_dropout: bool = False,
    checkpoint: Checkpoint | None = None,
    log: Callable[[Mapping[str, Any]], None] | None = None,
) -> Tensor:
    """Train one context per run and return them stacked: [S, n_ctx, w] (or [S, C, n_ctx, w]).

    The learner defines what a context is: any tensor that `initial_context` returns and
    `text_features` accepts. With a `checkpoint`, progress is saved every few epochs and a
    finished or interrupted training is resumed from there.
    """
    _refuse_unequal(runs)
    device = learner.embeddings.device
    start = [learner.initial_context(_torch_rng(run.seed, 0, _INIT)) for run in runs]
    state = TrainingState(torch.stack(start), torch.zeros(0), epoch=0)
    if checkpoint is not None and (found := checkpoint.load()) is not None:
        state = found
    contexts = state.contexts.to(device).requires_grad_()
    optimiser = torch.optim.SGD(
        [contexts], lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    if state.momentum.numel():
        optimiser.state[contexts]["momentum_buffer"] = state.momentum.to(device)
    with _fitting_threads(learner, len(runs)), progress_bar("Training", config.epochs) as bar:
        bar.advance(state.epoch)
        try:
            for epoch in range(state.epoch, config.epochs):
                began = time.perf_counter()
                for group in optimiser.param_groups:
                    group["lr"] = learning_rate(epoch, config)
                terms = _one_epoch(
                    learner, runs, objective, config, contexts, optimiser, epoch, text_dropout
                )
                state = _snapshot(contexts, optimiser, epoch + 1)
                last = epoch + 1 == config.epochs
                if checkpoint is not None and (last or (epoch + 1) % config.checkpoint_every == 0):
                    checkpoint.save(state)
                seconds = time.perf_counter() - began
                if log is not None:
                    rate = learning_rate(epoch, config)
                    log({"epoch": epoch, "lr": rate, "seconds": seconds, "terms": terms})
                bar.advance()
                shown = "  ".join(f"{n} {np.mean(v):.3f}" for n, v in terms.items())
                bar.describe(f"{shown}  {1 / seconds:.1f} epochs/s")
        except KeyboardInterrupt:
            if checkpoint is None:
                raise
            checkpoint.save(state)
            raise Interrupted(
                f"Stopped after epoch {state.epoch} of {config.epochs}; saved as "
                f"{checkpoint.path}. Run the same fit again to resume from there."
            ) from None
    return contexts.detach().cpu()


@contextmanager
def _fitting_threads(learner: PromptLearner, runs: int) -> Iterator[None]:
    """Use one thread if a step is small: a second gains little, and waits on a busy machine."""
    before = torch.get_num_threads()
    tokens = runs * learner.tokens.ids.numel()
    if tokens * learner.backbone.text_width**2 < _SMALL_STEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_epoch(
    learner: PromptLearner,
    runs: Sequence[Run],
    objective: Objective,
    config: TrainConfig,
    contexts: Tensor,
    optimiser: torch.optim.Optimizer,
    epoch: int,
    text_dropout: bool,
) -> dict[str, list[float]]:
    """Step through every batch; return each term's mean over the steps, one number per run."""
    device = contexts.device
    rngs = [np.random.default_rng([run.seed, epoch, _ORDER]) for run in runs]
    orders = [rng.permutation(len(run.views)) for rng, run in zip(rngs, runs, strict=True)]
    dropout = None
    if text_dropout:
        dropout = TextDropout([_torch_rng(run.seed, epoch, _DROPOUT) for run in runs])
    history: dict[str, list[Tensor]] = {}
    for step, places in enumerate(_batches(len(orders[0]), config)):
        batch = _gather(runs, [order[places] for order in orders], rngs, device)
        terms = train_step(learner, objective, contexts, optimiser, batch, dropout)
        _refuse_nonfinite(terms, epoch, step)
        for name, value in terms.items():
            history.setdefault(name, []).append(value.detach())
    return {name: torch.stack(values).mean(0).tolist() for name, values in history.items()}


def train_step(
    learner: PromptLearner,
    objective: Objective,
    contexts: Tensor,
    optimiser: torch.optim.Optimizer,
    batch: Batch,
    dropout: TextDropout | None,
) -> Mapping[str, Tensor]:
    """One step of all runs: text pass, objective, gradient, update."""
    T_hat = learner.text_features(contexts, images=batch.globals, dropout=dropout)
    terms = objective(T_hat, batch)
    optimiser.zero_grad()
    if isinstance(objective, OwnGradient):
        contexts.grad = objective.gradient(terms, contexts)
    else:
        # Runs share no parameter, so the gradient of the sum is that of each run.
        terms["total"].sum().backward()
    optimiser.step()
    return terms


def _batches(count: int, config: TrainConfig) -> list[slice]:
    """Split into batches; an incomplete last one is dropped if others remain (fidelity.md, 26)."""
    size = config.batch_size
    whole = count // size * size if config.drop_last and count >= size else count
    return [slice(begin, min(begin + size, whole)) for begin in range(0, whole, size)]


def _gather(
    runs: Sequence[Run],
    images: Sequence[NDArray[np.int64]],
    rngs: Sequence[np.random.Generator],
    device: torch.device,
) -> Batch:
    seen = [run.views.look(rows, rng) for run, rows, rng in zip(runs, images, rngs, strict=True)]
    patches = [view.patches for view in seen if view.patches is not None]
    labels = [run.labels[torch.from_numpy(rows)] for run, rows in zip(runs, images, strict=True)]
    return Batch(
        globals=torch.stack([view.globals for view in seen]).to(device, torch.float32),
        labels=torch.stack(labels).to(device),
        patches=torch.stack(patches).to(device, torch.float32) if patches else None,
    )


def _snapshot(contexts: Tensor, optimiser: torch.optim.Optimizer, epoch: int) -> TrainingState:
    momentum = optimiser.state[contexts].get("momentum_buffer")
    kept = torch.zeros(0) if momentum is None else momentum.detach().cpu().clone()
    return TrainingState(contexts.detach().cpu().clone(), kept, epoch)


def _torch_rng(seed: int, epoch: int, stream: int) -> torch.Generator:
    mixed = np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0]
    return torch.Generator().manual_seed(int(mixed >> np.uint64(1)))


def _refuse_unequal(runs: Sequence[Run]) -> None:
    counts = sorted({len(run.views) for run in runs})
    if len(counts) != 1:
        raise ConfigError(
            f"Runs trained together need the same number of images, but have {counts}. "
            "Train them separately."
        )
    if counts[0] == 0:
        raise ConfigError("There are no images to train on.")


def _refuse_nonfinite(terms: Mapping[str, Tensor], epoch: int, step: int) -> None:
    if bool(torch.isfinite(terms["total"]).all()):
        return
    culprits = [n for n, v in terms.items() if n != "total" and not torch.isfinite(v).all()]
    raise TrainingError(
        f"The loss is no longer a number at epoch {epoch}, step {step + 1} "
        f"(term: {', '.join(culprits) or 'total'}). Lower train.lr or the weight of that term. "
        "Earlier results are not affected."
    )
