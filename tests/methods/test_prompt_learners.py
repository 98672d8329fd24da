"""What holds for every method that learns a context."""

from __future__ import annotations

import pytest
import torch
from toys import LEARNERS, fit, quick, support_for, text_of, two_views, unit

from ogkd.errors import Interrupted
from ogkd.methods import TrainingFolder, make_method, presets


@pytest.mark.parametrize("name", LEARNERS)
def test_an_interrupted_training_ends_with_the_same_bits(name, bert_backbone, tmp_path):
    support = support_for(name, bert_backbone)
    (whole,) = fit(quick(name), bert_backbone, support)
    seen = []

    def interrupt(entry):
        seen.append(entry)
        if entry["epoch"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        fit(quick(name), bert_backbone, support, folder=TrainingFolder(tmp_path, "x", interrupt))
    (resumed,) = fit(
        quick(name), bert_backbone, support, folder=TrainingFolder(tmp_path, "x", seen.append)
    )
    # An epoch whose logging was interrupted is logged again; the file keeps one line of it.
    assert list(dict.fromkeys(entry["epoch"] for entry in seen)) == [0, 1, 2]
    for key, tensor in whole.tensors().items():
        assert torch.equal(tensor, resumed.tensors()[key]), key


@pytest.mark.parametrize(
    ("name", "terms"),
    [
        ("coop", {"total", "ce"}),
        ("cocoop", {"total", "ce"}),
        ("kgcoop", {"total", "ce", "knowledge"}),
        ("prograd", {"total", "ce", "kl"}),
        ("biomedcoop", {"total", "ce", "sccm", "kdsp"}),
        ("ogkd", {"total", "ce", "sccm", "gad", "lgd"}),
    ],
)
def test_the_log_names_the_terms_of_every_epoch(name, terms, bert_backbone, tmp_path):
    seen = []
    folder = TrainingFolder(tmp_path, "x", seen.append)
    supports = [two_views(bert_backbone, seed) for seed in (0, 1)]
    fit(quick(name), bert_backbone, *supports, folder=folder)
    assert len(seen) == 3
    assert set(seen[0]["terms"]) == terms
    assert all(len(values) == 2 for values in seen[0]["terms"].values())  # one per seed


@pytest.mark.parametrize("name", LEARNERS)
def test_only_biomedcoop_and_ogkd_leave_the_text_towers_dropout_on(
    name, bert_backbone, monkeypatch
):
    seen, encode = [], bert_backbone.encode_text

    def watch(embeddings, tokens, *, dropout=None, **options):
        if embeddings.requires_grad or options:
            seen.append(dropout is not None)
        return encode(embeddings, tokens, dropout=dropout, **options)

    monkeypatch.setattr(bert_backbone, "encode_text", watch)
    fit(quick(name), bert_backbone, support_for(name, bert_backbone))
    *training, _ = seen  # the last pass may be that of the learned texts
    assert set(training) == {name in ("biomedcoop", "ogkd")}


@pytest.mark.parametrize(
    ("name", "batch_size", "lr", "epochs"),
    [
        ("coop", 32, 0.002, 100),
        ("cocoop", 1, 0.001, 10),
        ("kgcoop", 128, 0.002, 100),
        ("prograd", 128, 0.002, 100),
        ("biomedcoop", 4, 0.0025, 100),
        ("ogkd", 4, 0.0025, 100),
    ],
)
def test_one_changed_training_setting_leaves_the_methods_others(name, batch_size, lr, epochs):
    train = make_method(name, settings={"train.momentum": 0.5}).config.train
    assert (train.batch_size, train.lr, train.epochs) == (batch_size, lr, epochs)
    assert train.momentum == 0.5
    paper = make_method(name, preset="paper/few-shot/retina").config
    assert (paper.train.batch_size, paper.train.lr, paper.train.epochs) == (batch_size, lr, epochs)
    assert paper.views == "online"
    novel = make_method(name, preset="paper/base-to-novel/retina").config.train
    assert novel.epochs == (10 if name == "cocoop" else 50)
    assert novel.lr == (0.0015 if name == "prograd" else lr)


@pytest.mark.parametrize("name", [*LEARNERS, "zero-shot-selective"])
def test_the_papers_datasets_are_presets(name):
    known = [preset for preset in presets(name) if preset.startswith("paper/")]
    expected = [preset for preset in presets("ogkd") if preset.startswith("paper/")]
    assert sorted(known) == sorted(expected)
    assert len(known) == 21


@pytest.mark.parametrize(
    ("name", "preset", "setting", "value"),
    [
        ("kgcoop", "few-shot/busi", "weight", 10.0),
        ("kgcoop", "base-to-novel/retina", "weight", 8.0),
        ("prograd", "few-shot/busi", "temperature", 0.25),
        ("prograd", "base-to-novel/dermamnist", "temperature", 1.0),
        ("biomedcoop", "few-shot/dermamnist", "lambda_kdsp", 20.0),
        ("biomedcoop", "base-to-novel/kneexray", "lambda_kdsp", 3.0),
        ("ogkd", "few-shot/dermamnist", "lambda_gad", 24.0),
        ("ogkd", "few-shot/dermamnist", "gamma", 0.6),
        ("ogkd", "base-to-novel/kvasir", "lambda_lgd", 22.0),
        ("ogkd", "base-to-novel/kvasir", "alpha", 1.0),
    ],
)
def test_the_released_settings_are_presets(name, preset, setting, value):
    assert getattr(make_method(name, preset=f"paper/{preset}").config, setting) == value


@pytest.mark.parametrize("name", LEARNERS)
def test_what_was_learned_serves_other_classes(name, bert_backbone):
    method, v = quick(name), unit(5, bert_backbone.embed_dim, seed=99)
    (head,) = fit(method, bert_backbone, support_for(name, bert_backbone))
    other = method.head_for(head, text_of(bert_backbone, ("normal", "cyst")))
    assert other.shape == (2, bert_backbone.embed_dim)
    torch.testing.assert_close(other.logits(v)[:, 1], head.logits(v)[:, 0], atol=1e-4, rtol=1e-4)
