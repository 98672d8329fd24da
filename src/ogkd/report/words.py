"""The summary in plain words: what a reader should take home, from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Outcome",
    "frequent_confusions",
    "join_words",
    "percent",
    "screening_counts",
    "sentences",
    "warnings",
]

_PAIRS = 3  # mistakes that are named
_FEW = 20  # images of a class below which its numbers are hardly more than a hint
_HONEST = 0.05  # how far stated certainty may be off and still be called about right


@dataclass(frozen=True)
class Outcome:
    """The few numbers that the summary speaks of; shares are 0 to 1."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]  # [C, C] images of each class (row) called what (column)
    interval: tuple[float, float] | None  # of the accuracy
    mean_confidence: float
    kept: float  # share of images kept when the least certain are referred
    risk: float  # errors among them
    normal: tuple[int, ...] = ()
    calibrated: bool = False
    learned: int = 0  # judged images that the model learned from or was calibrated on
    groups: bool = False  # whether patients are known

    @property
    def images(self) -> int:
        return int(self.counts.sum())

    @property
    def right(self) -> int:
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        return self.right / self.images


def sentences(found: Outcome) -> list[str]:
    """One sentence for each thing that matters, the most important first."""
    return [
        _accuracy(found),
        *_weakest(found),
        *_mistakes(found),
        *_screening(found),
        _referral(found),
        _certainty(found),
    ]


def warnings(found: Outcome) -> list[str]:
    """What makes the numbers less than they seem."""
    said = []
    if found.learned:
        said.append(
            f"{found.learned} of the {found.images} judged images were learned from or calibrated "
            "on. The numbers are better than they would be on new images: judge others."
        )
    few = [
        f"{name} ({count})"
        for name, count in zip(found.names, found.counts.sum(axis=1).tolist(), strict=True)
        if 0 < count < _FEW
    ]
    if few:
        said.append(
            f"Few images of {join_words(few)}: their numbers are uncertain, look at the intervals."
        )
    absent = [
        name
        for name, count in zip(found.names, found.counts.sum(axis=1).tolist(), strict=True)
        if not count
    ]
    if absent:
        said.append(f"No image of {join_words(absent)} was judged: nothing is known of them.")
    return said


def frequent_confusions(found: Outcome) -> str:
    """The most frequent mistakes as "a taken for b (3 of 10)"; empty where there is none."""
    wrong = found.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(place), len(found.names)) for place in order]
    totals = found.counts.sum(axis=1)
    named = [
        f"{found.names[shown]} taken for {found.names[said]} "
        f"({wrong[shown, said]} of {totals[shown]})"
        for shown, said in pairs
        if wrong[shown, said]
    ]
    return join_words(named)


def join_words(words: Sequence[str]) -> str:
    """The words in a row, with commas and a last "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def _accuracy(found: Outcome) -> str:
    text = (
        f"The model named the right class for {found.right} of {found.images} images "
        f"({percent(found.accuracy)}"
    )
    if found.interval is not None:
        low, high = found.interval
        text += f"; 95\u00a0% interval {percent(low)} to {percent(high)}"
    most = int(found.counts.sum(axis=1).argmax())
    share = found.counts.sum(axis=1)[most] / found.images
    return f"{text}). Always saying {found.names[most]} would be right for {percent(share)}."


def _weakest(found: Outcome) -> list[str]:
    totals = found.counts.sum(axis=1)
    there = np.flatnonzero(totals)
    recall = np.diag(found.counts)[there] / totals[there]
    if len(there) < 2 or recall.min() == recall.max():
        return []
    worst, best = there[recall.argmin()], there[recall.argmax()]
    return [
        f"It finds {found.names[worst]} least often ({found.counts[worst, worst]} of "
        f"{totals[worst]} images) and {found.names[best]} most often "
        f"({found.counts[best, best]} of {totals[best]})."
    ]


def _mistakes(found: Outcome) -> list[str]:
    pairs = frequent_confusions(found)
    return [f"Its most frequent mistakes: {pairs}."] if pairs else []


def _screening(found: Outcome) -> list[str]:
    sick, healthy = screening_counts(found.counts, found.normal)
    if not sum(sick) or not sum(healthy):
        return []
    names = join_words([found.names[label] for label in found.normal])
    return [
        f"As a screening test (anything but {names} counts as a finding) it notices "
        f"{sick[0]} of {sum(sick)} images with a finding and raises a false alarm in "
        f"{healthy[0]} of {sum(healthy)} without."
    ]


def screening_counts(
    counts: NDArray[np.int64], normal: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of images with and without a finding: how many were called a finding, and how many not."""
    healthy = np.isin(np.arange(len(counts)), list(normal))
    if not healthy.any():
        return (0, 0), (0, 0)
    block = [
        (int(counts[np.ix_(rows, ~healthy)].sum()), int(counts[np.ix_(rows, healthy)].sum()))
        for rows in (~healthy, healthy)
    ]
    return block[0], block[1]


def _referral(found: Outcome) -> str:
    error = 1 - found.accuracy
    change = (
        "falls"
        if found.risk < error - 0.002
        else "rises"
        if found.risk > error + 0.002
        else "stays"
    )
    start = f"If the least certain {percent(1 - found.kept)} of the images go to a specialist, "
    if change == "stays":
        return start + f"the error rate of the others stays at {percent(error)}."
    return start + (
        f"the error rate of the others {change} from {percent(error)} to {percent(found.risk)}."
    )


def _certainty(found: Outcome) -> str:
    gap = found.mean_confidence - found.accuracy
    start = (
        f"On average it says that it is {percent(found.mean_confidence)} sure, and it is right "
        f"for {percent(found.accuracy)}: "
    )
    if abs(gap) <= _HONEST:
        judged = "its certainty is about right on average"
    else:
        judged = "it is surer than it should be" if gap > 0 else "it is less sure than it could be"
    advice = "" if found.calibrated else " (not calibrated: see ogkd calibrate)"
    return f"{start}{judged}{advice}."


def percent(share: float) -> str:
    """A share as it is spoken: one decimal where it has one."""
    return f"{100 * share:.1f}".removesuffix(".0") + "\u00a0%"
