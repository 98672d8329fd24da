"""The summary below the verdict: plain sentences, written from the result of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ogkd.report.html import join_words, percent

Values = Mapping[str, Any]  # the value of `evaluate_predictions`
KEPT = 0.8  # share of the images that are kept when the least confident are referred
_PAIRS = 3  # confusions that are named
_FEW = 20  # images of a class below which its numbers are little more than a hint
_SAME = 0.02  # a smaller change of the error rate counts as none
_HONEST = 0.05  # how far mean confidence may be off and still count as about right


def sentences(result: Values) -> list[str]:
    """One sentence for each thing that matters, the most important first."""
    confused = frequent_confusions(result)
    return [
        *([f"Its most frequent errors: {confused}."] if confused else []),
        *_screening(result),
        _referral(result),
        _certainty(result),
    ]


def warnings(result: Values) -> list[str]:
    """Reasons to trust the numbers less."""
    said = []
    if learned := result["learned_from"] + result["calibrated_on"]:
        said.append(
            f"The model learned from or was calibrated on {learned} of the {result['images']} "
            "evaluated images. The numbers are better than on new images: leave those out, or "
            "evaluate other images."
        )
    totals = {name: row["images"] for name, row in result["per_class"].items()}
    if few := [f"{name} ({count})" for name, count in totals.items() if 0 < count < _FEW]:
        said.append(f"Few images of {join_words(few)}: see the intervals before relying on them.")
    if absent := [name for name, count in totals.items() if not count]:
        said.append(f"No images of {join_words(absent)}: nothing is known about them.")
    return said


def frequent_confusions(result: Values) -> str:
    """The most frequent errors as "a mistaken for b (3 of 10)"; empty if there are none."""
    names, counts = result["class_names"], np.array(result["confusion"])
    totals = counts.sum(axis=1)
    np.fill_diagonal(counts, 0)
    order = np.argsort(-counts, axis=None, kind="stable")[:_PAIRS]
    return join_words(
        [
            f"{names[true]} mistaken for {names[said]} ({counts[true, said]} of {totals[true]})"
            for true, said in (divmod(int(place), len(names)) for place in order)
            if counts[true, said]
        ]
    )


def screened(result: Values) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Images predicted as a finding and not, for images with and for images without one.

    None if no class is normal or one side has no images.
    """
    found = result["screening"]
    if not found or not found["diseased_images"] or not found["normal_images"]:
        return None
    missed, alarms = found["missed"], found["false_positives"]
    return (found["diseased_images"] - missed, missed), (alarms, found["normal_images"] - alarms)


def flagged_share(result: Values) -> float:
    """The share of all images flagged: what guessing in the same proportion would detect."""
    ill, well = screened(result) or ((0, 0), (0, 0))
    return (ill[0] + well[0]) / int(result["images"])


def _screening(result: Values) -> list[str]:
    if (sides := screened(result)) is None:
        return []
    ill, well = sides
    return [
        f"As a screening test (anything but {join_words(result['screening']['normal'])} counts as "
        f"a finding) it detects {ill[0]} of {sum(ill)} images with a finding and raises a false "
        f"alarm on {well[0]} of {sum(well)} without one. Flagging as many images at random would "
        f"detect {percent(flagged_share(result))}."
    ]


def risk_of_kept(result: Values) -> float:
    """The error rate among the images kept when the least confident are referred."""
    return float(result["selective"]["risk_at_coverage"][f"{KEPT:g}"])


def _referral(result: Values) -> str:
    error, risk = 1 - result["accuracy"], risk_of_kept(result)
    start = (
        f"If the least confident {percent(1 - KEPT)} of the images are referred to a "
        "specialist, the error rate on the rest "
    )
    if abs(risk - error) <= _SAME:
        return f"{start}stays at about {percent(error)}."
    return (
        f"{start}{'falls' if risk < error else 'rises'} from {percent(error)} to {percent(risk)}."
    )


def _certainty(result: Values) -> str:
    bins = [row for row in result["reliability"] if row["images"]]
    sure = sum(row["images"] * row["confidence"] for row in bins) / result["images"]
    gap = sure - result["accuracy"]
    if abs(gap) <= _HONEST:
        verdict = "on average its confidence is about right"
    else:
        verdict = "it is overconfident" if gap > 0 else "it is underconfident"
    advice = "" if result["calibration"] else " (not calibrated: see ogkd calibrate)"
    return (
        f"Its mean confidence is {percent(sure)} and its accuracy "
        f"{percent(result['accuracy'])}: {verdict}{advice}."
    )
