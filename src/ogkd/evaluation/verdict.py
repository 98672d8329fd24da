"""The verdict: is the model better than guessing, where is it weakest, and what would help.

Guessing means: always answering with the most frequent class of the same images. If classes are
very unequal, that is right so often that few models beat it, although they find what it never
finds; there the shares found of each class are averaged, and guessing reaches 1 / classes. A
finding is recognised better than by guessing if its AUROC is above one half.
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
_LEAK = "No verdict: the model learned from these images"


def is_leaked(learned_from: int, images: int) -> bool:
    """Whether the model learned from so many of these images that nothing is known of new ones."""
    return learned_from > _LEAKED * images


def class_verdict(
    result: Mapping[str, Any],
    intervals: Mapping[str, Sequence[float] | None],
    *,
    support: Sequence[int] = (),
) -> dict[str, Any]:
    """The verdict on an evaluation of classes: plain fields, and `text` for people.

    `intervals` are those of accuracy and balanced accuracy, of 95 %, `support` the images of each
    class that the model learned from, if known.
    """
    names, counts = result["class_names"], np.asarray(result["confusion"])
    totals, images = counts.sum(axis=1), result["images"]
    present, most = np.flatnonzero(totals), int(totals.argmax())
    majority = {"class": names[most], "share": float(totals[most] / images)}
    unequal = bool(totals.max() >= _UNEQUAL * totals[present].min())
    basis = "balanced_accuracy" if unequal else "accuracy"
    value, ends = result[basis], intervals[basis] or [0.0, 1.0]
    guess = 1 / len(present) if unequal else majority["share"]
    better, more = None, None
    leaked = is_leaked(result["learned_from"], images)
    if leaked:
        headline = _LEAK
    elif len(present) == 1:
        headline = "No verdict: all images show the same class"
    elif (better := _better(value, ends, guess)) is None:
        more = _more(images, value - guess, ends)
        headline = f"{pluralize(images, 'image')} cannot show whether it is better than guessing"
    else:
        headline = "Clearly better than guessing"
        if not better:
            headline = "Not better than guessing: do not use it"
    conclusion = {
        "better_than_guessing": better,
        "headline": headline,
        "basis": basis,
        "accuracy": result["accuracy"],
        "interval": None if leaked else intervals["accuracy"],
        "balanced_accuracy": result["balanced_accuracy"],
        "balanced_interval": None if leaked else intervals["balanced_accuracy"],
        "guessing": guess,
        "majority": majority,
        "weakest": _weakest(result, counts),
        "more_test_images": more,
    }
    advice = ""
    if more:
        others = ", from other patients," if result["groups"] else ""
        advice = f"About {more:,} more test images{others} would be needed."
    elif len(present) == 1:
        advice = f"All images show '{majority['class']}': add test images of the other classes."
    elif better is not None:
        advice = _advice(better, conclusion["weakest"], dict(zip(names, support, strict=False)))
    sentences = [*_sentences(conclusion, int(np.trace(counts)), images), advice]
    details = " ".join(filter(None, sentences))
    return conclusion | {"advice": advice, "details": details, "text": f"{headline}. {details}"}


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
    if rows[name]["recall"] == max(row["recall"] for row in rows.values()):
        return None
    label = result["class_names"].index(name)
    wrong = np.where(np.arange(len(counts)) == label, 0, counts[label])
    return {
        "class": name,
        "found": int(counts[label, label]),
        "images": rows[name]["images"],
        "recall": rows[name]["recall"],
        "mistaken_for": result["class_names"][int(wrong.argmax())],
        "mistaken": int(wrong.max()),
    }


def _sentences(conclusion: Mapping[str, Any], correct: int, images: int) -> Iterator[str]:
    most, weak = conclusion["majority"], conclusion["weakest"]
    always = f"always answering '{most['class']}' would be correct for {percent(most['share'])}"
    if conclusion["basis"] == "balanced_accuracy":
        yield (
            f"On average it recognises {percent(conclusion['balanced_accuracy'])} of each class"
            f"{_interval(conclusion['balanced_interval'], ' ({})')}, guessing "
            f"{percent(conclusion['guessing'])}."
        )
        always += ", as the classes are very unequal"
    yield (
        f"It classified {correct} of {pluralize(images, 'image')} correctly "
        f"({percent(conclusion['accuracy'])}{_interval(conclusion['interval'], ', {}')}); {always}."
    )
    # At chance, the weakest class is a matter of chance.
    if weak and conclusion["better_than_guessing"] is not False:
        wrong = weak["images"] - weak["found"]
        mostly = 2 * weak["mistaken"] > wrong and wrong > 1
        taken = f", and mostly takes the others for '{weak['mistaken_for']}'" if mostly else ""
        share = f"{weak['found']} of {pluralize(weak['images'], 'image')}"
        yield f"Weakest class: it recognises {share} of '{weak['class']}'{taken}."
    elif correct == images and conclusion["interval"]:
        yield (
            f"It made no errors here, but up to {percent(1 - conclusion['interval'][0])} errors "
            "on new images cannot be ruled out."
        )


def _advice(better: bool, weak: Mapping[str, Any] | None, support: Mapping[str, int]) -> str:
    """What would help; `support` are the images of each class that the model learned from."""
    if not better:
        most = max(support.values(), default=0)
        if most >= _FEW_LEARNED:
            return "Check the labels of the images that it learned from, or use another backbone."
        learned = pluralize(most, "image") if most else "no images"
        return f"It learned from {learned} of each class: label more, or use another backbone."
    if weak is None:
        return ""
    if weak["images"] < FEW_TESTED:
        tests = pluralize(weak["images"], "image")
        return f"With {tests} of '{weak['class']}' this is only a hint: test more of them."
    if weak["recall"] >= _WEAK:
        return ""
    if 0 < (known := support.get(weak["class"], 0)) < _FEW_LEARNED:
        learned = pluralize(known, "image")
        return f"It learned from {learned} of '{weak['class']}': more of them may help."
    return (
        f"Check that '{weak['class']}' and '{weak['mistaken_for']}' are labelled correctly and "
        "can be told apart in these images, or try another backbone."
    )


def _interval(ends: Sequence[float] | None, form: str) -> str:
    if ends is None:
        return ""
    return form.format(f"95 % interval {percent(ends[0]).removesuffix(' %')} to {percent(ends[1])}")


def finding_verdict(result: Mapping[str, Any]) -> dict[str, Any]:
    """Which findings are recognised better than by guessing: plain fields, and `text`."""
    rows: Mapping[str, Mapping[str, Any]] = result["per_finding"]
    state = {name: _recognised(row) for name, row in rows.items()}
    better, not_better, undecided = (
        [name for name, recognised in state.items() if recognised is answer]
        for answer in (True, False, None)
    )
    leaked = is_leaked(result["learned_from"], result["images"])
    count = f"{len(better)} of {pluralize(len(rows), 'finding')}"
    headline = f"Clearly better than guessing for {count}" if better else (
        "No finding is recognised clearly better than by guessing"
    )  # fmt: skip
    every = len(better) == len(rows) or (None if better else False)
    conclusion = {
        "better_than_guessing": None if leaked else every,
        "headline": _LEAK if leaked else headline,
        "better": better,
        "open": undecided,
        "not_better": not_better,
    }
    sentences = []
    if (area := result["macro"]["auroc"]) is not None:
        sure = _interval(result["macro"]["intervals"]["auroc"], ", {}")
        sentences.append(
            f"An image with a finding is ranked above one without it in {percent(area)} of all "
            f"pairs on average (AUROC{sure})."
        )
    known = {name: row["auroc"] for name, row in rows.items() if row["auroc"] is not None}
    if len(known) > 1:
        weak = min(known, key=known.__getitem__)
        sentences.append(f"Weakest: '{weak}' with {percent(known[weak])}.")
    if undecided and not leaked:
        few = [f"{name} ({rows[name]['present']} with it)" for name in undecided]
        sentences.append(f"These images cannot show whether it recognises: {', '.join(few)}.")
    if not_better:
        sentences.append(f"Not better than guessing: {', '.join(not_better)}.")
    details = " ".join(sentences)
    return conclusion | {"details": details, "text": f"{conclusion['headline']}. {details}".strip()}


def _recognised(row: Mapping[str, Any]) -> bool | None:
    """Whether the interval of the AUROC is above 0.5; None if the images cannot show either."""
    ends, value = row["intervals"]["auroc"], row["auroc"]
    if value is None or ends is None or row["present"] < 2 or row["absent"] < 2:
        return None
    return True if ends[0] > 0.5 else False if ends[1] < 0.6 else None
