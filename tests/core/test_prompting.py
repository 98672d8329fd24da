from __future__ import annotations

import pytest
import torch

from ogkd.backbones.base import TextDropout
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.errors import ConfigError

NAMES = ("cyst", "kidney stone", "a")


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def learner(backbone, **options):
    return PromptLearner(backbone, NAMES, ContextConfig(**options))


def test_the_first_context_is_the_init_text_and_gives_its_features(bert_backbone):
    prompts = learner(bert_backbone)
    context = prompts.initial_context(generator())
    features = prompts.text_features(context.unsqueeze(0))[0]
    expected = bert_backbone.encode_texts([f"a photo of a {name}." for name in NAMES])
    assert context.shape == (4, bert_backbone.text_width)
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def test_another_length_starts_from_small_random_numbers_of_the_seed(bert_backbone):
    prompts = learner(bert_backbone, n_ctx=16)
    first, again, other = (prompts.initial_context(generator(seed)) for seed in (1, 1, 2))
    assert first.shape == (16, bert_backbone.text_width)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.std().item() == pytest.approx(0.02, rel=0.2)


def test_dropout_of_a_run_is_its_own(bert_backbone):
    prompts = learner(bert_backbone)
    contexts = torch.stack([prompts.initial_context(generator())] * 2)
    both = prompts.text_features(contexts, dropout=TextDropout([5, 6]))
    alone = prompts.text_features(contexts[1:], dropout=TextDropout([6]))
    torch.testing.assert_close(both[1], alone[0], atol=1e-6, rtol=0)
    assert (both[0] - both[1]).abs().max() > 1e-3


def test_a_context_longer_than_the_text_tower_is_refused(bert_backbone):
    with pytest.raises(ConfigError, match=r"kidney stone.*accepts at most .*Lower n_ctx"):
        learner(bert_backbone, n_ctx=bert_backbone.context_length)


def test_underscores_of_folder_names_are_spaces(bert_backbone):
    config = ContextConfig()
    context = learner(bert_backbone).initial_context(generator()).unsqueeze(0)
    spaced, underscored = (
        PromptLearner(bert_backbone, [name], config).text_features(context)
        for name in ("kidney stone", "kidney_stone")
    )
    assert torch.equal(spaced, underscored)
