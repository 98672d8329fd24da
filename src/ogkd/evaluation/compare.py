"""Two models on the same labelled cases: what is hard for both cancels out of the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ogkd.data.case import Dataset
from ogkd.data.names import fold_name
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.evaluate import bootstrapped
from ogkd.evaluation.predictions import predict_labelled
from ogkd.evaluation.sections import in_units, wrapped
from ogkd.model.classifier import Classifier

_TITLES = {
    "accuracy": "Accuracy",
    "balanced_accuracy": "Balanced accuracy",
    "auroc": "AUROC",
    "macro/auroc": "Mean AUROC of the findings",
    "macro/average_precision": "Mean average precision",
}
_LEVEL = 0.05  # p below which a difference is called one


class Comparison(dict[str, Any]):
    """The result of a comparison: a plain dictionary, with `text` for people."""

    def __repr__(self) -> str:
        return "\n".join(wrapped(self["text"]))


def compare(
    a: Classifier,
    b: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "test",
    resamples: int = 1000,
    leave_out_used: bool = False,
) -> Comparison:
    """Compare two models on one split, or on all images if the data has no splits.

    Each difference is that of `a` minus `b`; its interval resamples patients whole, the same for
    both. `p` is that of the exact McNemar test, in which a patient counts once, for the model that
    is right more often. Images that either model learned from are refused, or left out with
    `leave_out_used`.
    """
    first, second = (predict_labelled(model, data, split=split) for model in (a, b))
    names = [set(map(fold_name, judged.class_names)) for judged in (first, second)]
    if names[0] != names[1] or first.keys != second.keys:
        raise ConfigError(
            "The models have different classes, or make different cases of the images.",
            argument="b",
        )
    used = first.used_by(a) | second.used_by(b)
    if used.all() or (used.any() and not leave_out_used):
        raise DataError(
            f"One of the models learned from or was calibrated on {used.sum()} of these "
            f"{len(used)} images. Leave them out, or choose others.",
            argument="split" if used.all() else "leave_out_used",
        )
    metrics, keys = bootstrapped(first.without(used), a.calibration, resamples=resamples)
    others, _ = bootstrapped(second.without(used), b.calibration, resamples=resamples)
    result = {
        "images": int((~used).sum()),
        "left_out": int(used.sum()),
        **{key: metrics.difference(others, key) for key in keys},
        "mcnemar": metrics.mcnemar(others) if "accuracy" in keys else None,
        "warnings": list(dict.fromkeys(first.warnings + second.warnings)),
    }
    words = {"unit": first.unit, "class_names": first.class_names}
    return Comparison(result | {"text": in_units(_text(result, keys), words)})


def _text(result: dict[str, Any], keys: tuple[str, ...]) -> str:
    test, main = result["mcnemar"], result[keys[0]]
    low, high = main["interval"] or (0, 0)
    shown = test["p"] < _LEVEL if test else low > 0 or high < 0
    better = "first" if main["difference"] > 0 else "second"
    sentences = [f"{result['images']} images cannot show which model is better."]
    if shown:
        sentences = [f"The {better} model is better on {result['images']} images."]
    for key in keys:
        values = [result[key][part] for part in ("first", "second", "difference")]
        if None not in values:
            text = "{}: {:.1f} % and {:.1f} %, a difference of {:+.1f} points"
            text = text.format(_TITLES[key], *(100 * value for value in values))
            ends = [f"{100 * end:+.1f}" for end in result[key]["interval"] or ()]
            sentences.append(f"{text} ({' to '.join(ends) or 'too few to tell how sure'}).")
    if test:
        sentences.append(
            f"Only the first is right, or more often, for {test['first']} images or patients, only "
            f"the second for {test['second']} (exact McNemar test: p = {test['p']:.2g})."
        )
    return " ".join([*sentences, "Intervals: 95 %."])
