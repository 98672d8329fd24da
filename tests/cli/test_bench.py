"""`ogkd bench` from grid to table, as a user types it."""

from __future__ import annotations

import json
import re

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


def test_from_a_grid_to_tables_and_figures(grid, tmp_path):
    runs = tmp_path / "runs"
    planned = ogkd("plan", grid, "--out", runs)
    assert "8 runs on 1 dataset(s)" in planned.output
    assert re.search(r"missing +8, trained in 4 passes", planned.output)
    ran = ogkd("run", grid, "--out", runs, "--workers", "0")
    assert ran.exit_code == 0
    assert "8 of 8 runs are finished" in ran.output
    assert re.search(r"done +8\n", ogkd("plan", grid, "--out", runs).output)
    assert "small: 8 done, 0 missing, 0 failed of 8" in ogkd("status", runs).output
    other = ogkd("plan", grid, "--out", runs, "--no-probe", "--set", "views=2").output
    assert "rough: no run of" in other  # runs of other lengths say nothing about these
    again = ogkd("run", grid, "--out", runs, "--workers", "0")
    assert "8 of them done already" in again.output
    table = ogkd("table", runs).output
    assert "| gda |" in table
    assert "K=2" in table
    assert r"\begin{tabular}" in ogkd("table", runs, "--format", "latex").output
    ogkd("collect", runs)
    assert len(json.loads((runs / "results.json").read_text())) == 8
    figures = ogkd("figure", runs, "--out", tmp_path / "figures").output.split()
    assert any(name.endswith(".svg") for name in figures)
    assert "gda" in ogkd("compare", runs, "gda", "zero-shot").output


def test_show_names_every_run(grid):
    lines = ogkd("plan", grid, "--show").output.splitlines()
    assert sum(line.startswith("missing ") for line in lines) == 8


def test_options_choose_part_of_a_grid(grid):
    answer = ogkd("plan", grid, "--shots", "1", "--seeds", "1-3", "--methods", "gda")
    assert "3 runs on 1 dataset(s)" in answer.output


def test_every_grid_of_ours_is_listed():
    answer = ogkd("list").output
    assert "paper/few-shot" in answer
    assert "phantoms/noise-base-to-novel" in answer


def test_a_set_of_grids_is_planned_and_run_together(grid, tmp_path, monkeypatch):
    planned = ogkd("plan", "phantoms", "--no-probe").output
    assert planned.count("  missing ") == 11
    assert re.search(r"  time .* to .* on one worker \(rough: no run of .* is finished\)", planned)
    assert re.search(r"Total: \d+ different runs are missing", planned)
    other = tmp_path / "other.toml"
    other.write_text(GRID.replace('"small"', '"other"').replace("[1, 2]", "[1]"))
    monkeypatch.setattr("ogkd.bench.grid.grid_names", lambda name: [grid, other])
    answer = ogkd("run", "ours", "--out", tmp_path / "runs", "--workers", "0")
    assert answer.exit_code == 0
    assert "8 of 8 runs are finished" in answer.output
    assert "--plan small" in answer.output
    assert "Total: 0 different runs" in ogkd("plan", "ours", "--out", tmp_path / "runs").output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "paper/fewshot"], "Did you mean 'paper/few-shot'"),
        (["run", "phantoms/gamma", "--out", "x", "--address", "auto"], "--address has no effect"),
        (["plan", "phantoms/gamma", "--shots", "few"], "--shots takes numbers"),
        (["plan", "phantoms/gamma", "--seeds", "3-1"], "--seeds takes numbers"),
        (["table", "nowhere"], "not a folder of runs"),
    ],
)
def test_mistakes_end_in_a_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        ogkd(*arguments)
    assert message in str(caught.value)


def test_several_grids_in_a_folder_are_told_apart(grid, tmp_path):
    runs = tmp_path / "runs"
    other = tmp_path / "other.toml"
    other.write_text(GRID.replace('"small"', '"other"'))
    for file in (grid, other):
        assert ogkd("run", file, "--out", runs, "--workers", "0", "--methods", "gda").exit_code == 0
    with pytest.raises(ConfigError, match="Choose one with --plan: other, small"):
        ogkd("table", runs)
    assert "gda" in ogkd("table", runs, "--plan", "other").output
    assert len(list((runs / "runs").iterdir())) == 4  # equal runs are shared


def test_a_failed_run_is_told_and_the_exit_code_is_1(grid, tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text(GRID.replace("seeds = [1, 2]", "seeds = [1]\nbudgets = [1, 99]"))
    answer = ogkd("run", bad, "--out", tmp_path / "runs", "--workers", "0")
    assert answer.exit_code == 1
    assert "Use budgets up to" in answer.output
    assert "4 of 8 runs are finished" in answer.output


def test_a_grid_that_needs_the_released_prompts_says_how_to_get_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = ("--datasets", "btmri", "--shots", "1", "--methods", "zero-shot")
    planned = ogkd("plan", "paper/few-shot", *few)
    assert planned.exit_code == 0
    assert "ogkd prompts fetch released" in planned.output
    with pytest.raises(ConfigError, match="ogkd prompts fetch released"):
        ogkd("run", "paper/few-shot", *few, "--out", "runs")
    assert not (tmp_path / "runs").exists()
    assert "fetch" not in ogkd("plan", "paper/few-shot", *few, "--prompts", "ours").output


def test_tune_writes_settings_that_the_next_run_uses(tmp_path):
    words = ("--methods", "kgcoop", "--shots", "1", "--seeds", "1")
    out = ("--out", tmp_path / "tuning", "--save", tmp_path / "tuned.toml", "--workers", "0")
    text = GRID.replace('methods = ["', 'methods = ["kgcoop", "')
    grid = tmp_path / "small.toml"
    grid.write_text(text + '\n[settings]\n"train.epochs" = 1\n')
    answer = ogkd("tune", grid, *words, *out, "--trials", "2")
    assert answer.exit_code == 0, answer.output
    assert "--tuned" in answer.output
    planned = ogkd("plan", grid, *words, "--tuned", tmp_path / "tuned.toml", "--show").output
    assert "1 runs on 1 dataset(s)" in planned
    with pytest.raises(ConfigError, match="Name the methods"):
        ogkd("tune", grid, *out)
