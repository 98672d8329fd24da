"""The built-in model's statistics of phantoms tell phantoms from other images."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from ogkd.backbones import load_backbone
from ogkd.backbones.builtin import (
    BUILTIN_FOLDER,
    STATISTICS,
    domain_warning,
    is_builtin,
    mostly_strange,
    phantom_domain,
)
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.images.transforms import to_pixels


@pytest.fixture(scope="module")
def builtin():
    return load_backbone("builtin", device="cpu")


def features(model, images):
    return model.encode_images(to_pixels(images, model.preprocessing), patches=False).globals


def test_the_statistics_are_of_the_present_model_and_small(builtin):
    assert phantom_domain().digest == builtin.digest, "run tools/phantom_statistics.py"
    assert len(phantom_domain().mean) >= len(PHANTOMS)  # also of families that are no longer drawn
    assert STATISTICS.stat().st_size < 300_000


@pytest.mark.parametrize("name", PHANTOMS)
def test_new_phantoms_are_phantoms_at_any_size(builtin, name):
    classes = len(PHANTOMS[name].class_names)
    images = [
        render(name, index % classes, seed=901, index=index, size=(90, 160, 260)[index % 3]).image
        for index in range(12)
    ]
    strange = builtin.out_of_domain(features(builtin, images).numpy())
    assert not mostly_strange(int(strange.sum()), len(strange))


def test_noise_and_flat_images_are_not_phantoms(builtin):
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (90, 90, 3), np.uint8) for _ in range(8)]
    flat = [np.full((64, 64, 3), level, np.uint8) for level in (0, 90, 180, 255)]
    rows = features(builtin, [*noise, *flat]).numpy()
    outside = builtin.out_of_domain(rows)
    assert outside.mean() > 0.8
    assert domain_warning(int(outside.sum()), len(rows))


def test_another_backbone_is_never_warned_about(bert_backbone):
    assert not is_builtin(bert_backbone)
    rows = torch.nn.functional.normalize(torch.ones(3, bert_backbone.embed_dim)).numpy()
    assert bert_backbone.out_of_domain(rows) is None


def test_of_rows_with_deeper_features_only_the_global_one_counts(builtin):
    pixels = to_pixels([render("cxr", 0, seed=901, index=0).image], builtin.preprocessing)
    both = builtin.encode_images(pixels, deep=True)
    assert both.rows.shape[1] > builtin.embed_dim
    np.testing.assert_array_equal(
        builtin.out_of_domain(both.rows.numpy()), builtin.out_of_domain(both.globals.numpy())
    )


@pytest.mark.parametrize(
    ("strange", "images", "said"),
    [(0, 0, False), (0, 9, False), (1, 1, True), (1, 2, False), (7, 24, False), (8, 24, True)],
)
def test_a_few_strange_phantoms_are_no_alarm(strange, images, said):
    assert bool(domain_warning(strange, images)) is said


@pytest.mark.shared
def test_real_images_are_not_phantoms(builtin, shared):
    from ogkd.images import find_images, read_image

    for folder in sorted((shared / "data").glob("*/test")):
        files = find_images([folder])
        chosen = [files[row] for row in np.linspace(0, len(files) - 1, 24).astype(int)]
        rows = features(builtin, [read_image(file) for file in chosen]).numpy()
        assert mostly_strange(int(builtin.out_of_domain(rows).sum()), 24), folder.parent.name


def test_training_can_start_from_the_shipped_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools"))
    from builtin_vlm.model import Trainee, make_config
    from builtin_vlm.storage import load_weights
    from builtin_vlm.text import build_tokenizer

    tokenizer = build_tokenizer()
    model = Trainee(make_config(tokenizer.get_vocab_size()), {})
    load_weights(BUILTIN_FOLDER, model, tokenizer)
    shipped = load_file(BUILTIN_FOLDER / "model.safetensors")["visual_projection.weight"]
    assert torch.equal(model.clip.visual_projection.weight, shipped.float())
    with pytest.raises(SystemExit, match="another vocabulary"):
        load_weights(BUILTIN_FOLDER, model, build_tokenizer(pieces=10))
