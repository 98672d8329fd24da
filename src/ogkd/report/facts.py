"""What the report says of the data and of the making of the model."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ogkd.core.geometry import class_graph, prototypes
from ogkd.errors import DataError
from ogkd.images import ImageRef, read_image
from ogkd.model.card import versions
from ogkd.prompts.bank import fold, template_bank

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.datasets.manifest import Manifest
    from ogkd.evaluation import Judged
    from ogkd.model.card import ModelCard
    from ogkd.model.classifier import Classifier

__all__ = [
    "Counts",
    "data_facts",
    "fingerprints",
    "graph",
    "model_facts",
    "part_counts",
    "plain_command",
    "settings_rows",
    "version_rows",
]

_SEEN = 200  # images whose size is looked at where no data check has looked at all of them
_SIZES = 4  # sizes that are named
_ALPHA = 4.0  # of the class graph, for methods that have none of their own

Pairs = list[tuple[str, str]]


@dataclass(frozen=True)
class Counts:
    """How many images of each class there are in each part, and how many were learned from."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def part_counts(manifest: Manifest, card: ModelCard) -> Counts:
    """Images per class and part; classes are matched by name, as the evaluation does."""
    splits = list(dict.fromkeys(item.split for item in manifest.items))
    names = {fold(name): name for name in (*card.class_names, *manifest.class_names)}
    counted = Counter((fold(manifest.class_names[i.label]), i.split) for i in manifest.items)
    learned = dict(zip(map(fold, card.class_names), card.support_counts, strict=False))
    rows = tuple(
        (
            name,
            (*(str(counted[key, split]) for split in splits), str(learned.get(key, 0))),
        )
        for key, name in names.items()
    )
    return Counts((*(split or "images" for split in splits), "learned from"), rows)


def data_facts(judged: Judged, audit: Audit | None) -> Pairs:
    """Sizes of the images and number of patients."""
    sizes = (
        Counter(audit.facts.sizes)
        if audit is not None
        else Counter(_size(path) for path in _spread(judged.images))
    )
    total = sum(sizes.values())
    shown = [f"{size} ({count})" for size, count in sizes.most_common(_SIZES)]
    more = len(sizes) - len(shown)
    others = f" and {more} other sizes" if more > 0 else ""
    among = "all images of the data" if audit is not None else f"{total} of the judged images"
    facts = [("Width x height in pixels", f"{', '.join(shown)}{others}; seen: {among}")]
    groups = {group for group in judged.groups if group is not None}
    known = f"{len(groups)} among the judged images" if groups else "not known"
    facts.append(("Patients (groups)", known))
    return facts


def _spread(paths: Sequence[ImageRef]) -> Iterable[ImageRef]:
    """At most so many paths, taken evenly from all."""
    numbers = np.linspace(0, len(paths) - 1, min(len(paths), _SEEN)).round().astype(int)
    return [paths[number] for number in np.unique(numbers)]


def _size(path: ImageRef) -> str:
    try:
        height, width = read_image(path).shape[:2]
    except DataError:
        return "unreadable"  # its features are known from before
    return f"{width} x {height}"


def graph(classifier: Classifier) -> tuple[NDArray[np.floating], float, bool]:
    """The class graph W, its alpha, and whether it is that of the learned class texts."""
    head = classifier.head
    T = getattr(getattr(head, "text", head), "T", None)  # some carry a text head inside
    learned = T is not None
    if T is None:  # a head without texts: those that stand for the class names
        bank = template_bank(classifier.class_names)
        features = classifier.backbone.encode_texts([text for texts in bank for text in texts])
        T = prototypes(list(features.split([len(texts) for texts in bank])))
    found = classifier.card.config.get("alpha")
    alpha = float(found) if isinstance(found, int | float) and found > 0 else _ALPHA
    return class_graph(T.float(), alpha).numpy(), alpha, learned


def model_facts(classifier: Classifier, *, show_names: bool) -> Pairs:
    """What was fitted, on what."""
    card = classifier.card
    backbone = card.backbone.name if show_names else card.backbone.short_name
    used, fitted = classifier.backbone.engine, card.backbone.engine
    engine = used if used == fitted else f"{used}, but {fitted} for the fit"
    rows = [
        ("Method", card.method + (f", preset {card.preset}" if card.preset else "")),
        ("Backbone", f"{backbone} (frozen)"),
        ("Encoder engine", engine),
        ("Classes", ", ".join(card.class_names)),
        ("Classes that mean nothing was found", ", ".join(card.normal) or "none"),
        ("Images learned from", str(sum(card.support_counts))),
        ("Seed", str(card.seed)),
    ]
    if card.slice:
        rows.append(("Slice of volumes", card.slice))
    if calibration := classifier.calibration:
        rows.append(
            (
                "Calibration",
                f"temperature {calibration.temperature:.3f}, from {calibration.images} images",
            )
        )
    return rows


def settings_rows(config: Mapping[str, Any], prefix: str = "") -> Pairs:
    """Nested settings as dotted names, as `--set` takes them."""
    rows: Pairs = []
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            rows += settings_rows(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", json.dumps(value, ensure_ascii=False)))
    return rows


def version_rows(card: ModelCard) -> Pairs:
    """Versions now, and those of the fit where they were others."""
    return [
        (name, now if card.versions.get(name, now) == now else f"{now} (fit: {then})")
        for name, now in versions().items()
        for then in [card.versions.get(name, "not known")]
    ]


def fingerprints(classifier: Classifier, judged: Judged) -> Pairs:
    """Digests that tell whether two reports speak of the same things."""
    card = classifier.card
    seen = json.dumps(sorted(zip(judged.keys, judged.labels.tolist(), strict=True)))
    return [
        ("Model weights", classifier.weights_sha256),
        ("Backbone", card.backbone.digest),
        ("Images learned from", card.data_sha256),
        ("Images judged, with labels", hashlib.sha256(seen.encode()).hexdigest()),
        ("Prompts", card.prompts_sha256),
    ]


def plain_command(command: str, *, show_names: bool) -> str:
    """The command line; folders above what it names are nobody's business."""
    if show_names:
        return command
    try:
        words = shlex.split(command)
    except ValueError:  # an open quotation mark
        words = command.split()
    return shlex.join(_last(word) for word in words)


def _last(name: str) -> str:
    """The last part of a path; anything else as it is."""
    option, equals, value = name.partition("=")
    if equals and option.startswith("-"):
        return f"{option}={_last(value)}"
    parts = re.split(r"[/\\]", name.rstrip("/\\"))
    return f"-o{parts[-1]}" if name.startswith("-o") and len(parts) > 1 else parts[-1]
