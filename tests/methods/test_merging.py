"""A tuned backbone as an ordinary folder in its base's format."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from toys import pixel_support, quick, text_of

import ogkd
from ogkd.backbones import load_backbone
from ogkd.backbones.changes import write_backbone
from ogkd.errors import BackboneError, ConfigError
from ogkd.model.load import load
from tower_folders import write_folder

FIXTURES = Path(__file__).parents[1] / "parity" / "fixtures"


@pytest.fixture(params=["timm_bert", "clip", "own_vit", "own_vit_bert"])
def base(request, clip, tmp_path):
    """Folders whose files stack, transpose and rename weights in different ways."""
    if request.param == "clip":
        return clip
    if request.param == "timm_bert":
        return FIXTURES / "class_token_mlp"
    return write_folder(tmp_path / "base", request.param)


def tuned(name, backbone):
    """The backbone with towers that a method has changed for a moment."""
    method, text = quick(name), text_of(backbone, ("a", "b"))
    head = method.fit(pixel_support((2, 2), backbone), text, seed=1)
    return method.tower(backbone, head.tensors())


@pytest.mark.parametrize("name", ["clip-svd", "clip-lora"])
def test_a_written_backbone_has_the_features_of_the_tuned_towers(name, base, tmp_path):
    original = load_backbone(base)
    adapted = tuned(name, original)
    again = load_backbone(write_backbone(adapted, tmp_path / "written"))
    pixels = pixel_support((2, 2), original).views.features.globals[:, 0]
    ours, theirs = adapted.encode_images(pixels), again.encode_images(pixels)
    torch.testing.assert_close(theirs.globals, ours.globals, atol=1e-5, rtol=0)
    torch.testing.assert_close(theirs.patches, ours.patches, atol=1e-5, rtol=0)
    texts = ["a normal image", "a tumor"]
    torch.testing.assert_close(
        again.encode_texts(texts), adapted.encode_texts(texts), atol=1e-5, rtol=0
    )
    assert not torch.allclose(ours.globals, original.encode_images(pixels).globals, atol=1e-3)
    assert again.digest not in (original.digest, adapted.digest)
    assert again.logit_scale == original.logit_scale
    assert again.preprocessing == original.preprocessing


def test_any_method_fits_on_the_written_backbone(bert_backbone, pictures, tmp_path):
    options = {"backbone": bert_backbone, "shots": 2, "settings": {"train.epochs": 2}}
    model = ogkd.fit(pictures, method="clip-lora", out=tmp_path / "model", **options)
    model.export_backbone(tmp_path / "tower")
    head = ogkd.fit(pictures, backbone=tmp_path / "tower", method="fused", shots=2)
    assert head.card.backbone.digest not in (bert_backbone.digest, model.backbone.digest)
    with pytest.raises(ConfigError) as error:
        model.export_backbone(tmp_path / "tower")
    assert error.value.argument == "out"


@pytest.mark.parametrize("name", ["evi-steer", "biomed-dpt", "coop"])
def test_what_is_no_weight_cannot_be_merged(name, bert_backbone, tmp_path):
    method = quick(name)
    backbone = tuned(name, bert_backbone) if method.needs_pixels else bert_backbone
    with pytest.raises(ConfigError) as error:
        write_backbone(method.tower(backbone, {}) if name == "biomed-dpt" else backbone, tmp_path)
    assert error.value.argument == "model"


def test_a_tuned_model_is_refused_without_its_base_and_with_another(clip, pictures, tmp_path):
    base = shutil.copytree(FIXTURES / "class_token_mlp", tmp_path / "base")
    settings = {"train.epochs": 1}
    options = {"method": "clip-lora", "shots": 1, "settings": settings, "out": tmp_path / "model"}
    model = ogkd.fit(pictures, backbone=base, **options)
    with pytest.raises(BackboneError) as error:
        load(tmp_path / "model", backbone=clip)
    assert error.value.argument == "backbone"
    assert model.card.backbone.digest[:12] in str(error.value)
    model.export_backbone(tmp_path / "tuned")
    with pytest.raises(BackboneError):  # towers that are tuned already
        load(tmp_path / "model", backbone=tmp_path / "tuned")
    shutil.rmtree(base)
    with pytest.raises(BackboneError) as error:
        load(tmp_path / "model")
    assert error.value.argument == "backbone"
