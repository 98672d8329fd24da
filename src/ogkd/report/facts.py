"""Sections about the data and about how the model was made."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence

from ogkd.data.case import Dataset
from ogkd.data.names import fold_name
from ogkd.errors import pluralize
from ogkd.evaluation import LabelledPredictions
from ogkd.evaluation.sections import Section, Table
from ogkd.methods import flatten
from ogkd.model.card import ModelCard, versions
from ogkd.model.classifier import Classifier

_NOT_SHOWN = {"support_images", "support_pixels", "unlabelled_images", "metrics"}


def data_section(
    dataset: Dataset,
    card: ModelCard,
    predictions: LabelledPredictions,
    left_out: Sequence[str] = (),
) -> Section:
    """Images of each class or finding in each split, those learned from, and what was left out.

    Classes are matched by name, as in the evaluation.
    """
    splits, task = dataset.splits, dataset.task
    names = {fold_name(name): name for name in (*card.class_names, *task.names)}
    counted = Counter(
        (fold_name(task.names[number]), case.split)
        for case in dataset.cases
        for number in task.shown(case.target)
    )
    learned = dict(zip(map(fold_name, card.class_names), card.support_counts, strict=False))
    rows = [
        (name, *(str(counted[key, split]) for split in splits), str(learned.get(key, 0)))
        for key, name in names.items()
    ]
    head = (task.noun, *(split or "images" for split in splits), "learned from")
    groups = "an unknown number of" if predictions.group_count is None else predictions.group_count
    text = [f"The evaluated images come from {groups} patients (groups)."]
    if count := predictions.left_out:
        used = pluralize(count, predictions.unit)
        left_out = (*left_out, f"{used} that the model learned from or was calibrated on")
    if left_out:
        text.append(f"Left out: {'; '.join(left_out)}.")
    return Section("The data", tuple(text), Table(head, tuple(rows)), key="data", short="Data")


def making_section(
    classifier: Classifier, predictions: LabelledPredictions, *, show_names: bool
) -> Section:
    """The model card, and what else the numbers depend on."""
    card = classifier.card
    seen = json.dumps(sorted(zip(predictions.keys, predictions.labels.tolist(), strict=True)))
    name = card.backbone.name if show_names else card.backbone.short_name
    facts = {
        "evaluated images, with labels": hashlib.sha256(seen.encode()).hexdigest(),
        "evaluated with": {"engine": classifier.backbone.engine, **versions()},
        **card.model_dump(mode="json", exclude=_NOT_SHOWN),
        "weights_sha256": classifier.weights_sha256,
    }
    facts["backbone"]["name"] = name
    if calibration := classifier.calibration:
        facts["calibration"] = {
            "temperatures": [round(each.temperature, 3) for each in calibration.questions],
            "cases": calibration.cases,
        }
    rows = [
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in flatten(facts)
        if value not in (None, "", {}, [])
    ]
    table = Table((), tuple(rows))
    return Section("How the model was made", table=table, key="making", short="Settings")
