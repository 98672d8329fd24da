"""What ogkd knows of datasets and backbones, and what of it is on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ogkd.backbones import hub
from ogkd.backbones.catalog import catalog
from ogkd.data import fetch
from ogkd.data.catalog import Benchmark, benchmark, benchmarks
from ogkd.methods.registry import not_built
from tiny_backbones import make_clip


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


def test_benchmarks_are_listed_with_what_is_here(ogkd, place):
    folder = keep("busi", place)
    lines = {line.split()[0]: line.split() for line in ogkd("data", "list").out.splitlines()}
    assert set(benchmarks()) < set(lines)
    assert lines["busi"][1] == "yes"
    assert lines["btmri"][1:] == ["no", "MRI", "brain", "4", "2,854", "1,141", "1,717"]
    rows = json.loads(ogkd("data", "list", "--json").out)
    assert [row["name"] for row in rows if row["present"]] == ["busi"]
    row = json.loads(ogkd("data", "list", "BUSI", "--json").out)
    assert (row, row["path"]) == (rows[1], str(folder))
    out = ogkd("data", "list", "BUSI").out
    for words in ("benign tumor, malignant tumor", "CC0", "Al-Dhabyani", row["split_sha256"]):
        assert words in out


def test_a_download_says_where_it_went_and_what_comes_next(ogkd, place, monkeypatch):
    asked = []

    def download(record: Benchmark) -> Path:
        asked.append(record.name)
        if record.name == "busi":
            raise KeyboardInterrupt
        return keep(record.name, place)

    monkeypatch.setattr(fetch, "download_benchmark", download)
    outcome = ogkd("data", "download", "btmri", "kvasir", "btmri")
    assert outcome.code == 0
    assert f"btmri -> {place / 'btmri'}" in outcome.out
    assert "ogkd fit kvasir" in outcome.out
    assert asked == ["btmri", "kvasir"]
    outcome = ogkd("data", "download", "btmri")
    assert outcome.out == f"btmri is already present: {place / 'btmri'}\n"
    stopped = ogkd("data", "download", "busi")
    assert stopped.code == 130
    assert "run the same command again" in stopped.err


def test_backbones_are_listed_shown_verified_and_fetched(ogkd, tmp_path, monkeypatch):
    folder = catalog()["plip"].folder
    make_clip(folder)
    files = {path.name: {"size": path.stat().st_size, "sha256": "f"} for path in folder.iterdir()}
    weights = {"file": "model.safetensors", **files["model.safetensors"]}
    source = {"format": "transformers", "revision": "a" * 40, "weights": weights, "files": files}
    source["original"] = {"file": "pytorch_model.bin", "sha256": "0" * 64}
    (folder / "source.json").write_text(json.dumps(source))
    lines = [line.split() for line in ogkd("backbones", "list").out.splitlines()]
    here = {words[0]: words[1] for words in lines if words[0] in catalog()}
    assert list(here) == list(catalog())
    assert (here["builtin"], here["plip"], here["biomedclip"]) == ("yes", "yes", "no")
    assert (here["conch"], here["lovt"]) == ("gated", "n/a")
    shown = ogkd("backbones", "info", "plip").out.splitlines()
    facts = dict(line.split(maxsplit=1) for line in shown)
    assert (facts["present"], facts["path"], facts["sha256"]) == ("True", str(folder), "f")
    assert facts["tokenizer.json"] == f"{files['tokenizer.json']['size']:,} bytes"
    damaged = ogkd("backbones", "info", "plip", "--verify")  # the hashes above are made up
    assert damaged.code == 2
    assert "`ogkd backbones fetch plip`" in damaged.out
    make_clip(tmp_path)
    assert ogkd("backbones", "info", tmp_path, "--verify").code == 0
    monkeypatch.setattr(hub, "fetch", lambda record: tmp_path / record.name)
    assert str(tmp_path / "plip") in ogkd("backbones", "fetch", "plip").out


def test_a_method_explains_its_settings_and_presets(ogkd, refused):
    listed = ogkd("methods").out
    assert all(name in listed for name in not_built())
    shown = " ".join(ogkd("methods", "ogkd").out.split())
    assert "alpha 4.0 sharpness of the class graph W" in shown
    assert "without a preset" in shown
    of_preset = " ".join(ogkd("methods", "ogkd", "--preset", "ablation/b").out.split())
    assert "lambda_lgd 0.0 weight" in of_preset
    assert "paper/few-shot" in refused("methods", "ogkd", "--preset", "paper")
    assert "--preset" in refused("methods", "--preset", "auto")
