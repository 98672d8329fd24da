"""A tiny dataset of noise, and folders of runs whose numbers the test chooses or simulates."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ogkd.bench.runs import Cell, Plan, Predictions, Result, RunsFolder, RunSpec

Labelled = Sequence[tuple[str, RunSpec]]
FACTS = {
    "seconds": {"encode": 1.5, "train": 2.0},
    "together": 3,
    "versions": {"ogkd": "0.1.0"},
    "backbone_digest": "ab" * 32,
    "data_sha256": "cd" * 32,
}
CLASSES = {
    "retina": ("diabetic retinopathy", "glaucoma", "cataract", "normal retina"),
    "busi": ("benign tumor", "malignant tumor", "normal scan"),
    "covid": ("covid lungs", "lung opacity lungs", "viral pneumonia lungs", "normal lungs"),
}
SKILL = {"ogkd": 0.35, "biomedcoop": 0.2, "zero-shot": -0.6, "gda": 0.3}


def specs(
    methods: Sequence[str] = ("biomedcoop", "ogkd"),
    datasets: Iterable[str] = ("retina", "busi"),
    shots: Sequence[int] = (1, 4, 16),
    seeds: Sequence[int] = (1, 2),
    **fields: Sequence[Any],
) -> list[tuple[str, RunSpec]]:
    """Every combination, labelled by method; other fields of RunSpec take lists too."""
    lists = {"dataset": datasets, "method": methods, "shots": shots, "seed": seeds, **fields}
    contents = (dict(zip(lists, row, strict=True)) for row in itertools.product(*lists.values()))
    return [(str(content["method"]), RunSpec.model_validate(content)) for content in contents]


def make_plan(cells: Labelled, table: str = "few-shot", **fields: Any) -> Plan:
    fields = {"name": "tiny", "title": "Tiny", **fields}
    return Plan(
        table=table, cells=tuple(Cell(label=label, spec=spec) for label, spec in cells), **fields
    )


def write_run(
    folder: RunsFolder,
    spec: RunSpec,
    accuracy: float | Mapping[str, float],
    correct: Mapping[str, np.ndarray] | None = None,
    predictions: Mapping[str, Predictions] | None = None,
    images_per_class: list[int] | None = None,
    class_names: Mapping[str, Sequence[str]] | None = None,
    **metrics: float | None,
) -> None:
    """A run with this accuracy of each part; `correct` [N] says which images were right."""
    parts = accuracy if isinstance(accuracy, Mapping) else {"test": accuracy}
    made = dict(predictions or {})
    for part in parts if predictions is None else ():
        right = np.ones(4, dtype=bool) if correct is None else np.asarray(correct[part])
        labels = np.arange(len(right)) % 2
        guess = np.where(right, labels, 1 - labels)
        probabilities = np.eye(2, dtype=np.float32)[guess] * 0.8 + 0.1
        made[part] = Predictions(labels, probabilities, np.eye(2, dtype=np.float32))
    names = class_names or {part: ["sick", "normal"] for part in parts}
    result = Result(
        metrics={part: {"accuracy": value, **metrics} for part, value in parts.items()},
        class_names={part: list(names[part]) for part in parts},
        normal={
            part: [i for i, name in enumerate(names[part]) if "normal" in name] for part in parts
        },
        images_per_class=images_per_class,
        **FACTS,
    )
    folder.write(spec, result, made)


def simulate(
    folder: RunsFolder,
    labelled: Labelled,
    classes: Mapping[str, Sequence[str]] = CLASSES,
    images: int = 150,
    **plan: Any,
) -> tuple[RunsFolder, Plan]:
    """A simulated run for each specification, and their plan."""
    for _, spec in labelled:
        names = classes[spec.dataset]
        half = -(-len(names) // 2)
        parts = {"test": names, "base": names[:half], "novel": names[half:]}
        made = {part: _predictions(spec, parts[part], part, images) for part in spec.parts}
        accuracy = {
            part: float((one.probabilities.argmax(axis=1) == one.labels).mean())
            for part, one in made.items()
        }
        write_run(folder, spec, accuracy, predictions=made, class_names=parts)
    return folder, make_plan(labelled, **plan)


def _predictions(spec: RunSpec, names: Sequence[str], part: str, images: int) -> Predictions:
    """Noisy logits that methods and shots move; an image is as hard for one as for another."""
    same = np.random.default_rng(zlib.crc32(f"{spec.dataset} {part}".encode()))
    labels = same.integers(0, len(names), images)
    W = same.random((len(names), len(names)))
    logits = 1.2 * same.normal(size=(images, len(names)))
    logits += 0.8 * np.random.default_rng(zlib.crc32(spec.hash.encode())).normal(size=logits.shape)
    skill = 1.2 + 0.35 * np.log2(spec.shots or 1) + SKILL.get(spec.method, 0.0) - 0.06 * spec.flips
    logits[np.arange(images), labels] += skill
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    W /= W.sum(axis=1, keepdims=True)
    return Predictions(labels.astype(np.int64), p.astype(np.float32), W.astype(np.float32))


def make_dataset(root: Path, *, seed: int = 0) -> None:
    """Images of noise, brighter from class to class."""
    names = ("benign_tumor", "malignant_tumor", "normal_lung", "striped_cyst")
    for label, name in enumerate(names):
        for split, count in (("train", 4), ("val", 1), ("test", 3)):
            folder = root / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                rng = np.random.default_rng([seed, label, index, len(split)])
                image = rng.integers(0, 100, (36, 40, 3)) + 45 * label
                Image.fromarray(image.astype(np.uint8)).save(folder / f"{index}.png")
