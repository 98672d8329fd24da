"""Sections about the data and about how the model was made."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from pathlib import PureWindowsPath

import numpy as np
from numpy.typing import NDArray

from ogkd.audit import Audit
from ogkd.core.geometry import class_graph, prototypes
from ogkd.data.case import Dataset
from ogkd.data.names import fold_name
from ogkd.evaluation import LabelledPredictions
from ogkd.evaluation.sections import Section, Table, name_columns, percent
from ogkd.methods import flatten
from ogkd.model.card import ModelCard, versions
from ogkd.model.classifier import Classifier
from ogkd.prompts.bank import template_bank

_SIZES = 4  # sizes that are listed
_ALPHA = 4.0  # of the class graph, for methods without an alpha
_NOT_SHOWN = {"support_images", "support_pixels", "unlabelled_images", "metrics"}


def graph_section(classifier: Classifier) -> Section:
    """The class graph W of the learned class texts, or of the class names."""
    W, alpha, learned = class_graph_of(classifier)
    texts = "class texts that the model learned" if learned else "class names"
    text = (
        f"The class graph W compares the {texts}: the more similar two of them are, the larger the "
        "number. Classes with similar texts may also be hard to tell apart in images. In percent: "
        f"each row sums to 100, and {percent(1 / len(W))} everywhere would mean that no two "
        f"classes are more similar than any others. Sharpness alpha = {alpha:g}."
    )
    low, high = float(W.min()), float(W.max())
    columns, names = name_columns(classifier.class_names)
    table = Table(
        ("class \\ neighbour", *columns),
        tuple((name, *(f"{100 * w:.1f}" for w in row)) for name, row in zip(names, W, strict=True)),
        shades=tuple(map(tuple, ((W - low) / max(high - low, 1e-9)).tolist())),
    )
    title = "Class graph: which classes are similar"
    return Section(title, (text,), table, key="graph", short="Class graph")


def class_graph_of(classifier: Classifier) -> tuple[NDArray[np.floating], float, bool]:
    """The class graph W, its alpha, and whether it is based on learned class texts."""
    T = classifier.head.class_texts
    learned = T is not None
    if T is None:  # a head without texts: use texts made from the class names
        bank = template_bank(classifier.class_names)
        features = classifier.backbone.encode_texts([text for texts in bank for text in texts])
        T = prototypes(list(features.split([len(texts) for texts in bank])))
    setting = classifier.card.config.get("alpha")
    alpha = float(setting) if isinstance(setting, int | float) and setting > 0 else _ALPHA
    return class_graph(T.float(), alpha).numpy(), alpha, learned


def data_section(
    dataset: Dataset, card: ModelCard, predictions: LabelledPredictions, audit: Audit | None
) -> Section:
    """Images of each class or finding in each split, and those learned from.

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
    if audit is not None:
        sizes = list(audit.facts.sizes.items())
        shown = ", ".join(f"{size} ({count})" for size, count in sizes[:_SIZES])
        more = f" and {len(sizes) - _SIZES} other sizes" if len(sizes) > _SIZES else ""
        text.append(f"Width x height of all images in pixels: {shown}{more}.")
    return Section("The data", tuple(text), Table(head, tuple(rows)), key="data", short="Data")


def making_section(
    classifier: Classifier, predictions: LabelledPredictions, command: str, *, show_names: bool
) -> Section:
    """The model card, what else the numbers depend on, and the command line."""
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
    text = (command if show_names else plain_command(command),) if command else ()
    table = Table((), tuple(rows))
    return Section("How the model was made", text, table, key="making", short="Settings")


def plain_command(command: str) -> str:
    """The command line, with paths cut to their last part."""
    return shlex.join(PureWindowsPath(word).name or word for word in shlex.split(command))
