"""Methods by name, and their settings: registered classes, presets and overrides."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import ModuleType
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ogkd import plugins
from ogkd.errors import ConfigError, did_you_mean
from ogkd.methods.base import Method

DEFAULT = "fused"  # the method of a fit that names none: the best on few images, in a second

MethodT = TypeVar("MethodT", bound=type[Method])


class _Methods(Mapping[str, type[Method]]):
    """Registered methods by name; plugins are looked for when ogkd's own are not enough."""

    def __init__(self) -> None:
        self.known: dict[str, type[Method]] = {}

    def __getitem__(self, name: str) -> type[Method]:
        if name not in self.known:
            _load_plugins()
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        _load_plugins()
        return iter(self.known)

    def __len__(self) -> int:
        _load_plugins()
        return len(self.known)


@cache
def _load_plugins() -> None:
    for what, _, plugin in plugins.installed(plugins.METHODS):
        if isinstance(plugin, ModuleType):
            continue  # it registered its methods when it was imported
        try:
            register(plugin)
        except ConfigError as error:
            raise ConfigError(f"{what} cannot be used: {error}") from error


METHODS = _Methods()
MOST = 1_000_000  # of a setting that is a whole number: it counts epochs, views or texts


def register(method: MethodT) -> MethodT:
    """Make a method known by its name; a class decorator."""
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise ConfigError(f"{method!r} is not a subclass of ogkd.methods.Method.")
    where = _address(method)
    undefined = {name for name in ("name", "summary") if not getattr(method, name, "")}
    undefined |= method.__abstractmethods__
    if undefined:
        raise ConfigError(f"{where} has no {', '.join(sorted(undefined))}.")
    if re.fullmatch(r"[a-z0-9][a-z0-9+._-]*", method.name) is None:
        raise ConfigError(
            f"{where} is named '{method.name}': a name has lower-case letters, digits and + . _ -."
        )
    settings = method.Config.model_fields.items()
    if required := [name for name, field in settings if field.is_required()]:
        raise ConfigError(f"Settings of {where} need a default: {', '.join(required)}.")
    known = METHODS.known.get(method.name)
    # A notebook cell that is run again defines the same class again.
    if known is not None and _address(known) != where:
        raise ConfigError(f"Two methods are named '{method.name}': {_address(known)} and {where}.")
    METHODS.known[method.name] = method
    return method


def make_method(
    name: str, *, preset: str | None = None, settings: Mapping[str, Any] | None = None
) -> Method:
    """Create a method with its settings: the defaults, then the preset's, then `settings`."""
    if name not in METHODS:
        raise ConfigError(_unknown("method", name, METHODS), argument="method")
    method = METHODS[name]
    merged: dict[str, Any] = {}
    if preset is not None:
        known = presets(name)
        if preset not in known:
            raise ConfigError(_unknown(f"preset of {name}", preset, known), argument="preset")
        merged = known[preset]
    _merge(merged, settings or {})
    try:
        config = method.Config.model_validate(merged)
    except ValidationError as error:
        problem = error.errors()[0]
        setting = ".".join(str(part) for part in problem["loc"])
        names = [key for key, _ in flatten(method.Config().model_dump())]
        what = f"Setting '{setting}' of {name} cannot be {problem['input']!r}: {problem['msg']}."
        if problem["type"] == "extra_forbidden":
            what = f"{name} has no setting '{setting}'.{did_you_mean(setting, names)}"
        raise ConfigError(f"{what} Settings of {name}: {', '.join(names)}.") from None
    for setting, value in flatten(config.model_dump()):
        if isinstance(value, int) and value > MOST:
            raise ConfigError(f"Setting '{setting}' of {name} is {value}, more than {MOST:,}.")
    return method(config)


def flatten(settings: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings with one name each, such as train.epochs.

    >>> dict(flatten({"alpha": 1, "train": {"epochs": 2}}))
    {'alpha': 1, 'train.epochs': 2}
    """
    for key, value in settings.items():
        name = f"{start}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{name}.")
        else:
            yield name, value


def setting_help(config: type[BaseModel], setting: str) -> str:
    """What a setting such as train.epochs does: its description, or the comment behind its field.

    A class that only changes the default has neither: that of its base counts.
    """
    name, _, inner = setting.partition(".")
    field = config.model_fields[name]
    if inner and isinstance(kind := field.annotation, type) and issubclass(kind, BaseModel):
        return setting_help(kind, inner)
    if field.description:
        return field.description
    comment = re.compile(rf"^ +{name}: .*  # (.+)$", re.MULTILINE)
    for base in config.__mro__:
        if name in inspect.get_annotations(base):
            with contextlib.suppress(OSError, TypeError):  # no source, as in a frozen program
                if match := comment.search(inspect.getsource(base)):
                    return match[1]
    return ""


@cache
def not_built() -> Mapping[str, str]:
    """Methods that the literature names and that are not here, each with the reason."""
    text = files("ogkd.methods").joinpath("not_built.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def presets(name: str) -> dict[str, dict[str, Any]]:
    """Return a method's presets by name, such as "auto" or "paper/few-shot/btmri".

    They are in `presets/NAME.toml` of the package that the method is in.
    """
    module = sys.modules.get(METHODS[name].__module__) if name in METHODS else None
    package = getattr(module, "__package__", None)
    if not package or not (file := files(package) / "presets" / f"{name}.toml").is_file():
        return {}
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    shared: dict[str, dict[str, Any]] = content.pop("shared", {})
    merged: dict[str, dict[str, Any]] = {key: {} for key in content}
    for key, settings in merged.items():
        # "paper/few-shot/btmri" starts from the shared table of "paper/few-shot".
        parts = key.split("/")
        for depth in range(1, len(parts) + 1):
            _merge(settings, shared.get("/".join(parts[:depth]), {}))
        _merge(settings, content[key])
    return merged


def _address(method: type) -> str:
    return f"{method.__module__}.{method.__qualname__}"


def _merge(target: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Add settings to nested ones: "train.epochs" is the setting "epochs" in "train"."""
    for key, value in settings.items():
        if "." in key:
            key, rest = key.split(".", 1)
            value = {rest: value}
        if isinstance(value, Mapping):
            if not isinstance(target.get(key), dict):
                target[key] = {}
            _merge(target[key], value)
        else:
            target[key] = value


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    hint = did_you_mean(name, known, cutoff=0.6)
    return f"Unknown {kind} '{name}'.{hint} Known: {', '.join(sorted(known)) or 'none'}."
