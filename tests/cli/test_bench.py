"""`ogkd bench` from grid to table, as a user types it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from ogkd.cli import app
from ogkd.errors import ConfigError

GRID = """
name = "small"
data = "phantoms"
backbone = "builtin"
datasets = ["us-breast"]
shots = [1, 2]
seeds = [1, 2]
methods = ["zero-shot", "gda"]

[phantoms]
train = 2
val = 1
test = 2
"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    path = tmp_path_factory.mktemp("grid") / "small.toml"
    path.write_text(GRID)
    return path


def ogkd(*arguments):
    return CliRunner().invoke(app, ["bench", *map(str, arguments)], catch_exceptions=False)


def dry_run(*arguments):
    return ogkd("run", *arguments, "--out", "runs", "--dry-run")


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_from_a_grid_to_tables_and_figures(grid):
    planned = dry_run(grid)
    assert "8 runs, 0 of them done" in planned.output
    assert len(planned.stdout.splitlines()) == 9
    ran = ogkd("run", grid, "--out", "runs", "--workers", "0")
    assert ran.exit_code == 0
    assert "8 of 8 runs are finished" in ran.output
    assert len(dry_run(grid).stdout.splitlines()) == 1
    again = ogkd("run", grid, "--out", "runs", "--workers", "0")
    assert "8 of them done already" in again.output
    table = ogkd("table", "runs").output
    assert "| gda |" in table
    assert "K=2" in table
    assert len(ogkd("table", "runs", "--format", "runs").stdout.splitlines()) == 9
    figures = ogkd("figure", "runs", "--out", "figures").output.split()
    assert any(name.endswith(".svg") for name in figures)
    assert "gda" in ogkd("compare", "runs", "gda", "zero-shot").output
    assert "counterpart" in ogkd("compare", "runs").output


def test_options_choose_part_of_a_grid(grid):
    answer = dry_run(grid, "--shots", "1", "--seeds", "1-3", "--methods", "gda")
    assert "3 runs" in answer.output


def test_every_shipped_grid_is_listed():
    answer = ogkd("list").output
    assert "paper/few-shot" in answer
    assert "phantoms/noise-base-to-novel" in answer
    assert dry_run("phantoms").stdout.count(" runs, ") == 10


def test_several_grids_share_a_folder_and_one_is_chosen(grid, tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    other.write_text(GRID.replace('"small"', '"other"').replace("[1, 2]", "[1]"))
    monkeypatch.setattr("ogkd.bench.grid.grid_names", lambda name: [grid, other])
    answer = ogkd("run", "ours", "--out", "runs", "--workers", "0")
    assert answer.exit_code == 0
    assert "8 of 8 runs are finished" in answer.output  # equal runs are shared
    assert "--plan other" in answer.output
    with pytest.raises(ConfigError, match="--plan"):
        ogkd("table", "runs")
    assert "gda" in ogkd("table", "runs", "--plan", "other").output


@pytest.mark.parametrize(
    ("arguments", "option"),
    [
        (["run", "paper/fewshot"], "GRID"),
        (["run", "phantoms/gamma", "--shots", "few"], "--shots"),
        (["run", "phantoms/gamma", "--seeds", "3-1"], "--seeds"),
        # The released prompts are missing.
        (["run", "paper/few-shot", "--datasets", "btmri", "--methods", "zero-shot"], ""),
    ],
)
def test_invalid_options_are_named(arguments, option, tmp_path):
    with pytest.raises(ConfigError) as caught:
        ogkd(*arguments, "--out", "runs")
    assert option in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_reading_what_is_not_a_folder_of_runs_raises():
    for command in ("table", "figure", "compare"):
        with pytest.raises(ConfigError):
            ogkd(command, "nowhere")


def test_exit_code_is_1_if_a_run_failed(grid, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text(GRID.replace("seeds = [1, 2]", "seeds = [1]\nbudgets = [1, 99]"))
    answer = ogkd("run", bad, "--out", tmp_path / "runs", "--workers", "0")
    assert answer.exit_code == 1
    assert "Use budgets up to" in answer.output
    assert "4 of 8 runs are finished" in answer.output


def test_a_grid_is_tested_on_another_dataset(grid):
    words = ["--methods", "gda", "--test-on", "cxr"]
    with pytest.raises(ConfigError):
        dry_run(grid, *words)  # another organ, other classes
    assert "tested on" not in dry_run(grid, "--methods", "gda", "--test-on", "us-breast").output
