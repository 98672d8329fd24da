"""Folders of benchmark runs whose numbers the test chooses; nothing is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ogkd.bench.runs import Cell, Plan, Predictions, Result, RunsFolder, RunSpec

FACTS = {
    "seconds": {"encode": 1.5, "train": 2.0},
    "together": 3,
    "versions": {"ogkd": "0.1.0"},
    "backbone_digest": "ab" * 32,
    "data_sha256": "cd" * 32,
}


def make_plan(cells: Sequence[tuple[str, RunSpec]], table: str, **fields: Any) -> Plan:
    fields = {"name": "tiny", "title": "Tiny", **fields}
    return Plan(
        table=table, cells=tuple(Cell(label=label, spec=spec) for label, spec in cells), **fields
    )


def write_run(
    folder: RunsFolder,
    spec: RunSpec,
    accuracy: float | Mapping[str, float],
    correct: Mapping[str, np.ndarray] | None = None,
    images_per_class: list[int] | None = None,
    class_names: dict[str, list[str]] | None = None,
    **metrics: float | None,
) -> None:
    """A run with this accuracy of each part; `correct` [N] says which images were right."""
    parts = accuracy if isinstance(accuracy, Mapping) else {"test": accuracy}
    predictions = {}
    for part in parts:
        right = np.ones(4, dtype=bool) if correct is None else np.asarray(correct[part])
        labels = np.arange(len(right)) % 2
        guess = np.where(right, labels, 1 - labels)
        probabilities = np.eye(2, dtype=np.float32)[guess] * 0.8 + 0.1
        predictions[part] = Predictions(labels, probabilities, np.eye(2, dtype=np.float32))
    result = Result(
        metrics={part: {"accuracy": value, **metrics} for part, value in parts.items()},
        class_names=class_names or {part: ["sick", "healthy"] for part in parts},
        normal={part: [1] for part in parts},
        images_per_class=images_per_class,
        **FACTS,
    )
    folder.write(spec, result, predictions)
