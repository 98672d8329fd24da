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


def test_list_as_json_is_the_catalogue(ogkd, place):
    keep("retina", place)
    rows = json.loads(ogkd("data", "list", "--json").out)
    assert [row["name"] for row in rows] == list(benchmarks())
    assert {row["name"] for row in rows if row["present"]} == {"retina"}
    assert rows[0]["class_names"] == list(benchmark("btmri").class_names)


def test_info_tells_all_that_is_known(ogkd, place):
    out = ogkd("data", "list", "BUSI").out
    for words in (
        "benign tumor, malignant tumor",
        "normal scan",
        "CC0",
        "Al-Dhabyani",
        "BUSI.zip",
        str(benchmark("busi").split_sha256),
        "235 duplicate images",
    ):
        assert words in out
    folder = keep("busi", place)
    assert str(folder) in ogkd("data", "list", "busi").out.replace("\n", "")
    assert json.loads(ogkd("data", "list", "busi", "--json").out)["path"] == str(folder)


def test_download_says_where_it_went_and_what_comes_next(ogkd, place, monkeypatch):
    asked = []

    def download(record: Benchmark, *, folder: Path | None) -> Path:
        asked.append((record.name, folder))
        return keep(record.name, folder or place)

    monkeypatch.setattr(fetch, "download_benchmark", download)
    outcome = ogkd("data", "download", "btmri", "kvasir", "btmri")
    assert outcome.code == 0
    assert f"btmri -> {place / 'btmri'}" in outcome.out
    assert "ogkd fit kvasir" in outcome.out
    assert [name for name, *_ in asked] == ["btmri", "kvasir"]
    outcome = ogkd("data", "download", "btmri")
    assert outcome.out == f"btmri is already present: {place / 'btmri'}\n"
    other = place.parent / "other"
    assert f"ogkd fit {other / 'busi'}" in ogkd("data", "download", "busi", "--folder", other).out
    assert asked[2:] == [("busi", other)]


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


def test_check_is_one_of_the_commands(ogkd, refused, place, tmp_path):
    assert "check" in ogkd("data", "--help").out
    assert "no folder or table" in refused("data", "check", tmp_path / "gone")
    assert "ogkd data download btmri" in refused("data", "check", "btmri")
