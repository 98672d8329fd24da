"""Code of other packages that adds methods or backbones.

An installed package is found by its entry points (`ogkd.methods`, `ogkd.backbones`); a file or
module without packaging is given to `load`. Plugins run with the user's rights, so they are only
ever loaded because the user installed or named them: a model folder records the name of its
plugin, and nothing imports code because of that name.
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
from typing import Any, TypeVar

from ogkd.errors import ConfigError
from ogkd.files import home

METHODS, BACKBONES = "ogkd.methods", "ogkd.backbones"
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
    importer = _import_file if is_file else importlib.import_module
    module = _guarded(lambda: importer(address), f"The plugin '{address}'")
    if address not in (known := _loaded()):
        os.environ[VARIABLE] = os.pathsep.join([*known, address])
    return _plugin_name(module.__name__)


def installed(group: str) -> Iterator[tuple[str, str, Any]]:
    """What plugins add to a group: a description for messages, a name, the loaded object.

    The plugins of the environment variable are loaded first: they register themselves. Of
    installed packages, every entry point in the group is loaded.
    """
    for address in _loaded():
        load(address)
    for entry in sorted(metadata.entry_points(group=group), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist is not None else entry.module
        what = f"The plugin '{package}' (entry point {entry.name} = {entry.value})"
        yield what, entry.name, _guarded(entry.load, what)


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


def _import_file(address: str) -> ModuleType:
    name = _FILES + re.sub(r"\W", "_", Path(address).stem)
    if (known := sys.modules.get(name)) is not None:
        if known.__file__ == address:
            return known
        raise ImportError(f"the plugin {known.__file__} has the same name")
    if os.pathsep in address or (spec := util.spec_from_file_location(name, address)) is None:
        raise ImportError("it is not the path of a Python file")
    module = sys.modules[name] = util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)  # type: ignore[union-attr]
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _guarded(work: Callable[[], T], what: str) -> T:
    """Run a plugin's code; whatever it raises becomes one message with the line at fault."""
    try:
        return work()
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        at = error if isinstance(error, SyntaxError) else frame
        raise ConfigError(
            f"{what} cannot be loaded: {type(error).__name__}: {error} ({at.filename}, line "
            f"{at.lineno}).",
            argument="plugin",
        ) from error
