"""The one loop that trains contexts: S runs side by side in one pass of the text tower.

A method gives the objective; the loop has batches, steps and checkpoints. All randomness of an
epoch is a function of (seed, epoch), so an interrupted run resumes exactly as it would have
continued, and a run trained with others sees the same draws as when trained alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ogkd.backbones.base import TextDropout
from ogkd.core.batches import Batch, Run, batch_slices, batches_from
from ogkd.core.checkpoint import Checkpoint, TrainingState
from ogkd.core.optimisers import (
    TrainConfig,
    epoch_weights,
    learning_rate,
    make_optimiser,
    snapshot,
)
from ogkd.core.prompting import PromptLearner
from ogkd.errors import ConfigError, Interrupted, TrainingError
from ogkd.progress import progress_bar

# Streams of one epoch's randomness, kept separate so that using one never shifts another: the
# first is that of the batches.
_log = logging.getLogger("ogkd.fit")
_DROPOUT, _INIT = 1, 2
_WINDOW = 20  # epochs
_SMALL_STEP = 10_000_000  # tokens times width squared; BiomedCLIP at 4 classes has twice that


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


def converged(losses: Tensor, config: TrainConfig) -> Tensor:
    """Which runs [S] have ended, by the cross-entropies [t, S] of their epochs so far.

    A run ends when its own images have at most `enough`: what follows fits these few ever better,
    and others worse. Or when the last 20 epochs have lowered it by no more than `tolerance` of
    what all have. Images that were left out would tell more, but one shot leaves none to leave out.

    >>> falling, level = torch.arange(22.0, 0, -1).unsqueeze(1), torch.ones(22, 1)
    >>> slow = TrainConfig(tolerance=0.5)
    >>> converged(falling, slow), converged(level, slow), converged(falling, TrainConfig(enough=1))
    (tensor([False]), tensor([True]), tensor([True]))
    """
    ended = torch.zeros(losses.shape[1:], dtype=torch.bool)
    if config.enough:
        ended = (losses <= config.enough).any(dim=0)
    if config.tolerance and len(losses) > _WINDOW:
        late = losses[_WINDOW:]
        slow = losses[:-_WINDOW] - late <= config.tolerance * (losses[0] - late)  # [t - 20, S]
        ended = ended | slow.any(dim=0)
    return ended


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
    """Train one context per run and return them stacked: [S, n_ctx, w].

    The learner defines what a context is: any tensor that `initial_context` returns and
    `text_features` accepts. With a `checkpoint`, progress is saved every few epochs and a
    finished or interrupted training is resumed from there.
    """
    _refuse_unequal(runs)
    device = learner.embeddings.device
    state = _first_state(learner, runs, config)
    if checkpoint is not None and (saved := checkpoint.load()) is not None:
        state = saved
        if 0 < state.epoch < config.epochs:
            again = state.epoch + 1
            _log.warning(
                f"Note: An interrupted training continues at epoch {again} of {config.epochs}."
            )
    # A copy: an interruption in the first epoch saves the state as it was before.
    contexts = state.contexts.clone().to(device).requires_grad_()
    steps = len(batch_slices(len(runs[0].views), config))
    step_size = len(runs) * learner.tokens.ids.numel() * learner.backbone.text_width**2
    optimiser = make_optimiser(contexts, state, config, state.epoch * steps)
    weights = epoch_weights(config, config.epochs)

    def say_time(seconds: float) -> None:
        _log.info(f"About {max(steps * seconds, 1):,.0f} s for each of {config.epochs} epochs.")

    tell = say_time if learner.sees_pixels else None  # others are done in minutes
    with (
        closing(batches_from(state.epoch, runs, config, device)) as batches,
        one_thread(step_size < _SMALL_STEP and not learner.sees_pixels),
        progress_bar("Training", config.epochs) as bar,
    ):
        bar.advance(state.epoch)
        log = log or (lambda entry: None)
        entry: dict[str, Any] | None = None  # of the last epoch, until it is logged
        try:
            for epoch in range(state.epoch, config.epochs):
                ended = converged(state.losses, config).to(device)
                if bool(ended.all()):
                    break
                began, before = time.perf_counter(), contexts.detach().clone()
                optimiser.param_groups[0]["lr"] = learning_rate(epoch, config)
                dropout = _dropout_of(runs, epoch) if text_dropout else None
                terms = _one_epoch(
                    learner,
                    objective,
                    contexts,
                    optimiser,
                    islice(batches, steps),
                    dropout,
                    epoch,
                    tell,
                )
                tell = None
                with torch.no_grad():  # a run that has ended waits for the others
                    contexts[ended] = before[ended]
                watched = terms.get("ce", terms["total"])
                losses = torch.cat([state.losses, torch.tensor([watched])])
                # A new tensor: an interruption keeps the state as it was before.
                share = weights[epoch] if weights else 0.0
                average = (
                    state.average + share * contexts.detach().cpu() if share else state.average
                )
                state = snapshot(contexts, optimiser, epoch + 1, losses, average)
                rate, seconds = learning_rate(epoch, config), time.perf_counter() - began
                entry = {"epoch": epoch, "lr": rate, "seconds": seconds, "terms": terms}
                # First the log: an epoch that a kill leaves without a checkpoint is logged again,
                # one that it left without a line would be missing.
                log(entry)
                last = epoch + 1 == config.epochs or bool(converged(losses, config).all())
                if checkpoint is not None and (last or (epoch + 1) % config.checkpoint_every == 0):
                    checkpoint.save(state)
                entry = None
                bar.advance()
                bar.describe(f"loss {np.mean(terms['total']):.3f}")  # its terms are in the log
        except KeyboardInterrupt:
            if checkpoint is None:
                raise
            raise _interrupted(checkpoint, state, log, entry, config.epochs) from None
    done = sum(weights[: state.epoch])
    return state.average / done if done else contexts.detach().cpu()


def _first_state(learner: PromptLearner, runs: Sequence[Run], config: TrainConfig) -> TrainingState:
    """Before the first epoch: the initial contexts, and nothing of what is summed up."""
    first = torch.stack([learner.initial_context(_init_rng(run.seed)) for run in runs])
    average = torch.zeros_like(first) if config.average else torch.zeros(0)
    return TrainingState(first, torch.zeros(0), 0, torch.zeros(0, len(runs)), average)


def _interrupted(
    checkpoint: Checkpoint,
    state: TrainingState,
    log: Callable[[Mapping[str, Any]], None],
    entry: Mapping[str, Any] | None,
    epochs: int,
) -> Interrupted:
    """Save what is done; the error that says where."""
    checkpoint.save(state)
    if entry is not None:
        # The epoch is done, so it must be in the log; twice does no harm.
        with suppress(KeyboardInterrupt):
            log(entry)
    return Interrupted(
        f"Stopped after epoch {state.epoch} of {epochs}; saved as {checkpoint.path}. Run the same "
        "fit again to resume from there."
    )


@contextmanager
def one_thread(small: bool) -> Iterator[None]:
    """Use one thread for small work: a second gains little, and waits on a busy machine."""
    before = torch.get_num_threads()
    if small:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _one_epoch(
    learner: PromptLearner,
    objective: Objective,
    contexts: Tensor,
    optimiser: torch.optim.Optimizer,
    batches: Iterable[Batch],
    dropout: TextDropout | None,
    epoch: int,
    tell: Callable[[float], None] | None,
) -> dict[str, list[float]]:
    """Step through every batch; return each term's mean over the steps, one number per run.

    `tell` gets the seconds of the first.
    """
    history: dict[str, list[Tensor]] = {}
    began = time.perf_counter()
    for step, batch in enumerate(batches):
        terms = train_step(learner, objective, contexts, optimiser, batch, dropout)
        _refuse_nonfinite(terms, epoch, step)
        for name, value in terms.items():
            history.setdefault(name, []).append(value.detach())
        if tell is not None and step == 0:
            tell(time.perf_counter() - began)
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
    batch = learner.see(contexts, batch)
    terms = objective(T_hat, batch)
    optimiser.zero_grad()
    if isinstance(objective, OwnGradient):
        contexts.grad = objective.gradient(terms, contexts)
    else:
        # Runs share no parameter, so the gradient of the sum is that of each run.
        terms["total"].sum().backward()
    optimiser.step()
    return terms


def _dropout_of(runs: Sequence[Run], epoch: int) -> TextDropout:
    return TextDropout([_mixed(run.seed, epoch, _DROPOUT) for run in runs])


def _mixed(seed: int, epoch: int, stream: int) -> int:
    """64 bits that differ for each stream of each epoch of each seed."""
    return int(np.random.SeedSequence([seed, epoch, stream]).generate_state(1, np.uint64)[0])


def _init_rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(_mixed(seed, 0, _INIT) >> 1)


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
