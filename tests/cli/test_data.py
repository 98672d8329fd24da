"""`ogkd data` as a user sees it: words, JSON and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.data import fetch
from ogkd.data.catalog import Benchmark, benchmark, benchmarks


def keep(name: str, folder: Path) -> Path:
    """An empty benchmark in its place, which `list` takes for present."""
    record = benchmark(name)
    (folder / name / record.folder).mkdir(parents=True)
    (folder / name / record.split_file).write_text("{}")
    return folder / name


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("OGKD_DATA", str(tmp_path / "datasets"))
    return tmp_path / "datasets"


def test_list_shows_every_benchmark_and_what_is_here(ogkd, place):
    keep("btmri", place)
    outcome = ogkd("data", "list")
    assert outcome.code == 0
    lines = {line.split()[0]: line.split() for line in outcome.out.splitlines()}
    assert set(benchmarks()) < set(lines)
    assert lines["btmri"][1:] == ["yes", "MRI", "brain", "4", "2,854", "1,141", "1,717"]
    assert lines["octmnist"][1] == "no"


def test_list_shows_all_that_is_known_of_one_and_json(ogkd, place):
    folder = keep("busi", place)
    rows = json.loads(ogkd("data", "list", "--json").out)
    assert [row["name"] for row in rows] == list(benchmarks())
    assert {row["name"] for row in rows if row["present"]} == {"busi"}
    row = json.loads(ogkd("data", "list", "BUSI", "--json").out)
    assert (row, row["path"]) == (rows[1], str(folder))
    out = ogkd("data", "list", "BUSI").out
    names = ("benign tumor, malignant tumor", "CC0", "Al-Dhabyani", row["split_sha256"])
    for words in (*names, "235 duplicate images"):
        assert words in out


def test_download_says_where_it_went_and_what_comes_next(ogkd, place, monkeypatch):
    asked = []

    def download(record: Benchmark) -> Path:
        asked.append(record.name)
        return keep(record.name, place)

    monkeypatch.setattr(fetch, "download_benchmark", download)
    outcome = ogkd("data", "download", "btmri", "kvasir", "btmri")
    assert outcome.code == 0
    assert f"btmri -> {place / 'btmri'}" in outcome.out
    assert "ogkd fit kvasir" in outcome.out
    assert asked == ["btmri", "kvasir"]
    outcome = ogkd("data", "download", "btmri")
    assert outcome.out == f"btmri is already present: {place / 'btmri'}\n"


def test_an_interrupt_says_how_to_go_on(ogkd, place, monkeypatch):
    def download(*_: object, **__: object) -> Path:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "download_benchmark", download)
    outcome = ogkd("data", "download", "btmri")
    assert outcome.code == 130
    assert "run the same command again" in outcome.err


def test_what_cannot_be_done_is_refused(refused, place):
    assert "Did you mean 'btmri'" in refused("data", "list", "btmr")
    assert "Did you mean 'btmri'" in refused("data", "download", "btmri", "btmr")
    assert "Missing argument" in refused("data", "download")
