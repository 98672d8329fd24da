"""Plugins: what the user named is loaded, everything wrong with it is one message."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch

from ogkd import plugins
from ogkd.errors import ConfigError
from ogkd.methods import METHODS, FeatureMethod, LinearHead, Method, make_method, registry
from ogkd.model.card import ModelCard, method_of

METHOD = """
import torch
from ogkd.methods import FeatureMethod, LinearHead, register

@register
class Means(FeatureMethod):
    "Nearest class mean."
    name, summary = "means", "class means"

    def fit_rows(self, rows, text, *, seed):
        W = rows.one_hot.mT @ rows.features
        return LinearHead(W, torch.zeros(len(W)))
"""


@pytest.fixture(autouse=True)
def _clean(monkeypatch):
    """No plugin of a test is left for the next one."""
    monkeypatch.setenv(plugins.VARIABLE, "")  # so that it is restored whatever a test does
    monkeypatch.delenv(plugins.VARIABLE)
    monkeypatch.setattr(METHODS, "known", dict(METHODS.known))
    registry._load_plugins.cache_clear()
    before = set(sys.modules)
    yield
    registry._load_plugins.cache_clear()
    for name in set(sys.modules) - before:
        if name.startswith((plugins._FILES, "plugged")):
            del sys.modules[name]


def write(path, text):
    path.write_text(text)
    return path


@pytest.fixture
def install(monkeypatch):
    """Entry points of a package that is not really installed."""

    def entry(thing):
        def load():
            if isinstance(thing, BaseException):
                raise thing
            return thing

        facts = {"name": "thing", "value": "some.module:Thing", "module": "some.module"}
        return SimpleNamespace(**facts, dist=SimpleNamespace(name="some-package"), load=load)

    def install(group, *things):
        found = {group: [entry(thing) for thing in things]}
        monkeypatch.setattr(metadata, "entry_points", lambda *, group: found.get(group, []))

    return install


def test_a_file_adds_a_method_for_this_process_and_its_workers(tmp_path, monkeypatch):
    file = write(tmp_path / "mine.py", METHOD)
    monkeypatch.chdir(tmp_path)
    assert plugins.load("mine.py") == "mine"
    assert plugins.load(file) == "mine"  # again: nothing happens
    assert os.environ[plugins.VARIABLE] == str(file)
    assert plugins.name_of(METHODS["means"]) == "mine"
    (tmp_path / "plugged").mkdir()
    write(tmp_path / "plugged" / "__init__.py", "from ogkd.methods import METHODS\nlist(METHODS)")
    write(tmp_path / "plugged" / "methods.py", METHOD.replace('"means"', '"others"'))
    monkeypatch.syspath_prepend(tmp_path)
    assert plugins.load("plugged.methods") == "plugged"  # a module, by its name
    assert plugins.name_of(METHODS["others"]) == "plugged"
    monkeypatch.setenv(plugins.VARIABLE, str(file))
    assert make_method("means").name == "means"
    script = "import ogkd; print(ogkd.methods.make_method('means').summary)"
    process = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd="/"
    )
    assert process.stdout == "class means\n", process.stderr


FAULTS = {
    "import no_such_module": "No module named",
    "x = 1\nx.y": "line 2",
    "def f(:": "SyntaxError",
    "raise SystemExit('bye')": "SystemExit: bye",
    METHOD.replace('"means"', '"coop"'): "Two methods are named 'coop'",
    METHOD.replace("name, summary =", "_, summary ="): "Means has no name",
    METHOD.replace('"class means"', '""'): "Means has no summary",
    METHOD.replace('"means"', '"../means"'): r"is named '\.\./means'",
    METHOD.replace("def fit_rows", "def fit_row"): "Means has no fit_rows",
    "from ogkd.methods import register\nregister(3)": "3 is not a subclass of",
    "from ogkd.methods import MethodConfig\nclass Wish(MethodConfig):\n    k: int\n"
    + METHOD.replace("(FeatureMethod)", "(FeatureMethod[Wish])"): "Means need a default: k",
}


@pytest.mark.parametrize("code", FAULTS)
def test_a_broken_file_is_one_message_and_can_be_loaded_once_fixed(code, tmp_path):
    file = write(tmp_path / "bad.py", code)
    with pytest.raises(ConfigError, match=FAULTS[code]) as caught:
        plugins.load(file)
    assert str(file) in str(caught.value)
    assert caught.value.argument == "plugin"
    assert plugins.VARIABLE not in os.environ
    write(file, METHOD)
    assert plugins.load(file) == "bad"


@pytest.mark.parametrize(
    "plugin",
    [
        *("missing.py", "no_such_module_anywhere", "no_such_package.inside", "a b", "folder/", ""),
        *(f"a{os.pathsep}b.py", "b/mine.py"),
    ],
)
def test_what_cannot_be_a_plugin_is_refused(plugin, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("folder", "a", "b"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "mine.py", "")
    plugins.load("a/mine.py")  # the other one of its name cannot be loaded
    with pytest.raises(ConfigError) as caught:
        plugins.load(plugin)
    assert caught.value.argument == "plugin"


def means(name="means"):
    class Means(FeatureMethod):
        summary = "class means"

        def fit_rows(self, rows, text, *, seed):
            return LinearHead(torch.zeros(2, 2), torch.zeros(2))

    Means.name = name
    return Means


def test_installed_methods_are_found_when_they_are_needed(install):
    install(plugins.METHODS, means(), sys)  # a module registers its methods itself
    assert "coop" in METHODS
    assert "means" not in METHODS.known  # ogkd's own need no plugin
    assert "means" in METHODS
    assert "means" in list(METHODS)


@pytest.mark.parametrize(
    ("group", "thing", "message"),
    [
        (plugins.METHODS, ImportError("no torch"), "ImportError: no torch"),
        (plugins.METHODS, means("coop"), "Two methods are named 'coop'"),
    ],
)
def test_a_broken_package_is_one_message_and_ogkds_own_still_work(install, group, thing, message):
    install(group, thing)
    for _ in range(2):  # the second time too
        with pytest.raises(ConfigError, match=rf"'some-package'.*{message}"):
            make_method("means")
    assert make_method("gda").name == "gda"


def test_ogkds_own_methods_are_of_no_plugin():
    builtin = [method for method in METHODS.values() if method.__module__.startswith("ogkd.")]
    assert len(builtin) > 15
    assert {plugins.name_of(method) for method in builtin} == {None}
    assert plugins.name_of(type("Cell", (Method,), {"__module__": "__main__"})) is None
    assert plugins.name_of(torch.nn.Module) == "torch"  # a distribution


def card(**fields):
    empty = {"prompts_sha256": "", "data_sha256": "", "support_counts": (), "versions": {}}
    backbone = {"name": "b", "digest": "d", "embed_dim": 4, "preprocessing": {}}
    asks = {"kind": "classes", "names": ("a", "b"), "normal": ()}
    facts = {"config": {}, "asks": asks, "logit_scale": 1.0, "seed": 1}
    return ModelCard.model_validate(facts | empty | {"backbone": backbone} | fields)


@pytest.mark.parametrize("name", ["mine", "os.path", "../mine.py", "/tmp/mine.py"])
def test_a_model_names_its_plugin_and_nothing_is_imported(name, tmp_path, monkeypatch):
    write(tmp_path / "mine.py", "raise SystemExit('was imported')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=f"'means' from the plugin '{name}'") as caught:
        method_of(card(method="means", plugin=name))
    assert caught.value.argument == "plugin"
    assert "mine" not in sys.modules
    with pytest.raises(ConfigError, match="code outside ogkd"):
        method_of(card(method="means"))


def test_the_command_line_takes_plugins_anywhere(tmp_path):
    from ogkd.cli import _own_options_first

    words = ["fit", "--plugin", "a", "d", "--plugin=b", "--quiet", "--", "--plugin", "c"]
    assert _own_options_first(words) == [
        *("--plugin", "a", "--plugin=b", "--quiet", "fit", "d", "--", "--plugin", "c")
    ]
    assert _own_options_first(["fit", "--plugin"]) == ["--plugin", "fit"]
