"""Fixtures of the report's tests: a tiny model that was fitted once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from report_world import NAMES, World

from ogkd.data.read import read_dataset
from ogkd.evaluation import predict_labelled
from ogkd.evaluation.calibrate import calibrate
from ogkd.fitting.pipeline import fit
from tiny_data import write_image


@pytest.fixture(scope="session")
def images_of(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """{train,val,test}/class folders whose files have telling names."""
    root = tmp_path_factory.mktemp("data")
    for number, (split, count) in enumerate({"train": 3, "val": 6, "test": 8}.items()):
        for label, name in enumerate(("a", "b", "c")):
            for index in range(count):
                file = root / split / name / f"Jane-Doe-{split}-{label}-{index}.png"
                write_image(file, label + 4 * (index + 100 * number))
    return root


@pytest.fixture(scope="session")
def world(clip: Path, images_of: Path) -> World:
    """A calibrated text head."""
    dataset = read_dataset(images_of)
    dataset = replace(dataset, task=replace(dataset.task, names=NAMES))
    classifier = fit(dataset, backbone=clip, method="zero-shot")
    classifier.calibration = calibrate(classifier, dataset)
    return World(classifier, dataset, predict_labelled(classifier, dataset))
