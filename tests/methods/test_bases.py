"""The public bases: what an author of a method relies on, whichever he derives from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from test_all_methods import quick, support_of
from toys import text_of

import ogkd
from ogkd import methods
from ogkd.methods import METHODS, FeatureMethod, MethodConfig, PromptConfig, PromptMethod
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.ogkd import OGKD, OGKDConfig

SRC = Path(ogkd.__file__).parent


class Own(MethodConfig):
    k: int = 3


def test_settings_come_from_the_type_parameter_and_are_inherited():
    class Mine(FeatureMethod[Own]): ...

    class Yours(Mine): ...

    class Deeper(PromptMethod): ...

    assert FeatureMethod.Config is MethodConfig
    assert PromptMethod.Config is PromptConfig
    assert Mine.Config is Own
    assert Yours.Config is Own
    assert Deeper.Config is PromptConfig


@pytest.mark.parametrize("name", methods.__all__)
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(methods, name)
    if callable(thing):
        assert thing.__doc__


def imported(path):
    """The modules and names that a file imports, as dotted text."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_module_outside_methods_imports_a_single_method():
    public = {f"ogkd.methods.{name}" for name in methods.__all__}
    private = {
        (path.relative_to(SRC).as_posix(), name)
        for path in SRC.rglob("*.py")
        if "methods" not in path.relative_to(SRC).parts[:-1]
        for name in imported(path)
        if name.startswith("ogkd.methods.") and name not in public
    }
    assert not private


def fit(method, backbone, count=1):
    text = text_of(backbone)
    supports = [support_of(method, backbone, seed=seed) for seed in range(count)]
    needed = supports if method.needs_images else [None] * count
    return method.fit_many([method] * count, needed, text, seeds=list(range(1, count + 1)))


@pytest.mark.parametrize(
    "name", sorted(n for n, m in METHODS.items() if issubclass(m, PromptMethod))
)
@pytest.mark.parametrize("count", [1, 2])
def test_another_objective_trains_another_head(name, count, bert_backbone):
    class Plain(METHODS[name]):
        def objective(self, text):
            return CrossEntropy(text.backbone.logit_scale)

    settings = quick(name).config
    heads = fit(Plain(settings), bert_backbone, count)
    usual = fit(METHODS[name](settings), bert_backbone, count)
    same = isinstance(METHODS[name](settings).objective(text_of(bert_backbone)), CrossEntropy)
    same &= name != "evi-steer"  # which adds a term to it
    for ours, theirs in zip(heads, usual, strict=True):
        pairs = zip(ours.tensors().values(), theirs.tensors().values(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) == same


def test_runs_of_other_settings_each_have_the_overridden_objective(bert_backbone):
    class Plain(OGKD):
        def objective(self, text):
            return CrossEntropy(text.backbone.logit_scale)

    train = {"epochs": 2, "lr": 0.05}
    methods = [Plain(OGKDConfig(lambda_gad=weight, train=train)) for weight in (1.0, 5.0)]
    support, text = support_of(methods[0], bert_backbone), text_of(bert_backbone)
    first, second = Plain.fit_many(methods, [support] * 2, text, seeds=[1, 1])
    torch.testing.assert_close(first.T, second.T, atol=1e-6, rtol=0)  # gad has no part in it
    plain = OGKD.fit_many([OGKD(m.config) for m in methods], [support] * 2, text, seeds=[1, 1])
    assert not torch.allclose(plain[0].T, plain[1].T, atol=1e-4)
