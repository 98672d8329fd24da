"""Code of other packages that adds methods, backbones or dataset catalogues.

An installed package is found by its entry points (`ogkd.methods`, `ogkd.backbones`,
`ogkd.datasets`); a file or module without packaging is given to `load`. Plugins run with the
user's rights, so they are only ever loaded because the user installed or named them: a model
folder records the name of its plugin, and nothing imports code because of that name.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from importlib import metadata, util
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

from ogkd.errors import ConfigError, OgkdError
from ogkd.files import home

METHODS, BACKBONES, DATASETS = "ogkd.methods", "ogkd.backbones", "ogkd.datasets"
VARIABLE = "OGKD_PLUGINS"  # what `load` was given, for worker processes: like PATH, absolute
T = TypeVar("T")
_FILES = "ogkd_plugin_file_"  # prefix of modules loaded from a file, so that no name clashes


def load(plugin: str | os.PathLike[str]) -> str:
    """Import a Python file or an importable module and return its name as a plugin.

    What the code registers is then known in this process and in the worker processes that it
    starts. Loading the same plugin twice does nothing.
    """
    text = os.fspath(plugin)
    is_file = text.endswith(".py") or os.sep in text
    address = str(home(text).absolute()) if is_file else text
    if os.pathsep in address:
        raise _refusal(
            f"The path of a plugin cannot contain '{os.pathsep}', but is {address}. Move the file."
        )
    module = _import_file(Path(address)) if is_file else _import_module(address)
    if address not in (known := _loaded()):
        os.environ[VARIABLE] = os.pathsep.join([*known, address])
    return _plugin_name(module.__name__)


class Installed(NamedTuple):
    """What an installed package adds: a description for messages, its name, the loaded object."""

    what: str
    name: str
    value: Any


def installed(group: str) -> Iterator[Installed]:
    """What plugins add to a group.

    The plugins of the environment variable are loaded first: they register themselves. Of
    installed packages, every entry point in the group is loaded.
    """
    for address in _loaded():
        load(address)
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist is not None else entry.module
        what = f"The plugin '{package}' (entry point {entry.name} = {entry.value})"
        advice = f"Fix it, or remove it with: pip uninstall {package}."
        yield Installed(what, entry.name, _guarded(entry.load, what, advice))


def _loaded() -> list[str]:
    return [part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part]


def name_of(thing: type) -> str | None:
    """Return the plugin that a class comes from: a distribution, module or file stem.

    None for a class of ogkd itself, and for one defined in a script or notebook.
    """
    module = thing.__module__
    return None if module == "__main__" or module.startswith("ogkd.") else _plugin_name(module)


def _plugin_name(module: str) -> str:
    if module.startswith(_FILES):
        return module.removeprefix(_FILES)
    package = module.partition(".")[0]
    return metadata.packages_distributions().get(package, [package])[0]


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise _refusal(
            f"There is no plugin file {path}. Give a Python file, or the name of a module."
        )
    name = _FILES + re.sub(r"\W", "_", path.stem)
    if (known := sys.modules.get(name)) is not None:
        if known.__file__ == str(path):
            return known
        raise _refusal(
            f"The plugins {known.__file__} and {path} have the same name. Rename one of them."
        )
    spec = util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise _refusal(f"{path} is not a Python file: a plugin ends in .py.")
    module = sys.modules[name] = util.module_from_spec(spec)
    loader = spec.loader
    try:
        _guarded(lambda: loader.exec_module(module), f"The plugin {path}", "Fix the file.")
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import_module(name: str) -> ModuleType:
    if re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) is None:
        raise _refusal(f"The plugin '{name}' is neither a Python file nor the name of a module.")
    try:
        exists = util.find_spec(name) is not None
    except ModuleNotFoundError:
        exists = False
    except Exception:  # importing the parent package failed: said below
        exists = True
    if not exists:
        raise _refusal(
            f"There is no module '{name}' to load as a plugin. Install the package, or give the "
            "path of its file."
        )
    return _guarded(lambda: importlib.import_module(name), f"The plugin '{name}'", "Fix it.")


def _guarded(work: Callable[[], T], what: str, advice: str) -> T:
    """Run a plugin's code; whatever it raises becomes one message with the line at fault."""
    try:
        return work()
    except OgkdError as error:
        raise _refusal(f"{what} cannot be used: {error}") from error
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        at = error if isinstance(error, SyntaxError) else frame
        raise _refusal(
            f"{what} cannot be loaded: {type(error).__name__}: {error} ({at.filename}, line "
            f"{at.lineno}). {advice}"
        ) from error


def _refusal(message: str) -> ConfigError:
    return ConfigError(message, argument="plugin")
