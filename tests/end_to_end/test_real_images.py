"""OGKD on real images with a real backbone, small enough for every run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.backbones import load_backbone
from ogkd.data.case import images_of
from ogkd.data.read import read_dataset
from ogkd.evaluation import evaluate
from ogkd.features.store import FeatureStore
from ogkd.fitting.pipeline import fit
from ogkd.model.load import load

BANK = Path(__file__).parents[2] / "src" / "ogkd" / "prompts" / "banks" / "chmnist.json"


@pytest.mark.shared
def test_a_few_real_images_teach_more_than_the_names_alone(shared, tmp_path):
    backbone = load_backbone(shared / "backbones" / "dinov2s14-minilm-med")
    dataset = read_dataset(shared / "data" / "CHMNIST")
    options = {"backbone": backbone, "prompts": BANK, "shots": 4}
    names_only = evaluate(fit(dataset, method="zero-shot", **options), dataset)
    settings = {"train.epochs": 15, "views": 2, "options.text_dropout": False}
    fitted = fit(dataset, method="ogkd", settings=settings, out=tmp_path / "model", **options)
    learned = evaluate(fitted, dataset)
    assert learned["images"] == 60
    assert learned["accuracy"] >= names_only["accuracy"] + 0.1
    again = load(tmp_path / "model", backbone=backbone)
    assert evaluate(again, dataset) == learned
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["support_counts"] == [4] * 8
    size = (tmp_path / "model" / "weights.safetensors").stat().st_size
    assert size < 1_000_000
    store = FeatureStore(backbone)
    store.get(images_of(dataset.part("test")))
    assert store.encoded == 0  # everything was known from the evaluation
