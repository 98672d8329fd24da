from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

import ogkd
from ogkd.errors import ConfigError, DataError
from ogkd.fitting.importing import import_context
from tiny_data import write_image

NAMES = ["bright spot", "dark_field"]


@pytest.fixture
def context(bert_backbone):
    return torch.randn(4, bert_backbone.text_width, generator=torch.Generator().manual_seed(3))


def saved(tmp_path: Path, content) -> Path:
    path = tmp_path / "model.pth.tar-100"
    torch.save(content, path)
    return path


def as_released(context: torch.Tensor) -> dict:
    """What the released trainer saves: a state dict, and its optimiser and scheduler as objects."""
    learned = torch.nn.Parameter(context.clone())
    optimiser = torch.optim.SGD([learned], lr=2.5e-3, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 100.0)
    learned.sum().backward()
    optimiser.step()
    scheduler.step()
    return {
        "state_dict": {
            "prompt_learner.ctx": context,
            "prompt_learner.token_prefix": torch.zeros(2, 1, 8),
            "image_encoder.weight": torch.zeros(3),
        },
        "epoch": 100,
        "optimizer": optimiser.state_dict(),
        "scheduler": {"successor": scheduler, "warmup_epoch": 1, "last_epoch": 100},
        "val_result": None,
    }


@pytest.mark.parametrize(
    "wrap",
    [
        as_released,
        lambda ctx: {"state_dict": {"prompt_learner.ctx": ctx, "other": torch.zeros(2)}},
        lambda ctx: {"prompt_learner.ctx": ctx},
        lambda ctx: {"ctx": torch.nn.Parameter(ctx)},
        lambda ctx: {"state_dict": {"prompt_learner.ctx": ctx.double()}},
    ],
)
def test_the_context_is_found_in_every_nesting(bert_backbone, context, tmp_path, wrap):
    model = import_context(saved(tmp_path, wrap(context)), NAMES, backbone=bert_backbone)
    assert torch.equal(model.head.extra["context"], context)
    assert model.class_names == ("bright spot", "dark field")


def test_the_features_are_those_of_the_context_before_each_name(bert_backbone, context, tmp_path):
    model = import_context(saved(tmp_path, {"ctx": context}), NAMES, backbone=bert_backbone)
    for name, row in zip(("bright spot", "dark field"), model.head.T, strict=True):
        pieces = [*[0] * 4, *bert_backbone.pieces(name), *bert_backbone.pieces(".")]
        tokens = bert_backbone.pack([pieces])
        embeddings = bert_backbone.embed(tokens).clone()
        embeddings[0, bert_backbone.leading_tokens :][:4] = context
        expected = bert_backbone.encode_text(embeddings, tokens)[0]
        torch.testing.assert_close(row, expected, atol=1e-5, rtol=0)


def test_an_imported_model_is_saved_loaded_and_predicts(bert_backbone, context, tmp_path):
    path = saved(tmp_path, as_released(context))
    model = import_context(str(path), NAMES, backbone=bert_backbone)
    model.save(tmp_path / "m")
    again = ogkd.load(tmp_path / "m", backbone=bert_backbone)
    image = write_image(tmp_path / "a.png")
    assert np.array_equal(again.predict_proba([image]), model.predict_proba([image]))
    assert len(again.card.imported_sha256) == 64
    assert again.card.config["context"]["n_ctx"] == 4


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


class Subtle(Evil):
    """A builtin, as builtins.dict is, which is let through."""

    def __reduce__(self):
        return eval, (f"__import__('os').mkdir({str(self.path)!r})",)


@pytest.mark.parametrize("kind", [Evil, Subtle])
@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_never_run(bert_backbone, context, tmp_path, kind, zipped):
    content = {"state_dict": {"prompt_learner.ctx": context}, "epoch": kind(tmp_path / "pwned")}
    if zipped:
        path = saved(tmp_path, content)
    else:
        path = tmp_path / "bare"
        path.write_bytes(pickle.dumps(content["epoch"], protocol=2))
    with pytest.raises(ConfigError, match=r"contains code \(\S+\), which is not loaded") as error:
        import_context(path, NAMES, backbone=bert_backbone)
    assert not (tmp_path / "pwned").exists()
    assert "weights_only" not in str(error.value)
    # The same file does run its code where it is loaded carelessly: the test can fail.
    pickle.loads(pickle.dumps(content["epoch"]))
    assert (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"hello",
        {"state_dict": {"weight": torch.zeros(2)}},
        {"state_dict": [1]},
        torch.zeros(4, 8),
        {"ctx": torch.zeros(4, 5)},
        {"ctx": torch.zeros(3, 4, 5)},
        {"ctx": torch.full((4, 5), float("nan"))},
        {"ctx": torch.ones(4, 5).to_sparse()},
        {"ctx": torch.ones(4, 5, device="meta")},
        {"ctx": torch.ones(4, 5, dtype=torch.long)},
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_checkpoint_without_a_fitting_context_is_refused(bert_backbone, tmp_path, content):
    path = saved(tmp_path, content)
    if isinstance(content, bytes):
        path.write_bytes(content)
    with pytest.raises(ConfigError):
        import_context(path, NAMES, backbone=bert_backbone)


@pytest.mark.parametrize("names", [[], ["one"], ["a", "A"], ["a_b", "a b"], ["a", " "]])
def test_class_names_must_be_two_and_different(bert_backbone, context, tmp_path, names):
    with pytest.raises((ConfigError, DataError)):
        import_context(saved(tmp_path, {"ctx": context}), names, backbone=bert_backbone)
