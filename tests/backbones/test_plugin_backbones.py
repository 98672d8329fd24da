"""Backbones of other packages: by entry point or registered, found like our own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from ogkd.backbones import Backbone, catalog, load_backbone, register_backbone
from ogkd.backbones.hub import fetch
from ogkd.backbones.loading import load_builtin
from ogkd.errors import BackboneError, OgkdError

CATALOGUE = """
[their-clip]
format = "transformers"
hub_id = "them/their-clip"
licence = "MIT"
modality = "feet"
"""


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
    from ogkd.backbones.catalog import _installed_catalog, loaders

    entries: list[Entry] = []
    real = metadata.entry_points

    def entry_points(**options: Any) -> Any:
        return entries if options.get("group") == "ogkd.backbones" else real(**options)

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    _installed_catalog.cache_clear()
    yield entries
    _installed_catalog.cache_clear()
    loaders.clear()


def tiny(device: torch.device) -> Backbone:
    return load_builtin(device=device)


def test_a_function_of_another_package_loads_by_the_entry_points_name(
    installed: list[Entry],
) -> None:
    installed.append(Entry("their-tiny", tiny))
    assert catalog()["their-tiny"].format == "plugin"
    backbone = load_backbone("Their-Tiny", device="cpu")
    assert backbone.digest == load_backbone("builtin", device="cpu").digest
    with pytest.raises(BackboneError, match="nothing to fetch"):
        fetch(catalog()["their-tiny"])


def test_a_catalogue_of_another_package_adds_its_records(
    installed: list[Entry], tmp_path: Path
) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(CATALOGUE)
    installed.append(Entry("theirs", str(path)))
    assert catalog()["their-clip"].hub_id == "them/their-clip"
    assert "biomedclip" in catalog()


def test_importing_looks_for_no_entry_points() -> None:
    program = (
        "from importlib import metadata\n"
        "real = metadata.entry_points\n"
        "def watched(**options):\n"
        "    assert not str(options.get('group')).startswith('ogkd'), options\n"
        "    return real(**options)\n"
        "metadata.entry_points = watched\n"
        "import ogkd.backbones, ogkd.data.catalog\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (ImportError("no module named x"), "broken = their_package:thing.*no module named x"),
        (42, "it is int, not a path or a function"),
        ("/nowhere/theirs.toml", "cannot be used"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_named(
    installed: list[Entry], value: Any, words: str
) -> None:
    installed.append(Entry("broken", value))
    with pytest.raises(OgkdError, match=words):
        load_backbone("their-thing")
    load_backbone("builtin")  # one broken package does not take the others along


def test_a_plugin_does_not_replace_a_known_backbone(installed: list[Entry], tmp_path: Path) -> None:
    path = tmp_path / "theirs.toml"
    path.write_text(CATALOGUE.replace("their-clip]", "biomedclip]"))
    for value in (tiny, path):
        installed[:] = [Entry("biomedclip", value)]
        with pytest.raises(BackboneError, match="already a backbone called 'biomedclip'"):
            catalog()


def test_a_backbone_can_be_registered_in_a_running_program(installed: list[Entry]) -> None:
    register_backbone("mine", tiny)
    register_backbone("mine", tiny)  # as a notebook cell that is run again
    assert load_backbone("mine", device="cpu").embed_dim > 0
    with pytest.raises(BackboneError, match="already a backbone called 'mine'"):
        register_backbone("mine", lambda device: load_builtin(device=device))
    with pytest.raises(BackboneError) as caught:
        register_backbone("My Model", tiny)
    assert caught.value.argument == "name"


def test_what_is_not_a_backbone_is_refused(installed: list[Entry]) -> None:
    register_backbone("odd", lambda device: "a string")  # type: ignore[arg-type,return-value]
    with pytest.raises(BackboneError, match="returned a str"):
        load_backbone("odd")
