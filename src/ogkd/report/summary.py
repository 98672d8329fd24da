"""The summary below the verdict: plain sentences, written from numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ogkd.report.html import join_words, percent

_PAIRS = 3  # confusions that are named
_FEW = 20  # images of a class below which its numbers are little more than a hint
_SAME = 0.02  # change of the error rate that is no change
_HONEST = 0.05  # how far mean confidence may be off and still count as about right


@dataclass(frozen=True)
class Outcome:
    """The few numbers that the summary is about; shares are 0 to 1."""

    names: tuple[str, ...]
    counts: NDArray[np.int64]  # [C, C], the confusion matrix (rows: true class)
    mean_confidence: float
    kept: float  # share of images kept if the least confident are referred
    risk: float  # error rate among them
    normal: tuple[int, ...] = ()
    calibrated: bool = False
    learned: int = 0  # images that the model learned from or was calibrated on

    @property
    def images(self) -> int:
        return int(self.counts.sum())

    @property
    def correct(self) -> int:
        return int(np.trace(self.counts))

    @property
    def accuracy(self) -> float:
        return self.correct / self.images


def sentences(found: Outcome) -> list[str]:
    """One sentence for each thing that matters, the most important first."""
    confused = frequent_confusions(found)
    return [
        *([f"Its most frequent errors: {confused}."] if confused else []),
        *_screening(found),
        _referral(found),
        _certainty(found),
    ]


def warnings(found: Outcome) -> list[str]:
    """Reasons to trust the numbers less."""
    said = []
    if found.learned:
        said.append(
            f"The model learned from or was calibrated on {found.learned} of the {found.images} "
            "evaluated images. The numbers are better than on new images: leave those out, or "
            "evaluate other images."
        )
    totals = dict(zip(found.names, found.counts.sum(axis=1).tolist(), strict=True))
    if few := [f"{name} ({count})" for name, count in totals.items() if 0 < count < _FEW]:
        said.append(f"Few images of {join_words(few)}: see the intervals before relying on them.")
    if absent := [name for name, count in totals.items() if not count]:
        said.append(f"No images of {join_words(absent)}: nothing is known about them.")
    return said


def frequent_confusions(found: Outcome) -> str:
    """The most frequent errors as "a mistaken for b (3 of 10)"; empty if there are none."""
    wrong = found.counts.copy()
    np.fill_diagonal(wrong, 0)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_PAIRS]
    pairs = [divmod(int(place), len(found.names)) for place in order]
    totals = found.counts.sum(axis=1)
    return join_words(
        [
            f"{found.names[true]} mistaken for {found.names[predicted]} "
            f"({wrong[true, predicted]} of {totals[true]})"
            for true, predicted in pairs
            if wrong[true, predicted]
        ]
    )


def _screening(found: Outcome) -> list[str]:
    diseased, healthy = screening_counts(found.counts, found.normal)
    if not sum(diseased) or not sum(healthy):
        return []
    names = join_words([found.names[label] for label in found.normal])
    return [
        f"As a screening test (anything but {names} counts as a finding) it detects "
        f"{diseased[0]} of {sum(diseased)} images with a finding and raises a false alarm on "
        f"{healthy[0]} of {sum(healthy)} without one. Flagging as many images at random would "
        f"detect {percent(flagged_share(diseased, healthy))}."
    ]


def flagged_share(diseased: tuple[int, int], healthy: tuple[int, int]) -> float:
    """The share of all images flagged: what guessing in the same proportion would detect."""
    return (diseased[0] + healthy[0]) / (sum(diseased) + sum(healthy))


def screening_counts(
    counts: NDArray[np.int64], normal: Sequence[int]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Images predicted as a finding and not, for images with and for images without one."""
    healthy = np.isin(np.arange(len(counts)), list(normal))
    if not healthy.any():
        return (0, 0), (0, 0)
    ill, well = (
        (int(counts[np.ix_(rows, ~healthy)].sum()), int(counts[np.ix_(rows, healthy)].sum()))
        for rows in (~healthy, healthy)
    )
    return ill, well


def _referral(found: Outcome) -> str:
    error = 1 - found.accuracy
    start = (
        f"If the least confident {percent(1 - found.kept)} of the images are referred to a "
        "specialist, the error rate on the rest "
    )
    if abs(found.risk - error) <= _SAME:
        return f"{start}stays at about {percent(error)}."
    change = "falls" if found.risk < error else "rises"
    return f"{start}{change} from {percent(error)} to {percent(found.risk)}."


def _certainty(found: Outcome) -> str:
    gap = found.mean_confidence - found.accuracy
    if abs(gap) <= _HONEST:
        verdict = "on average its confidence is about right"
    else:
        verdict = "it is overconfident" if gap > 0 else "it is underconfident"
    advice = "" if found.calibrated else " (not calibrated: see ogkd calibrate)"
    return (
        f"Its mean confidence is {percent(found.mean_confidence)} and its accuracy "
        f"{percent(found.accuracy)}: {verdict}{advice}."
    )
