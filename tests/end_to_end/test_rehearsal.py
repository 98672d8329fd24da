"""The commands of docs/how-to/reproduce-the-paper.md, from nothing, against servers of our own."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ogkd.bench.runs import RunsFolder
from ogkd.cli import app
from ogkd.data import catalog
from ogkd.prompts.released import released_path
from stub_hub import publish, stub_hub

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reproduce-the-paper.md"
# What makes a rehearsal short: runs are done in this process, for two datasets, one shot and seed
# and some of the methods.
SHORTER = ["--workers", "0", "--datasets", "btmri,retina", "--seeds", "1"]
ONLY = {
    "paper/few-shot": ["zero-shot,clip-adapter,tip-adapter,lp++,ogkd", "--shots", "1"],
    "paper/base-to-novel": ["zero-shot,coop"],  # at 16 shots: all images that there are
}


def commands():
    (block,) = re.findall(r"```bash rehearsal\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    return [shlex.split(line, comments=True)[1:] for line in block.splitlines()]


@pytest.fixture
def _catalogue_as_it_was():
    yield
    catalog.benchmarks.cache_clear()


@pytest.mark.slow
@pytest.mark.usefixtures("_catalogue_as_it_was")
def test_the_pages_commands_lead_from_nothing_to_both_tables(tmp_path, monkeypatch):
    files = publish(monkeypatch, tmp_path)
    catalog.benchmarks.cache_clear()
    monkeypatch.chdir(tmp_path)
    said = {}
    with stub_hub(files) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("OGKD_GITHUB", address)
        for words in commands():
            more = []
            if words[:2] == ["bench", "run"] and "--dry-run" not in words:
                more = [*SHORTER, "--methods", *ONLY[words[2]]]
            found = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
            assert found.exit_code == 0, (words, found.output)
            said[" ".join(words)] = found.output
    assert released_path().is_file()
    assert said["data download all"].count("->") == 11
    assert "2310 runs, " in said["bench run paper/few-shot --out runs --dry-run"]
    runs = RunsFolder(tmp_path / "runs").runs()
    assert {run.spec.bank for run in runs} == {"released"}
    assert {run.spec.backbone for run in runs} == {"biomedclip"}
    ours = [run for run in runs if run.spec.method in ("ogkd", "coop")]
    assert {run.spec.preset for run in ours} == {
        f"paper/{protocol}/{name}"
        for protocol in ("few-shot", "base-to-novel")
        for name in ("btmri", "retina")
    }
    assert {run.result.config["views"] for run in ours} == {"online"}
    for protocol in ("few-shot", "base-to-novel"):
        table = said[f"bench table runs --plan {protocol}"]
        assert "Prompts: released (sha256 " in table
        assert ("ogkd" if protocol == "few-shot" else "coop") in table
        compared = said[f"bench compare runs --plan {protocol}"]
        assert "The published numbers': released." in compared
        assert "Differences are also" not in compared
