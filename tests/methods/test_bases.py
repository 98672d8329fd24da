"""The public bases: what an author of a method relies on."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ogkd
from ogkd import methods
from ogkd.methods import DEFAULT, METHODS, FeatureMethod, MethodConfig, PromptConfig, PromptMethod

SRC = Path(ogkd.__file__).parent


class Own(MethodConfig):
    k: int = 3


class More(Own):
    m: int = 4


def test_settings_come_from_the_type_parameter_and_are_inherited():
    class Mine(FeatureMethod[Own]): ...

    class Yours(Mine): ...

    class Deeper(PromptMethod): ...

    assert FeatureMethod.Config is MethodConfig
    assert PromptMethod.Config is PromptConfig
    assert Mine.Config is Own
    assert Yours.Config is Own
    assert Deeper.Config is PromptConfig


def test_settings_may_still_be_named_by_hand():
    class Mine(FeatureMethod[Own]):
        Config = More

    assert Mine.Config is More


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


def test_a_fit_has_the_default_method():
    from ogkd.fitting.request import FitRequest

    assert FitRequest("images").method == DEFAULT
    assert DEFAULT in METHODS
