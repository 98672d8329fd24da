"""The batches of a training: which images each run sees in each step, and in which view.

All randomness of an epoch is a function of (seed, epoch). Crops are cut in threads while earlier
batches are trained on, and those that runs have in common are cut and encoded once.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones.base import ImageFeatures
from ogkd.core.optimisers import TrainConfig
from ogkd.features.views import Cut, FixedViews, OnlineViews

_ORDER = 0  # the first stream of an epoch's randomness (training.py has the others)
_THREADS = min(8, os.cpu_count() or 1)
_AHEAD = 2  # steps whose crops are cut before they are needed

T = TypeVar("T")
Rows = list[NDArray[np.int64]]
"""The images of one step of each run, by number."""


@dataclass(frozen=True)
class Run:
    """One training run: its images, its labels [N] and the seed of all its randomness."""

    views: FixedViews | OnlineViews
    labels: Tensor
    seed: int


@dataclass(frozen=True)
class Batch:
    """One batch of each of S runs."""

    globals: Tensor  # [S, B, d]
    labels: Tensor  # [S, B]
    patches: Tensor | None  # [S, B, P, d]
    # What a learner adds for its objective (`PromptLearner.see`). Where it tunes the towers,
    # `globals` are pixels before that.
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def runs(self) -> list[Batch]:
        """The batch of each run, with S = 1."""
        return [
            Batch(
                self.globals[s : s + 1],
                self.labels[s : s + 1],
                None if self.patches is None else self.patches[s : s + 1],
            )
            for s in range(len(self.globals))
        ]


class PerBatch(Generic[T]):
    """Computes something once per batch: where all images are one batch, once per training."""

    def __init__(self) -> None:
        self._last: tuple[Batch, T] | None = None

    def of(self, batch: Batch, compute: Callable[[Batch], T]) -> T:
        """What `compute` gives for this batch, which is the last one or a new one."""
        if self._last is None or self._last[0] is not batch:
            self._last = None  # before the next is made: both need memory
            self._last = batch, compute(batch)
        return self._last[1]


def batch_slices(count: int, config: TrainConfig) -> list[slice]:
    """Split into batches; an incomplete last one is dropped if others remain (fidelity.md, 26)."""
    size = config.batch_size
    drop_last = config.drop_last and config.optimiser == "sgd" and count >= size
    whole = count // size * size if drop_last else count
    return [slice(begin, min(begin + size, whole)) for begin in range(0, whole, size)]


def batches_from(
    epoch: int, runs: Sequence[Run], config: TrainConfig, device: torch.device
) -> Generator[Batch]:
    """Every batch of every epoch from this one on.

    Where all images are one batch that always looks the same, it is always the same object.
    """
    whole = config.optimiser == "adam" and len(runs[0].views) <= config.batch_size
    steps = _steps(epoch, runs, config, shuffled=not whole)
    if whole and all(getattr(run.views, "still", False) for run in runs):
        rows, rngs = next(steps)
        yield from itertools.repeat(_stack(runs, rows, _look(runs, rows, rngs), device))
    elif isinstance(runs[0].views, OnlineViews):
        for rows, seen in _cut_ahead(runs, steps):
            yield _stack(runs, rows, seen, device)
    else:
        for rows, rngs in steps:
            yield _stack(runs, rows, _look(runs, rows, rngs), device)


def _steps(
    epoch: int, runs: Sequence[Run], config: TrainConfig, *, shuffled: bool
) -> Iterator[tuple[Rows, list[np.random.Generator]]]:
    """The images of every step, and the generators that its views are drawn with, in order."""
    for number in range(epoch, config.epochs):
        rngs = [np.random.default_rng([run.seed, number, _ORDER]) for run in runs]
        counts = [len(run.views) for run in runs]
        if shuffled:
            orders = [rng.permutation(count) for rng, count in zip(rngs, counts, strict=True)]
        else:
            orders = [np.arange(count) for count in counts]
        for part in batch_slices(counts[0], config):
            yield [order[part] for order in orders], rngs


def _look(
    runs: Sequence[Run], rows: Rows, rngs: Sequence[np.random.Generator]
) -> list[ImageFeatures]:
    return [run.views.look(images, rng) for run, images, rng in zip(runs, rows, rngs, strict=True)]


def _cut_ahead(
    runs: Sequence[Run], steps: Iterator[tuple[Rows, list[np.random.Generator]]]
) -> Iterator[tuple[Rows, list[ImageFeatures]]]:
    """What each run sees in each step; crops of all runs go through the tower together."""
    views: list[Any] = [run.views for run in runs]
    waiting: deque[tuple[Any, ...]] = deque()
    pool = ThreadPoolExecutor(max_workers=_THREADS)
    try:
        for rows, rngs in steps:
            drawn = [
                run_views.draw(images, rng)
                for run_views, images, rng in zip(views, rows, rngs, strict=True)
            ]
            different = dict.fromkeys(itertools.chain.from_iterable(drawn))
            cuts = {crop: pool.submit(views[0].cut, crop) for crop in different}
            waiting.append((rows, drawn, cuts))
            if len(waiting) > _AHEAD:
                yield _encode(views[0], *waiting.popleft())
        while waiting:
            yield _encode(views[0], *waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _encode(
    views: OnlineViews,
    rows: Rows,
    drawn: list[list[Cut]],
    cuts: dict[Cut, Future[NDArray[np.uint8]]],
) -> tuple[Rows, list[ImageFeatures]]:
    """One pass over the different crops of a step; each run gets its own in its own order."""
    features = views.encode([crop.result() for crop in cuts.values()])
    patches = features.patches
    position = {crop: number for number, crop in enumerate(cuts)}
    seen = []
    for run_crops in drawn:
        numbers = [position[crop] for crop in run_crops]
        first, last = numbers[0], numbers[-1]
        ordered = numbers == list(range(first, last + 1))  # a part, without a copy of places
        which = slice(first, last + 1) if ordered else numbers
        seen.append(
            ImageFeatures(features.globals[which], None if patches is None else patches[which])
        )
    return rows, seen


def _stack(
    runs: Sequence[Run], rows: Rows, seen: Sequence[ImageFeatures], device: torch.device
) -> Batch:
    patches = [view.patches for view in seen if view.patches is not None]
    labels = [run.labels[torch.from_numpy(images)] for run, images in zip(runs, rows, strict=True)]
    return Batch(
        globals=_joined([view.globals for view in seen]).to(device, torch.float32),
        labels=_joined(labels).to(device),
        patches=_joined(patches).to(device, torch.float32) if patches else None,
    )


def _joined(runs: Sequence[Tensor]) -> Tensor:
    """[S, ..]; of a single run without a copy, which takes as long as the rest of a large batch."""
    return torch.stack(list(runs)) if len(runs) > 1 else runs[0].unsqueeze(0)
