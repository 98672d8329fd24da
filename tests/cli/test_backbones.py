"""`ogkd backbones` as a user sees it: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ogkd.backbones.hub
from ogkd.backbones.catalog import catalog
from ogkd.cli.backbones import app
from ogkd.errors import BackboneError, ConfigError
from tiny_backbones import make_clip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def plip() -> Path:
    """A tiny model in the cache under a known name; its hashes are made up."""
    folder = catalog()["plip"].folder
    make_clip(folder)
    files = {
        path.name: {"size": path.stat().st_size, "sha256": "f" * 64} for path in folder.iterdir()
    }
    source = {
        "format": "transformers",
        "revision": "a" * 40,
        "original": {"file": "pytorch_model.bin", "sha256": "0" * 64},
        "weights": {"file": "model.safetensors", **files["model.safetensors"]},
        "files": files,
    }
    (folder / "source.json").write_text(json.dumps(source))
    return folder


def test_list_shows_every_known_backbone_and_what_is_here(plip: Path) -> None:
    lines = [line.split() for line in run("list").output.splitlines()]
    here = {words[0]: words[1] for words in lines if words[0] in catalog()}
    assert list(here) == list(catalog())
    assert (here["builtin"], here["plip"], here["biomedclip"]) == ("yes", "yes", "no")
    assert (here["conch"], here["lovt"]) == ("gated", "n/a")


def test_info_of_a_fetched_backbone_shows_files_sizes_and_digest(plip: Path) -> None:
    facts = json.loads(run("info", "plip", "--json").output)
    assert (facts["present"], facts["path"], facts["revision"]) == (True, str(plip), "a" * 40)
    assert facts["format"] == "transformers"
    assert facts["sha256"] == "f" * 64
    assert facts["files"]["tokenizer.json"] == (plip / "tokenizer.json").stat().st_size


def test_fetch_fetches_and_prints_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ogkd.backbones.hub, "fetch", lambda record: tmp_path / record.name)
    assert str(tmp_path / "plip") in run("fetch", "plip").output


def test_fetch_of_a_folder_or_the_built_in_model_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    assert isinstance(run("fetch", str(tmp_path)).exception, ConfigError)
    assert isinstance(run("fetch", "builtin").exception, BackboneError)


def test_verify_ends_with_code_2_on_a_failure(plip: Path, tmp_path: Path) -> None:
    make_clip(tmp_path)
    assert run("info", str(tmp_path), "--verify").exit_code == 0
    bad = run("info", "plip", "--verify")
    assert bad.exit_code == 2
    assert "FAIL" in bad.output
    assert "`ogkd backbones fetch plip`" in bad.output


@pytest.mark.parametrize("command", ["info", "fetch"])
def test_an_unknown_name_is_an_error_for_the_user(command: str) -> None:
    error = run(command, "biomedclap").exception
    assert isinstance(error, BackboneError)
    assert error.argument == "backbone"
