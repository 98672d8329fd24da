"""Our loader beside the real open_clip: outputs that it computed are in `fixtures/`.

`tools/make_open_clip_fixtures.py` made them; `docs/evidence/parity.md` has the full-size figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import Tokens
from ogkd.backbones.open_clip_format import load_open_clip

FIXTURES = Path(__file__).parent / "fixtures"
CASES = (
    "class_token_mlp",
    "layer_scale",
    "mean_linear",
    "norm_after_mean",
    "patch_14",
    "trunk_head",
)
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Case:
    backbone: TowersBackbone
    want: dict[str, Tensor]
    texts: list[str]

    @property
    def short_texts(self) -> list[str]:
        """The texts that leave room in the context, so that trimming shortens them."""
        return [
            text for text, is_short in zip(self.texts, self.want["short"], strict=True) if is_short
        ]


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    folder = FIXTURES / request.param
    with safe_open(folder / "expected.safetensors", "pt") as file:
        texts = json.loads(file.metadata()["texts"])
    return Case(
        load_open_clip(folder, name=request.param, device=CPU),
        load_file(folder / "expected.safetensors"),
        texts,
    )


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)


def test_every_fixture_is_tested_and_together_they_stay_small() -> None:
    assert sorted(folder.name for folder in FIXTURES.iterdir()) == sorted(CASES)
    assert sum(file.stat().st_size for file in FIXTURES.rglob("*") if file.is_file()) < 2_000_000


def test_global_features_equal_open_clips(case: Case) -> None:
    assert_close(case.backbone.encode_images(case.want["pixels"]).globals, case.want["globals"])


def test_global_features_without_patches_equal_open_clips(case: Case) -> None:
    """Its own test because the tower may take a shorter way when nobody asks for patches."""
    features = case.backbone.encode_images(case.want["pixels"], patches=False)
    assert_close(features.globals, case.want["globals"])


def test_patch_tokens_equal_open_clips_trunk_tokens_through_its_head(case: Case) -> None:
    patches = case.backbone.encode_images(case.want["pixels"]).patches
    assert patches is not None
    rows, columns = case.backbone.patch_grid
    assert patches.shape[1] == rows * columns
    assert_close(patches, case.want["patches"])


def test_tokens_equal_open_clips_up_to_its_padding(case: Case) -> None:
    tokens = case.backbone.tokenize(case.texts)
    assert torch.equal(tokens.ids, case.want["ids"])  # one text fills the context: no trimming
    assert torch.equal(tokens.mask, case.want["ids"] != 0)
    short = case.backbone.tokenize(case.short_texts)
    assert short.ids.shape[1] < case.want["ids"].shape[1]
    padded = case.want["ids"][case.want["short"]]
    assert torch.equal(short.ids, padded[:, : short.ids.shape[1]])
    assert not padded[:, short.ids.shape[1] :].any()


def test_text_features_of_padded_ids_equal_open_clips(case: Case) -> None:
    ids = case.want["ids"]
    tokens = Tokens(ids=ids, mask=ids != 0)
    features = case.backbone.encode_text(case.backbone.embed(tokens), tokens)
    assert_close(features, case.want["texts_padded"])


def test_text_features_of_trimmed_texts_equal_open_clips_trimmed_and_padded(case: Case) -> None:
    features = case.backbone.encode_texts(case.short_texts)
    assert_close(features, case.want["texts_trimmed"])
    assert_close(features, case.want["texts_padded"][case.want["short"]])


def test_gradient_at_the_embeddings_equals_open_clips_and_reaches_nothing_else(case: Case) -> None:
    ids = case.want["gradient_ids"]
    tokens = Tokens(ids=ids, mask=ids != 0)
    words = case.backbone.embed(tokens).requires_grad_()
    features = case.backbone.encode_text(words, tokens)
    weights = torch.arange(1, features.numel() + 1).view(features.shape) / features.numel()
    (features * weights).sum().backward()
    assert words.grad is not None
    assert_close(words.grad, case.want["gradient"])
    assert all(parameter.grad is None for parameter in case.backbone.model.parameters())


def test_logit_scale_is_open_clips(case: Case) -> None:
    assert case.backbone.logit_scale == pytest.approx(float(case.want["logit_scale"]), rel=1e-6)


# A key's bias adds the same number to every score of a query, and softmax removes it.
WITHOUT_EFFECT = "attention.self.key.bias"


@pytest.mark.parametrize("name", ["class_token_mlp", "layer_scale"])
def test_a_change_of_any_one_tensor_shows(name: str, tmp_path: Path) -> None:
    """So a tensor that lands in the wrong place, or nowhere, cannot pass the tests above."""
    folder = FIXTURES / name
    want = load_file(folder / "expected.safetensors")
    state = load_file(folder / "open_clip_model.safetensors")
    ids = want["ids"][:4]
    tokens = Tokens(ids=ids, mask=ids != 0)
    changed = tmp_path / "changed.safetensors"
    silent = []
    for key, value in state.items():
        if key == "logit_scale" or key.endswith(WITHOUT_EFFECT):
            continue
        noise = 0.1 * torch.randn(value.shape, generator=torch.Generator().manual_seed(0))
        save_file({**state, key: value + noise}, changed)
        backbone = load_open_clip(folder, name=name, device=CPU, weights=changed)
        images = backbone.encode_images(want["pixels"]).globals - want["globals"]
        texts = backbone.encode_text(backbone.embed(tokens), tokens) - want["texts_padded"][:4]
        if max(images.abs().max(), texts.abs().max()) < 1e-4:
            silent.append(key)
    assert silent == []
