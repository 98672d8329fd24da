"""The verdict: is the model better than guessing, where is it weakest, and what would help.

Guessing means: always answering with the most frequent class of the same images. If classes are
very unequal, that is right so often that few models beat it, although they find what it never
finds; there the shares found of each class are averaged, and guessing reaches 1 / classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ogkd.errors import pluralize
from ogkd.evaluation.sections import percent

_UNEQUAL = 3  # times as many images of the largest class as of the smallest that occurs
_GAIN = 0.05  # the smallest advantage over guessing that is worth looking for
_LEAKED = 0.05  # share of learned images above which the numbers say nothing about new ones
_POWER = 1.96 + 0.84  # standard errors to an effect that is seen in 80 % of all tests
FEW_TESTED = 20
_FEW_LEARNED = 16
_WEAK = 0.8  # share of a class found below which more is worth doing about it


def class_verdict(
    result: Mapping[str, Any],
    *,
    accuracy: Sequence[float],
    balanced: Sequence[float],
    support: Sequence[int] = (),
) -> dict[str, Any]:
    """The verdict on the value of `evaluate_predictions`: plain fields, and `text` for people.

    `accuracy` and `balanced` are 95 % intervals of accuracy and balanced accuracy, `support` the
    images of each class that the model learned from, if known.
    """
    names, counts = result["class_names"], np.asarray(result["confusion"])
    totals, images = counts.sum(axis=1), int(counts.sum())
    present, most = np.flatnonzero(totals), int(totals.argmax())
    majority = {"class": names[most], "share": float(totals[most] / images)}
    unequal = bool(totals.max() >= _UNEQUAL * totals[present].min())
    basis = "balanced_accuracy" if unequal else "accuracy"
    value, ends = result[basis], balanced if unequal else accuracy
    guess = 1 / len(present) if unequal else majority["share"]
    learned = result["learned_from"] > _LEAKED * images
    useless = learned or len(present) == 1
    better = None if useless else _better(value, ends, guess)
    undecided = better is None and not useless
    conclusion = {
        "better_than_guessing": better,
        "headline": _headline(better, images, one_class=len(present) == 1, learned=learned),
        "basis": basis,
        "accuracy": result["accuracy"],
        "interval": list(accuracy),
        "balanced_accuracy": result["balanced_accuracy"],
        "balanced_interval": list(balanced),
        "guessing": guess,
        "majority": majority,
        "weakest": _weakest(result, counts),
        "more_test_images": _more(images, value - guess, ends) if undecided else None,
    }
    conclusion["advice"] = _advice(conclusion, result, support)
    conclusion["details"] = " ".join(_sentences(conclusion, result, int(np.trace(counts)), images))
    conclusion["text"] = f"{conclusion['headline']}. {conclusion['details']}"
    return conclusion


def _headline(better: bool | None, images: int, *, one_class: bool, learned: bool) -> str:
    if better is not None:
        return (
            "Clearly better than guessing" if better else "Not better than guessing: do not use it"
        )
    if learned:
        return "No verdict: the model learned from these images"
    if one_class:
        return "No verdict: all images show the same class"
    return f"{pluralize(images, 'image')} cannot show whether it is better than guessing"


def calibration_text(about: Mapping[str, Any], reason: str | None) -> str:
    """What calibration did, and whether the evaluated images confirm it."""
    if not about["applied"]:
        return reason or "Calibration left the probabilities unchanged."
    change = "less" if about["temperature"] > 1 else "more"
    mean, error = about["change"]
    start = (
        f"Calibration on {about['images']} other images made the model {change} confident "
        f"(temperature {about['temperature']:.2f}); on the images evaluated here, its "
        "probabilities "
    )
    if abs(mean) <= 1.96 * error:
        return f"{start}did not change beyond chance."
    if mean < 0:
        return f"{start}improved."
    return f"{start}got worse: calibrate again on more images like these."


def _better(value: float, ends: Sequence[float], guess: float) -> bool | None:
    """True or False if the images show it; None if they are too few to show either."""
    if ends[0] > guess:
        return True
    # Not above guessing, and a model that halves its errors would have looked better than this;
    # or any advantage is too small to matter.
    hopeless = value <= guess and ends[1] < (1 + guess) / 2
    return False if hopeless or ends[1] < guess + _GAIN else None


def _more(images: int, gain: float, ends: Sequence[float]) -> int:
    """About how many more test images show this gain, or the smallest that matters, if real."""
    error = (ends[1] - ends[0]) / (2 * 1.96)
    needed = images * (_POWER * error / max(gain, _GAIN)) ** 2
    more = max(needed - images, images / 4, 1)
    step = max(5.0, 10 ** math.floor(math.log10(more)) / 2)  # not more exact than it is
    return int(math.ceil(more / step) * step)


def _weakest(result: Mapping[str, Any], counts: np.ndarray[Any, Any]) -> dict[str, Any] | None:
    """The class found least often; None if no class is found less often than the others."""
    rows = {name: row for name, row in result["per_class"].items() if row["images"]}
    name = min(rows, key=lambda name: (rows[name]["recall"], rows[name]["images"]))
    row = rows[name]
    if row["recall"] == max(row["recall"] for row in rows.values()):
        return None
    label = result["class_names"].index(name)
    others = counts[label].copy()
    correct = int(others[label])
    others[label] = 0
    return {
        "class": name,
        "found": correct,
        "images": row["images"],
        "recall": row["recall"],
        "mistaken_for": result["class_names"][int(others.argmax())],
        "mistaken": int(others.max()),
    }


def _sentences(
    conclusion: Mapping[str, Any], result: Mapping[str, Any], correct: int, images: int
) -> list[str]:
    better, most = conclusion["better_than_guessing"], conclusion["majority"]
    score = (
        f"classified {correct} of {pluralize(images, 'image')} correctly "
        f"({percent(conclusion['accuracy'])}, {_interval(conclusion['interval'])})"
    )
    always = f"always answering '{most['class']}' would be correct for {percent(most['share'])}"
    sentences = []
    if conclusion["basis"] == "balanced_accuracy":
        sentences.append(
            f"It finds {percent(conclusion['balanced_accuracy'])} of the images of a class on "
            f"average ({_interval(conclusion['balanced_interval'])}), guessing "
            f"{percent(conclusion['guessing'])}."
        )
        always += ", as the classes are very unequal"
    sentences.append(f"It {score}; {always}.")
    weak = conclusion["weakest"]
    if weak and better is not False:  # at chance, the weakest class is a matter of chance
        share = f"{weak['found']} of {pluralize(weak['images'], 'image')}"
        wrong = weak["images"] - weak["found"]
        mostly = 2 * weak["mistaken"] > wrong and wrong > 1
        taken = f", and mostly takes the others for '{weak['mistaken_for']}'" if mostly else ""
        sentences.append(f"Weakest class: it finds {share} of '{weak['class']}'{taken}.")
    elif correct == images:
        sentences.append(
            f"It made no errors here, but up to {percent(1 - conclusion['interval'][0])} errors "
            "on new images cannot be ruled out."
        )
    return [*sentences, *filter(None, [conclusion["advice"]])]


def _advice(
    conclusion: Mapping[str, Any], result: Mapping[str, Any], support: Sequence[int]
) -> str:
    """What it would take, by what is known: leaks, images tested, images learned from."""
    better, weak = conclusion["better_than_guessing"], conclusion["weakest"]
    tested = [name for name, row in result["per_class"].items() if row["images"]]
    if result["learned_from"] > _LEAKED * result["images"]:
        return "Evaluate images that it has not learned from."
    if len(tested) == 1:
        return f"All images show '{tested[0]}': add test images of the other classes."
    if better is None:
        others = ", from other patients," if result["groups"] else ""
        return f"About {conclusion['more_test_images']:,} more test images{others} would be needed."
    if better is False and not any(support):
        return "It learned from no images: fit it on some, or use another backbone."
    if better is False and max(support) < _FEW_LEARNED:
        learned = pluralize(max(support), "image")
        return f"It learned from at most {learned} of a class: label more, or use another backbone."
    if better is False:
        return "Check the labels of the images that it learned from, or use another backbone."
    if weak is None:
        return ""
    known = dict(zip(result["class_names"], support, strict=False)).get(weak["class"], 0)
    if weak["images"] < FEW_TESTED:
        tests = pluralize(weak["images"], "image")
        return f"With {tests} of '{weak['class']}' this is only a hint: test more of them."
    if weak["recall"] >= _WEAK:
        return ""
    if 0 < known < _FEW_LEARNED:
        return (
            f"It learned from {pluralize(known, 'image')} of '{weak['class']}': more of them may "
            "help."
        )
    return (
        f"Check that '{weak['class']}' and '{weak['mistaken_for']}' are labelled correctly and "
        "can be told apart in these images, or try another backbone."
    )


def _interval(ends: Sequence[float]) -> str:
    return f"95 % interval {percent(ends[0]).removesuffix(' %')} to {percent(ends[1])}"


def finding_verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """Which findings are recognised better than by guessing: plain fields, and `text`."""
    rows: Mapping[str, Mapping[str, Any]] = result["per_finding"]
    state = {name: _recognised(row) for name, row in rows.items()}
    learned = result["learned_from"] > _LEAKED * result["images"]
    better = [name for name, is_better in state.items() if is_better]
    every = bool(better) and len(better) == len(rows)
    headline = (
        "No verdict: the model learned from these images"
        if learned
        else f"Clearly better than guessing for all {len(rows)} findings"
        if every and len(rows) > 1
        else f"Clearly better than guessing for {len(better)} of {pluralize(len(rows), 'finding')}"
        if better
        else "No finding is recognised clearly better than by guessing"
    )
    conclusion = {
        "better_than_guessing": None if learned else every or (None if better else False),
        "headline": headline,
        "better": better,
        "open": [name for name, is_better in state.items() if is_better is None],
        "not_better": [name for name, is_better in state.items() if is_better is False],
    }
    conclusion["details"] = " ".join(_finding_sentences(conclusion, result))
    conclusion["text"] = f"{headline}. {conclusion['details']}".strip()
    return conclusion


def _recognised(row: Mapping[str, Any]) -> bool | None:
    """Whether the interval of the AUROC is above 0.5; None if the images cannot show either."""
    ends, value = row["intervals"]["auroc"], row["auroc"]
    if value is None or ends is None or row["present"] < 2 or row["absent"] < 2:
        return None
    return True if ends[0] > 0.5 else False if ends[1] < 0.6 else None


def _finding_sentences(conclusion: Mapping[str, Any], result: Mapping[str, Any]) -> Iterator[str]:
    rows = result["per_finding"]
    macro = result["macro"]
    if (area := macro["auroc"]) is not None:
        ends = macro["intervals"]["auroc"]
        sure = "" if ends is None else f", 95 % interval {100 * ends[0]:.0f} to {100 * ends[1]:.0f}"
        yield (
            f"An image with a finding is ranked above one without it in {100 * area:.0f} % of all "
            f"pairs on average (AUROC{sure})."
        )
    judged = {name: row for name, row in rows.items() if row["auroc"] is not None}
    if len(judged) > 1:
        weak = min(judged, key=lambda name: judged[name]["auroc"])
        yield f"Weakest: '{weak}' with {100 * judged[weak]['auroc']:.0f} %."
    if conclusion["open"]:
        few = [f"{name} ({rows[name]['present']} with it)" for name in conclusion["open"]]
        yield f"These images cannot show whether it recognises: {', '.join(few)}."
    if conclusion["not_better"]:
        yield f"Not better than guessing: {', '.join(conclusion['not_better'])}."
