"""The examples in docstrings run."""

from __future__ import annotations

import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

import ogkd.core
import ogkd.methods

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (ogkd.core, ogkd.methods)
    for module in iter_modules(package.__path__)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_run(name):
    assert doctest.testmod(import_module(name)).failed == 0
