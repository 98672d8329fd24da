"""Backbones of other packages: by entry point or registered, found like our own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import torch

from ogkd.backbones import Backbone, catalog, load_backbone, register_backbone
from ogkd.backbones.hub import fetch
from ogkd.backbones.loading import load_builtin
from ogkd.errors import BackboneError, OgkdError


class Entry:
    """An installed package's entry point."""

    def __init__(self, name: str, value: Any) -> None:
        self.name, self.value, self._object = name, "their_package:thing", value
        self.dist, self.module = None, "their_package"

    def load(self) -> Any:
        if isinstance(self._object, Exception):
            raise self._object
        return self._object


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Entry]]:
    from ogkd.backbones.catalog import _register_installed, loaders

    entries: list[Entry] = []
    real = metadata.entry_points

    def entry_points(**options: Any) -> Any:
        return entries if options.get("group") == "ogkd.backbones" else real(**options)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    _register_installed.cache_clear()
    yield entries
    _register_installed.cache_clear()
    loaders.clear()


def tiny(device: torch.device) -> Backbone:
    return load_builtin(device=device)


def test_entry_point_function_loads_by_its_name(installed: list[Entry]) -> None:
    installed.append(Entry("their-tiny", tiny))
    assert catalog()["their-tiny"].format == "plugin"
    backbone = load_backbone("Their-Tiny", device="cpu")
    assert backbone.digest == load_backbone("builtin", device="cpu").digest
    with pytest.raises(BackboneError):
        fetch(catalog()["their-tiny"])


@pytest.mark.parametrize("value", [ImportError("no module named x"), 42])
def test_broken_plugin_is_named_and_others_still_load(installed: list[Entry], value: Any) -> None:
    installed.append(Entry("broken", value))
    with pytest.raises(OgkdError, match="their_package"):
        load_backbone("their-thing")
    load_backbone("builtin")


def test_backbone_is_registered_in_a_running_program(installed: list[Entry]) -> None:
    register_backbone("mine", tiny)
    register_backbone("mine", tiny)  # as a notebook cell that is run again
    assert load_backbone("mine", device="cpu").embed_dim > 0
    for name in ("mine", "My Model"):
        with pytest.raises(BackboneError) as caught:
            register_backbone(name, lambda device: load_builtin(device=device))
        assert caught.value.argument == "name"
    register_backbone("odd", lambda device: "a string")  # type: ignore[arg-type,return-value]
    with pytest.raises(BackboneError):
        load_backbone("odd")
