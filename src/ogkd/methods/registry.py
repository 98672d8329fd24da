"""Methods by name, and their settings: registered classes, presets and overrides."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from pydantic import ValidationError

from ogkd.errors import ConfigError, did_you_mean
from ogkd.methods.base import Method

__all__ = ["METHODS", "make_method", "presets", "register"]

METHODS: dict[str, type[Method]] = {}


def register(method: type[Method]) -> type[Method]:
    """Make a method known by its name; a class decorator."""
    METHODS[method.name] = method
    return method


def make_method(
    name: str, *, preset: str | None = None, settings: Mapping[str, Any] | None = None
) -> Method:
    """A method with its settings: defaults, then the preset's, then `settings`."""
    if name not in METHODS:
        raise ConfigError(_unknown("method", name, METHODS))
    method = METHODS[name]
    merged: dict[str, Any] = {}
    if preset is not None:
        known = presets(name)
        if preset not in known:
            raise ConfigError(_unknown(f"preset of {name}", preset, known))
        merged = _nest(known[preset])
    _update(merged, _nest(settings or {}))
    try:
        return method(method.Config.model_validate(merged))
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        fields = method.Config.model_fields
        hint = did_you_mean(place, fields) if problem["type"] == "extra_forbidden" else ""
        raise ConfigError(
            f"Setting '{place}' of {name} cannot be {problem['input']!r}: {problem['msg']}.{hint} "
            f"Settings of {name}: {', '.join(fields)}."
        ) from None


def presets(name: str) -> dict[str, dict[str, Any]]:
    """The method's presets by name, such as "auto" or "paper/few-shot/btmri"."""
    place = files("ogkd.methods") / "presets" / f"{name}.toml"
    if not place.is_file():
        return {}
    found: dict[str, dict[str, Any]] = {}
    content = tomllib.loads(place.read_text(encoding="utf-8"))
    shared: dict[str, dict[str, Any]] = content.pop("shared", {})
    for key, table in content.items():
        # "paper/few-shot/btmri" starts from what the shared table says for "paper/few-shot".
        settings: dict[str, Any] = {}
        parts = key.split("/")
        for depth in range(1, len(parts) + 1):
            _update(settings, _nest(shared.get("/".join(parts[:depth]), {})))
        _update(settings, _nest(table))
        found[key] = settings
    return found


def _nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Turn {"train.epochs": 5} into {"train": {"epochs": 5}}."""
    nested: dict[str, Any] = {}
    for key, value in settings.items():
        inner = _nest(value) if isinstance(value, Mapping) else value
        for part in reversed(key.split(".")):
            inner = {part: inner}
        _update(nested, inner)
    return nested


def _update(target: dict[str, Any], source: Mapping[str, Any]) -> None:
    for key, value in source.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _update(target[key], value)
        else:
            target[key] = dict(value) if isinstance(value, Mapping) else value


def _unknown(kind: str, name: str, known: Mapping[str, object]) -> str:
    hint = did_you_mean(name, known, cutoff=0.6)
    return f"Unknown {kind} '{name}'.{hint} Known: {', '.join(sorted(known)) or 'none'}."
