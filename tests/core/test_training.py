from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ogkd.backbones.base import ImageFeatures
from ogkd.core.batches import Run, batch_slices
from ogkd.core.checkpoint import Checkpoint, TrainingState
from ogkd.core.losses import cross_entropy, logits
from ogkd.core.optimisers import TrainConfig, learning_rate
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import converged, train_contexts
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
    ("images", "expected", "drop_last"),
    [
        *((5, [4], True), (7, [4], True), (8, [4, 4], True), (3, [3], True), (1, [1], True)),
        (7, [4, 3], False),
    ],
)
def test_the_last_incomplete_batch_is_dropped_as_released(images, expected, drop_last):
    config = TrainConfig(batch_size=4, drop_last=drop_last)
    assert [part.stop - part.start for part in batch_slices(images, config)] == expected


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


def test_a_loss_that_is_no_number_stops_and_names_the_term(learner, bert_backbone):
    def broken(T_hat, batch):
        good = objective(T_hat, batch)["ce"]
        bad = good * float("nan")
        return {"total": good + bad, "ce": good, "gad": bad}

    with pytest.raises(TrainingError, match=r"epoch 0, step 1 \(term: gad\)"):
        train_contexts(learner, [make_run(bert_backbone, 1)], broken, CONFIG)


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


def test_a_cut_checkpoint_is_noticed(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c.safetensors", "same")
    state = TrainingState(
        torch.ones(1, 2, 3), torch.zeros(1, 2, 3), 4, torch.ones(4, 1), torch.zeros(0)
    )
    checkpoint.save(state)
    assert checkpoint.load().epoch == 4
    checkpoint.path.write_bytes(checkpoint.path.read_bytes()[:40])
    with pytest.raises(ConfigError) as caught:
        checkpoint.load()
    assert caught.value.argument == "restart"


ADAM = TrainConfig(optimiser="adam", epochs=40, batch_size=6, lr=0.05, weight_decay=0.0)


def one_view(run):
    """The run with one view of each image."""
    globals_ = run.views.features.globals[:, :1]
    return Run(FixedViews(ImageFeatures(globals_)), run.labels, run.seed)


def test_full_batches_with_adam_are_adam_on_the_whole_loss(learner, bert_backbone):
    """Against torch's own optimiser on the average over all images, image by image."""
    run = one_view(make_run(bert_backbone, 1))
    trained = train_contexts(learner, [run], objective, ADAM.model_copy(update={"epochs": 5}))[0]
    context = learner.initial_context(torch.Generator()).requires_grad_()
    optimiser = torch.optim.Adam([context], lr=0.05, betas=(0.9, 0.99))
    for _ in range(5):
        T_hat = learner.text_features(context.unsqueeze(0))[0]
        pairs = zip(run.views.features.globals[:, 0], run.labels, strict=True)
        loss = sum(-(20.0 * T_hat @ v).log_softmax(0)[y] for v, y in pairs) / 6
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.testing.assert_close(trained, context.detach(), atol=1e-4, rtol=1e-3)


def test_a_run_ends_when_its_loss_has_settled():
    t = torch.arange(100.0)
    losses = torch.stack([1 + torch.exp(-t / 5), 1 + torch.exp(-t / 50), -t, t], dim=1)
    settled = TrainConfig(tolerance=0.05)
    # After t epochs the last 20 have given e^(-(t-20)/5) (1 - e^-4) of about 1 in the first run.
    ended = [
        int(next((n for n in range(100) if converged(losses[:n], settled)[s]), -1))
        for s in range(4)
    ]
    assert 30 <= ended[0] <= 40
    assert ended[1] == -1
    assert ended[2] == -1
    assert ended[3] == 21  # nothing is gained: at the first opportunity
    assert not converged(losses, TrainConfig()).any()


def test_a_run_that_has_ended_waits_unchanged_for_the_others(learner, bert_backbone):
    config = ADAM.model_copy(update={"epochs": 200, "tolerance": 0.1})
    runs = [one_view(make_run(bert_backbone, seed)) for seed in (1, 2, 3)]
    alone, ends = [], []
    for run in runs:
        seen = []
        alone.append(train_contexts(learner, [run], objective, config, log=seen.append)[0])
        ends.append(len(seen))
    assert 20 < min(ends) < max(ends) < 200  # or this test tests nothing
    seen = []
    together = train_contexts(learner, runs, objective, config, log=seen.append)
    assert abs(len(seen) - max(ends)) <= 1
    for context, expected in zip(together, alone, strict=True):
        torch.testing.assert_close(context, expected, atol=2e-2, rtol=0)


@pytest.mark.parametrize("batch_size", [4, 6])
@pytest.mark.parametrize("stop_at", [0, 7, 22])
def test_adam_is_resumed_with_the_same_bits(learner, bert_backbone, tmp_path, stop_at, batch_size):
    update = {"batch_size": batch_size, "tolerance": 0.3}
    config, run = ADAM.model_copy(update=update), one_view(make_run(bert_backbone, 1))
    checkpoint, ends = Checkpoint(tmp_path / "c.safetensors", "same"), []
    whole = train_contexts(learner, [run], objective, config, log=ends.append)

    def train(log):
        return train_contexts(learner, [run], objective, config, checkpoint=checkpoint, log=log)

    def interrupt(entry):
        if entry["epoch"] == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        train(interrupt)
    seen = []
    assert torch.equal(train(seen.append), whole)
    assert len(seen) + stop_at + 1 == len(ends) < 40
    seen.clear()
    assert torch.equal(train(seen.append), whole)  # it has ended: nothing is trained again
    assert seen == []
