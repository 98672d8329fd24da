"""Published models' layers beside other libraries: outputs that these computed are in `towers/`.

`tools/make_backbone_fixtures.py` made them. Weights are a function of key and shape, and the keys
are those of the published weight files.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from made_weights import PIXEL_SCALE, made
from ogkd.backbones.base import Tokens
from ogkd.backbones.loading import load_folder
from ogkd.errors import BackboneError
from tower_folders import CASES, TOWERS, tower_weights, write_folder

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=CASES)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Any, dict[str, Tensor]]:
    name = request.param
    folder = write_folder(tmp_path_factory.mktemp("model"), name)
    expected = load_file(TOWERS / f"{name}.safetensors")
    return name, load_folder(folder, name=name, device=CPU), expected


def sampled(patches: Tensor, expected: Tensor) -> Tensor:
    """Those patches that a fixture has: each, or of large maps every 7th or 16th."""
    if patches.shape == expected.shape:
        return patches
    return patches[:, :: 7 if patches.shape[1] == 49 else 16]


def made_pixels(backbone: Any) -> Tensor:
    size = backbone.preprocessing.size
    return PIXEL_SCALE * torch.from_numpy(made("pixels", (2, 3, size, size)))


def test_every_fixture_is_tested_and_together_they_stay_small() -> None:
    assert {path.stem for path in TOWERS.iterdir()} == set(CASES)
    assert sum(path.stat().st_size for path in TOWERS.iterdir()) < 300_000


@pytest.mark.parametrize("patches", [True, False])
def test_image_features_are_those_of_the_other_library(case: Any, patches: bool) -> None:
    _, backbone, expected = case
    features = backbone.encode_images(made_pixels(backbone), patches=patches)
    torch.testing.assert_close(features.globals, expected["globals"], rtol=0, atol=1e-5)
    if patches:
        rows, columns = backbone.patch_grid
        assert features.patches.shape == (2, rows * columns, backbone.embed_dim)
        some = sampled(features.patches, expected["patches"])
        torch.testing.assert_close(some, expected["patches"], rtol=0, atol=1e-5)


def test_text_features_are_those_of_the_other_library(case: Any) -> None:
    name, backbone, expected = case
    ids = CASES[name]
    tokens = Tokens(ids, torch.tensor([[True] * 6, [True] * 3 + [False] * 3]))
    features = backbone.encode_text(backbone.embed(tokens), tokens)
    torch.testing.assert_close(features, expected["texts"], rtol=0, atol=1e-5)
    assert (expected["texts"][0] - expected["texts"][1]).abs().max() > 0.05


def test_the_tokenizer_ends_texts_as_the_fixture_does(case: Any) -> None:
    name, backbone, _ = case
    ids = CASES[name]
    tokens = backbone.tokenize(["a photo of cyst", "lung"])
    assert tokens.ids[:, 0].tolist() == ids[:, 0].tolist()
    assert tokens.ids[0, -1] == ids[0, -1]


# A key's bias adds the same number to every score of a query, and softmax removes it.
WITHOUT_EFFECT = ("key.bias", "logit_scale")


def test_a_change_of_any_one_tensor_shows(case: Any) -> None:
    """So a tensor that lands in the wrong place cannot pass the tests above."""
    name, backbone, _ = case
    tokens = Tokens(CASES[name], torch.tensor([[True] * 6, [True] * 3 + [False] * 3]))
    words = backbone.embed(tokens)
    pixels = made_pixels(backbone)[:1]
    if name in ("flair", "medclip", "biovil", "biovil_t"):
        pixels = pixels[:, :, :96, :96]  # maps of any size

    def outputs(part: str) -> Tensor:
        if part == "image":
            image, patches, _ = backbone.model.image(pixels, patches=True)
            return torch.cat([image.unsqueeze(1), patches], dim=1)
        new = backbone.embed(tokens) if "word" in key else words
        return backbone.encode_text(new, tokens)

    silent = []
    with torch.no_grad():
        for key, value in backbone.model.named_parameters():
            if key.endswith(WITHOUT_EFFECT):
                continue
            part, kept = key.split(".")[0], value.clone()
            before = outputs(part)
            noise = torch.from_numpy(made(f"noise of {key}", value.shape))
            value += (1 + value.abs()) * noise
            if (outputs(part) - before).abs().max() < 1e-5 * before.abs().max():
                silent.append(key)
            value.copy_(kept)
    assert silent == []


# The same towers as others publish them

TEXT_KEYS = ("token_embedding", "positional_embedding", "transformer.", "ln_final", "text_proj")


def in_custom_text(key: str) -> str:
    return f"text.{key}" if key.startswith(TEXT_KEYS) else key


@pytest.mark.parametrize(
    ("name", "rename"),
    [
        ("own_vit", in_custom_text),  # open_clip's CustomTextCLIP
        ("own_vit_bert", lambda key: key.replace("text.", "text_encoder.")),  # UniMed-CLIP
    ],
)
def test_other_prefixes_of_the_text_tower_give_the_same(
    tmp_path: Path, name: str, rename: Callable[[str], str]
) -> None:
    folder = write_folder(tmp_path, name)
    expected = load_folder(folder, name=name, device=CPU).encode_texts(["a photo of cyst"])
    state = {rename(key): value for key, value in tower_weights(name).items()}
    assert state.keys() != tower_weights(name).keys()
    save_file(state, folder / "model.safetensors")
    features = load_folder(folder, name=name, device=CPU).encode_texts(["a photo of cyst"])
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-6)


def test_a_checkpoint_needs_only_its_activation_beside_its_shapes(tmp_path: Path) -> None:
    """CheXzero's file is OpenAI's module saved whole, without any configuration."""
    folder = write_folder(tmp_path, "own_vit")
    config = json.loads((folder / "open_clip_config.json").read_text())["model_cfg"]
    state = {**tower_weights("own_vit"), "context_length": torch.tensor(16)}
    (folder / "model.safetensors").unlink()
    torch.save({"epoch": 3, "state_dict": state}, folder / "best_64.pt")
    (folder / "open_clip_config.json").unlink()
    with pytest.raises(BackboneError, match="quick_gelu"):
        load_folder(folder, name="chexzero", device=CPU)
    least = {"quick_gelu": True, "vision_cfg": {"head_width": 16}, "text_cfg": {"heads": 2}}
    assert config["vision_cfg"]["head_width"] == 16  # the published ones have 64, the default
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": least}))
    backbone: Any = load_folder(folder, name="chexzero", device=CPU)
    expected = load_file(TOWERS / "own_vit.safetensors")
    features = backbone.encode_images(made_pixels(backbone))
    torch.testing.assert_close(features.globals, expected["globals"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("part", "setting"),
    [
        ("vision_cfg", {"pool_type": "avg"}),
        ("vision_cfg", {"image_size": 40}),
        ("text_cfg", {"pool_type": "last"}),
        ("text_cfg", {"no_causal_mask": True}),
    ],
)
def test_options_that_change_the_network_are_refused(
    tmp_path: Path, part: str, setting: dict[str, Any]
) -> None:
    folder = write_folder(tmp_path, "own_vit")
    path = folder / "open_clip_config.json"
    content = json.loads(path.read_text())
    content["model_cfg"][part] |= setting
    path.write_text(json.dumps(content))
    with pytest.raises(BackboneError, match=next(iter(setting))):
        load_folder(folder, name="other", device=CPU)
