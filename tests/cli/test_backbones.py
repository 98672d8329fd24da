"""`ogkd backbones` as a user sees it: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import ogkd.backbones.hub
from ogkd.backbones.catalog import Record, catalog
from ogkd.cli.backbones import app
from ogkd.errors import BackboneError, ConfigError
from tiny_backbones import make_clip


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def keep(name: str) -> Path:
    """A tiny model in the cache under a known name."""
    folder = catalog()[name].folder
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


def test_list_shows_every_known_backbone_and_what_is_here() -> None:
    keep("plip")
    result = run("list")
    assert result.exit_code == 0
    lines = result.output.splitlines()
    for name in catalog():
        assert any(line.startswith(name) for line in lines)
    assert next(line for line in lines if line.startswith("plip")).split()[1] == "yes"
    assert next(line for line in lines if line.startswith("biomedclip")).split()[1] == "no"


def test_list_as_json_is_the_catalogue() -> None:
    rows = json.loads(run("list", "--json").output)
    assert [row["name"] for row in rows] == list(catalog())
    assert {row["name"]: row["present"] for row in rows}["builtin"] is True
    assert {row["name"]: row["present"] for row in rows}["plip"] is False


def test_info_of_an_absent_backbone_says_where_it_would_be() -> None:
    result = run("info", "biomedclip")
    assert result.exit_code == 0
    assert "MIT" in result.output
    assert str(catalog()["biomedclip"].folder) in result.output
    assert "783,705,670 bytes" in result.output


def test_info_of_a_fetched_backbone_shows_files_sizes_and_digest() -> None:
    folder = keep("plip")
    facts = json.loads(run("info", "plip", "--json").output)
    assert facts["present"] is True
    assert facts["path"] == str(folder)
    assert facts["revision"] == "a" * 40
    assert "f" * 64 in facts["digest"]
    assert facts["files"]["tokenizer.json"] == (folder / "tokenizer.json").stat().st_size
    assert "tokenizer.json" in run("info", "plip").output


def test_info_of_a_folder_shows_its_format(tmp_path: Path) -> None:
    make_clip(tmp_path)
    facts = json.loads(run("info", str(tmp_path), "--json").output)
    assert facts["format"] == "transformers"
    assert "model.safetensors" in facts["digest"]


def test_fetch_fetches_and_prints_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(record: Record, *, force: bool, revision: str | None) -> Path:
        asked.append((record.name, force, revision))
        return tmp_path

    monkeypatch.setattr(ogkd.backbones.hub, "fetch", fetch)
    result = run("fetch", "plip", "--force", "--revision", "v1")
    assert result.exit_code == 0
    assert str(tmp_path) in result.output
    assert asked == [("plip", True, "v1")]


@pytest.mark.parametrize("name", ["biomedclip", "plip"])
def test_fetch_fetches_published_example_images_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    monkeypatch.setattr(ogkd.backbones.hub, "fetch", lambda record, **_: tmp_path)
    monkeypatch.setattr(
        ogkd.backbones.hub, "fetch_examples", lambda record, names: fetched.extend(names)
    )
    assert run("fetch", name).exit_code == 0
    assert len(fetched) == (9 if name == "biomedclip" else 0)


def test_fetch_without_the_example_images_still_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise BackboneError("no such file")

    monkeypatch.setattr(ogkd.backbones.hub, "fetch", lambda record, **_: tmp_path)
    monkeypatch.setattr(ogkd.backbones.hub, "fetch_examples", refuse)
    assert run("fetch", "biomedclip").exit_code == 0


def test_fetch_of_a_folder_or_the_built_in_model_is_refused(tmp_path: Path) -> None:
    make_clip(tmp_path)
    assert isinstance(run("fetch", str(tmp_path)).exception, ConfigError)
    assert isinstance(run("fetch", "builtin").exception, BackboneError)


def test_verify_passes_a_good_folder(tmp_path: Path) -> None:
    make_clip(tmp_path)
    result = run("info", str(tmp_path), "--verify")
    assert result.exit_code == 0
    assert result.output.count("PASS") == 2
    assert "FAIL" not in result.output


def test_verify_ends_with_code_2_on_a_failure() -> None:
    keep("plip")  # its hashes are made up
    result = run("info", "plip", "--verify")
    assert result.exit_code == 2
    assert "FAIL" in result.output
    assert "run `ogkd backbones fetch plip`" in result.output


def test_an_unknown_name_is_an_error_for_the_user() -> None:
    for command in ("info", "fetch"):
        assert isinstance(run(command, "biomedclap").exception, BackboneError)
