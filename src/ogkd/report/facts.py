"""Facts about the data and about how the model was made."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.audit import Audit
from ogkd.core.geometry import class_graph, prototypes
from ogkd.data.case import Dataset
from ogkd.data.names import fold_name
from ogkd.errors import DataError
from ogkd.evaluation import LabelledPredictions
from ogkd.images import ImageRef, read_image
from ogkd.methods import flatten
from ogkd.model.card import ModelCard, versions
from ogkd.model.classifier import Classifier
from ogkd.prompts.bank import template_bank

_SAMPLED = 200  # images whose size is read if no data check has read all of them
_SIZES = 4  # sizes that are listed
_ALPHA = 4.0  # of the class graph, for methods without an alpha

Pairs = list[tuple[str, str]]


def part_counts(dataset: Dataset, card: ModelCard) -> tuple[list[str], list[tuple[str, list[int]]]]:
    """Columns, and for each class or finding its images in each split and those learned from.

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
        (name, [*(counted[key, split] for split in splits), learned.get(key, 0)])
        for key, name in names.items()
    ]
    return [*(split or "images" for split in splits), "learned from"], rows


def data_facts(predictions: LabelledPredictions, audit: Audit | None) -> Pairs:
    if audit is not None:
        sizes, sample = Counter(audit.facts.sizes), "all images of the data"
    else:
        count = len(predictions.images)
        chosen = np.linspace(0, count - 1, min(count, _SAMPLED)).round().astype(int)
        sizes = Counter(_size(predictions.images[number]) for number in np.unique(chosen))
        sample = f"{sizes.total()} of the evaluated images"
    shown = [f"{size} ({count})" for size, count in sizes.most_common(_SIZES)]
    more = len(sizes) - len(shown)
    others = f" and {more} other sizes" if more > 0 else ""
    groups = {group for group in predictions.groups if group is not None}
    known = f"{len(groups)} among the evaluated images" if groups else "unknown"
    return [
        ("Width x height in pixels", f"{', '.join(shown)}{others}; among {sample}"),
        ("Patients (groups)", known),
    ]


def _size(ref: ImageRef) -> str:
    try:
        height, width = read_image(ref).shape[:2]
    except DataError:
        return "unreadable"  # its features were computed earlier
    return f"{width} x {height}"


def graph(classifier: Classifier) -> tuple[NDArray[np.floating], float, bool]:
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


def model_facts(classifier: Classifier, *, show_names: bool) -> Pairs:
    card = classifier.card
    backbone = card.backbone.name if show_names else card.backbone.short_name
    used, fitted = classifier.backbone.engine, card.backbone.engine
    engine = used if used == fitted else f"{used} (fitted with {fitted})"
    rows = [
        ("Method", card.method + (f", preset {card.preset}" if card.preset else "")),
        ("Backbone", f"{backbone} (frozen)"),
        ("Encoder engine", engine),
        (classifier.task.plural.capitalize(), ", ".join(card.class_names)),
        ("Classes without a finding", ", ".join(card.normal)),
        ("Images learned from", str(card.images)),
        ("Seed", str(card.seed)),
        ("What makes a case", card.cases.get("by") or ""),
        ("Slices of volumes", card.cases.get("slices") or card.cases.get("slice") or ""),
    ]
    if calibration := classifier.calibration:
        temperatures = ", ".join(f"{each.temperature:.3f}" for each in calibration.questions)
        rows.append(("Calibration", f"temperature {temperatures}, from {calibration.cases} images"))
    return [(name, value) for name, value in rows if value]


def settings_rows(config: Mapping[str, Any]) -> Pairs:
    """Nested settings with dotted names."""
    return [(name, json.dumps(value, ensure_ascii=False)) for name, value in flatten(config)]


def version_rows(card: ModelCard) -> Pairs:
    """Current versions, and those of the fit if they differ."""
    return [
        (name, now if card.versions.get(name, now) == now else f"{now} (fit: {then})")
        for name, now in versions().items()
        for then in [card.versions.get(name, "unknown")]
    ]


def fingerprints(classifier: Classifier, predictions: LabelledPredictions) -> Pairs:
    """Digests that show whether two reports are about the same model and data."""
    card = classifier.card
    seen = json.dumps(sorted(zip(predictions.keys, predictions.labels.tolist(), strict=True)))
    return [
        ("Model weights", classifier.weights_sha256),
        ("Backbone", card.backbone.digest),
        ("Images learned from", card.data_sha256),
        ("Evaluated images, with labels", hashlib.sha256(seen.encode()).hexdigest()),
        ("Prompts", " ".join(filter(None, (card.prompts, card.prompts_sha256)))),
    ]


def plain_command(command: str, *, show_names: bool) -> str:
    """The command line; without `show_names`, paths are cut to their last part."""
    if show_names:
        return command
    try:
        words = shlex.split(command)
    except ValueError:  # an open quotation mark
        words = command.split()
    return shlex.join(_last(word) for word in words)


def _last(name: str) -> str:
    """The last part of a path; anything else unchanged."""
    option, equals, value = name.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_last(value)}"
    parts = re.split(r"[/\\]", name.rstrip("/\\"))
    return f"-o{parts[-1]}" if name.startswith("-o") and len(parts) > 1 else parts[-1]
