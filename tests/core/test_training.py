from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ogkd.backbones.base import ImageFeatures
from ogkd.core.checkpoint import Checkpoint
from ogkd.core.losses import cross_entropy, logits
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import Run, TrainConfig, _batches, learning_rate, train_contexts
from ogkd.errors import ConfigError, Interrupted, TrainingError
from ogkd.features.views import FixedViews

NAMES = ("cyst", "stone", "tumor")


def make_run(backbone, seed, images=6):
    rng = torch.Generator().manual_seed(seed)
    features = torch.nn.functional.normalize(
        torch.randn(images, 2, backbone.embed_dim, generator=rng), dim=-1
    )
    return Run(FixedViews(ImageFeatures(features)), torch.arange(images) % 3, seed)


def objective(T_hat, batch):
    loss = cross_entropy(logits(batch.globals, T_hat, 20.0), batch.labels)
    return {"total": loss, "ce": loss}


@pytest.fixture
def learner(bert_backbone):
    return PromptLearner(bert_backbone, NAMES, ContextConfig())


CONFIG = TrainConfig(epochs=6, batch_size=2, lr=0.05, checkpoint_every=2)


def test_the_schedule_is_a_warmup_then_a_cosine_over_all_epochs():
    config = TrainConfig(epochs=100)
    assert learning_rate(0, config) == 1e-5
    assert learning_rate(1, config) == pytest.approx(2.5e-3)
    assert learning_rate(51, config) == pytest.approx(1.25e-3)
    assert learning_rate(99, config) == pytest.approx(2.5e-6, rel=0.02)  # fidelity.md, 24
    for epoch in range(1, 100):
        expected = 0.0025 * (1 + math.cos(math.pi * (epoch - 1) / 100)) / 2
        assert learning_rate(epoch, config) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("images", "expected"), [(5, [4]), (7, [4]), (8, [4, 4]), (3, [3]), (4, [4]), (1, [1])]
)
def test_the_last_incomplete_batch_is_dropped_as_released(images, expected):
    sizes = [part.stop - part.start for part in _batches(images, TrainConfig(batch_size=4))]
    assert sizes == expected


def test_all_images_are_used_without_drop_last():
    sizes = [p.stop - p.start for p in _batches(7, TrainConfig(batch_size=4, drop_last=False))]
    assert sizes == [4, 3]


def test_training_lowers_the_loss_and_leaves_the_backbone_alone(learner, bert_backbone):
    before = {k: v.clone() for k, v in bert_backbone.model.state_dict().items()}
    seen = []
    config = TrainConfig(epochs=30, batch_size=3, lr=0.2)
    train_contexts(learner, [make_run(bert_backbone, 1)], objective, config, log=seen.append)
    assert seen[-1]["terms"]["ce"][0] < seen[0]["terms"]["ce"][0] - 0.1
    after = bert_backbone.model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("text_dropout", [False, True])
def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    learner, bert_backbone, text_dropout
):
    def train(seed):
        run = make_run(bert_backbone, seed)
        return train_contexts(learner, [run], objective, CONFIG, text_dropout=text_dropout)

    assert torch.equal(train(1), train(1))
    assert not torch.equal(train(1), train(2))


@pytest.mark.parametrize("text_dropout", [False, True])
def test_seeds_trained_together_equal_each_alone(learner, bert_backbone, text_dropout):
    runs = [make_run(bert_backbone, seed) for seed in (1, 2, 3)]
    options = {"text_dropout": text_dropout}
    together = train_contexts(learner, runs, objective, CONFIG, **options)
    for run, context in zip(runs, together, strict=True):
        alone = train_contexts(learner, [run], objective, CONFIG, **options)[0]
        torch.testing.assert_close(context, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("stop_at", [0, 1, 3, 4])
def test_an_interrupted_training_ends_like_an_uninterrupted_one(
    learner, bert_backbone, tmp_path, stop_at
):
    run = make_run(bert_backbone, 1)
    whole = train_contexts(learner, [run], objective, CONFIG, text_dropout=True)
    checkpoint = Checkpoint(tmp_path / "c.safetensors", "same")

    def interrupt(entry):
        if entry["epoch"] == stop_at:
            raise KeyboardInterrupt

    def train(log=None):
        return train_contexts(
            learner, [run], objective, CONFIG, text_dropout=True, checkpoint=checkpoint, log=log
        )

    with pytest.raises(Interrupted, match=f"after epoch {stop_at + 1} of 6.*same fit again"):
        train(interrupt)
    assert torch.equal(train(), whole)


def test_a_finished_checkpoint_is_not_trained_again(learner, bert_backbone, tmp_path):
    checkpoint = Checkpoint(tmp_path / "c.safetensors", "x")
    run, seen = make_run(bert_backbone, 1), []
    first = train_contexts(learner, [run], objective, CONFIG, checkpoint=checkpoint)
    again = train_contexts(
        learner, [run], objective, CONFIG, checkpoint=checkpoint, log=seen.append
    )
    assert torch.equal(first, again)
    assert seen == []


def test_a_checkpoint_of_another_training_is_refused_and_untouched(
    learner, bert_backbone, tmp_path
):
    path = tmp_path / "c.safetensors"
    run = make_run(bert_backbone, 1)
    train_contexts(learner, [run], objective, CONFIG, checkpoint=Checkpoint(path, "one"))
    content = path.read_bytes()
    with pytest.raises(ConfigError, match="other settings"):
        train_contexts(learner, [run], objective, CONFIG, checkpoint=Checkpoint(path, "two"))
    assert path.read_bytes() == content


def test_a_damaged_checkpoint_is_named(learner, bert_backbone, tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    with pytest.raises(ConfigError, match="damaged"):
        train_contexts(
            learner,
            [make_run(bert_backbone, 1)],
            objective,
            CONFIG,
            checkpoint=Checkpoint(path, ""),
        )


def test_a_loss_that_is_no_number_stops_and_names_the_term(learner, bert_backbone):
    def broken(T_hat, batch):
        good = objective(T_hat, batch)["ce"]
        bad = good * float("nan")
        return {"total": good + bad, "ce": good, "gad": bad}

    with pytest.raises(TrainingError, match=r"epoch 0, step 1 \(term: gad\)"):
        train_contexts(learner, [make_run(bert_backbone, 1)], broken, CONFIG)


def test_runs_of_different_size_are_refused(learner, bert_backbone):
    runs = [make_run(bert_backbone, 1), make_run(bert_backbone, 2, images=5)]
    with pytest.raises(ConfigError, match=r"\[5, 6\]"):
        train_contexts(learner, runs, objective, CONFIG)


def test_one_step_is_plain_sgd_with_momentum_and_weight_decay(learner, bert_backbone):
    """Two full-batch epochs by hand: v = g + wd*c; c -= lr*v; v' = m*v + g' + wd*c."""
    run = make_run(bert_backbone, 1)
    config = TrainConfig(epochs=2, batch_size=6, lr=0.1, warmup_epochs=0)
    trained = train_contexts(learner, [run], objective, config)[0]
    context = learner.initial_context(torch.Generator())
    velocity = torch.zeros_like(context)
    for epoch in range(2):
        rng = np.random.default_rng([1, epoch, 0])
        order = rng.permutation(6)
        view = rng.integers(2, size=6)
        features = run.views.features.globals[order, view]
        c = context.clone().requires_grad_()
        T_hat = learner.text_features(c.unsqueeze(0))[0]
        z = 20.0 * features @ T_hat.T
        loss = torch.nn.functional.cross_entropy(z, run.labels[order])
        (grad,) = torch.autograd.grad(loss, c)
        grad = grad + 5e-4 * context
        velocity = grad if epoch == 0 else 0.9 * velocity + grad
        context = context - learning_rate(epoch, config) * velocity
    torch.testing.assert_close(trained, context, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(("limit", "expected"), [(10**12, 1), (0, 2)])
def test_a_small_step_uses_one_thread_and_gives_the_others_back(
    learner, bert_backbone, monkeypatch, limit, expected
):
    monkeypatch.setattr("ogkd.core.training._SMALL_STEP", limit)
    before, seen = torch.get_num_threads(), []

    def watching(T_hat, batch):
        seen.append(torch.get_num_threads())
        return objective(T_hat, batch)

    torch.set_num_threads(2)
    try:
        config = TrainConfig(epochs=1, batch_size=6)
        train_contexts(learner, [make_run(bert_backbone, 1)], watching, config)
        assert (seen, torch.get_num_threads()) == ([expected], 2)
    finally:
        torch.set_num_threads(before)
