"""Which engine encodes images: kept in the model, never changed in silence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import ogkd
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import half_problem, with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.errors import BackboneError, ConfigError
from ogkd.model.load import load
from tiny_data import FAST, write_dataset

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"

pytestmark = pytest.mark.skipif(
    half_problem("cpu", "bf16") != "", reason="this machine cannot compute in bf16"
)


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return load_open_clip(FIXTURE, name="tiny", device=torch.device("cpu"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", splits={"train": 3, "test": 2})


def test_the_engine_of_the_fit_is_in_the_model_and_asked_for_again(
    backbone: Backbone, data: Path, tmp_path: Path
) -> None:
    model = ogkd.fit(
        data, backbone=backbone, engine="bf16", method="ogkd", settings=FAST, out=tmp_path / "m"
    )
    assert model.card.backbone.engine == "bf16"
    images = sorted((data / "test").rglob("*.png"))
    again = load(tmp_path / "m", backbone=with_engine(backbone, "bf16"))
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))
    with pytest.raises(BackboneError, match="another backbone"):
        load(tmp_path / "m", backbone=backbone)


def test_another_engine_is_used_only_where_it_is_asked_for(
    backbone: Backbone, data: Path, tmp_path: Path
) -> None:
    model = ogkd.fit(data, backbone=backbone, method="ogkd", settings=FAST, out=tmp_path / "m")
    images = sorted((data / "test").rglob("*.png"))
    with pytest.raises(BackboneError, match="another backbone"):
        load(tmp_path / "m", backbone=with_engine(backbone, "bf16"))
    fast = load(tmp_path / "m", backbone=backbone, engine="bf16")
    assert fast.backbone.engine == "bf16"
    there, here = fast.predict_proba(images), model.predict_proba(images)
    np.testing.assert_allclose(there, here, atol=0.1)
    assert not np.array_equal(there, here)


def test_an_unknown_engine_is_refused_before_anything_is_loaded(data: Path) -> None:
    with pytest.raises(ConfigError, match="tensorrt"):
        ogkd.fit(data, backbone="builtin", engine="tensorrt")
