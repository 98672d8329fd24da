"""Sections about the data and about how the model was made."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections import Counter
from collections.abc import Iterator
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


def making_sections(
    classifier: Classifier, predictions: LabelledPredictions, command: str, *, show_names: bool
) -> Iterator[Section]:
    """How the model was made, and what shows whether two reports are about the same."""
    card = classifier.card
    used, fitted = classifier.backbone.engine, card.backbone.engine
    model = {
        "Method": card.method + (f", preset {card.preset}" if card.preset else ""),
        "Backbone": f"{card.backbone.name if show_names else card.backbone.short_name} (frozen)",
        "Encoder engine": used if used == fitted else f"{used} (fitted with {fitted})",
        classifier.task.plural.capitalize(): ", ".join(card.class_names),
        "Classes without a finding": ", ".join(card.normal),
        "Images learned from": str(card.images),
        "Seed": str(card.seed),
        "What makes a case": card.cases.get("by") or "",
        "Slices of volumes": card.cases.get("slices") or card.cases.get("slice") or "",
    }
    if calibration := classifier.calibration:
        temperatures = ", ".join(f"{each.temperature:.3f}" for each in calibration.questions)
        model["Calibration"] = f"temperature {temperatures}, from {calibration.cases} images"
    yield _pairs("How the model was made", model, key="making", short="Settings")
    settings = flatten(card.config)
    yield _pairs("Method settings", {key: json.dumps(value) for key, value in settings})
    made = {name: card.versions.get(name, "unknown") for name in versions()}
    yield _pairs(
        "Versions",
        {
            name: now if made[name] in (now, "unknown") else f"{now} (fit: {made[name]})"
            for name, now in versions().items()
        },
    )
    seen = json.dumps(sorted(zip(predictions.keys, predictions.labels.tolist(), strict=True)))
    digests = {
        "Model weights": classifier.weights_sha256,
        "Backbone": card.backbone.digest,
        "Images learned from": card.data_sha256,
        "Evaluated images, with labels": hashlib.sha256(seen.encode()).hexdigest(),
        "Prompts": " ".join(filter(None, (card.prompts, card.prompts_sha256))),
    }
    yield _pairs("Fingerprints (SHA-256)", digests)
    if command:
        words = command if show_names else plain_command(command)
        yield Section("Command line", (words,))


def _pairs(title: str, facts: dict[str, str], *, key: str = "", short: str = "") -> Section:
    rows = tuple((name, value) for name, value in facts.items() if value)
    return Section(title, (), Table((), rows), key=key, short=short)


def plain_command(command: str) -> str:
    """The command line, with paths cut to their last part."""
    return shlex.join(PureWindowsPath(word).name or word for word in shlex.split(command))
