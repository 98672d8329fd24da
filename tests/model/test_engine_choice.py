"""Which engine encodes images: kept in the model, never changed in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ogkd
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import half_problem, with_engine
from ogkd.model.load import load
from tiny_data import FAST, write_dataset

pytestmark = pytest.mark.skipif(
    half_problem("cpu", "bf16") != "", reason="this machine cannot compute in bf16"
)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", splits={"train": 3, "test": 2})


def test_the_engine_of_the_fit_is_kept_and_another_is_used_with_a_note(
    bert_backbone: Backbone, data: Path, tmp_path: Path, notes: list[str]
) -> None:
    backbone, images = bert_backbone, sorted((data / "test").rglob("*.png"))
    bf16 = with_engine(backbone, "bf16")
    here, there = (
        ogkd.fit(data, backbone=one, method="ogkd", settings=FAST, out=tmp_path / one.engine)
        for one in (backbone, bf16)
    )
    assert there.card.backbone.engine == "bf16"
    again = load(tmp_path / "bf16", backbone=bf16)
    np.testing.assert_array_equal(again.predict_proba(images), there.predict_proba(images))
    for folder, other in (("bf16", backbone), ("torch", bf16)):
        notes.clear()
        assert load(tmp_path / folder, backbone=other).backbone.engine == other.engine
        assert [f"fitted with the engine {folder}" in note for note in notes] == [True]
    fast = load(tmp_path / "torch", backbone=backbone, engine="bf16")
    assert fast.backbone.engine == "bf16"
    answers, expected = fast.predict_proba(images), here.predict_proba(images)
    np.testing.assert_allclose(answers, expected, atol=0.1)
    assert not np.array_equal(answers, expected)
