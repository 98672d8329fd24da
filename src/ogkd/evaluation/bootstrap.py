"""How sure a number is: the bootstrap, by image or by patient, a thousand resamples at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LEVEL", "draws", "exact_interval", "interval", "units"]

LEVEL = 0.95
_CELLS = 100_000  # of a piece of the table of draws: what fits in a processor's cache
Array = NDArray[np.float64]


def units(count: int, groups: Sequence[str | None] | None = None) -> NDArray[np.int64]:
    """The number of what is drawn as one, for each image: its group, or itself without one."""
    names = [None] * count if groups is None else list(groups)
    keys = [(0, str(row)) if name is None else (1, name) for row, name in enumerate(names)]
    order = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys], dtype=np.int64)


def draws(unit: NDArray[np.int64], *, resamples: int, seed: int, width: int = 1) -> Iterator[Array]:
    """How often each image is in each resample: tables [r, N], `resamples` rows in all.

    As many units are drawn, with replacement, as there are. `width` is the size of what the
    caller computes for each row, where that is larger than N.
    """
    rng = np.random.default_rng(seed)
    count = int(unit.max()) + 1
    rows = max(16, _CELLS // max(len(unit), width))  # each piece sorts all images anew
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = rng.integers(0, count, (size, count)) + count * np.arange(size)[:, None]
        table = np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count)
        yield table[:, unit].astype(np.float64)


def interval(values: ArrayLike, level: float = LEVEL) -> list[float] | None:
    """The middle `level` of resampled values; None where hardly any resample defines one."""
    found = np.asarray(values, dtype=np.float64)
    found = found[~np.isnan(found)]
    if len(found) < 0.5 * np.size(values) or len(found) < 2:
        return None
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return [float(low), float(high)]


def exact_interval(part: int, whole: int, level: float = LEVEL) -> list[float] | None:
    """Clopper and Pearson's interval of a share: what to use where all or none are right.

    There every resample is the same, and the bootstrap would claim to be certain.
    """
    from scipy.stats import beta

    if whole == 0:
        return None
    tail = (1 - level) / 2
    low = 0.0 if part == 0 else float(beta.ppf(tail, part, whole - part + 1))
    high = 1.0 if part == whole else float(beta.ppf(1 - tail, part + 1, whole - part))
    return [low, high]
