"""The commands of docs/how-to/reproduce-the-paper.md, from nothing, against servers of our own."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import re
import shlex
import zipfile
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from ogkd.bench.runs import RunsFolder
from ogkd.cli import app
from ogkd.data import catalog
from ogkd.data.catalog import Benchmark, Counts
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.download import GITHUB
from ogkd.prompts.released import released_path
from released_bank import PATH, released_source
from stub_server import COMMIT, serve

backbones = importlib.import_module("ogkd.backbones.catalog")  # the package has a function so named
FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
COUNTS = {"train": 3, "val": 2, "test": 2}  # images of each class
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "reproduce-the-paper.md"
# What makes a rehearsal short: runs are done in this process, for two datasets, one shot and seed
# and some of the methods.
SHORTER = ["--workers", "0", "--datasets", "btmri,retina", "--seeds", "1"]
ONLY = {
    "paper/few-shot": ["zero-shot,clip-adapter,tip-adapter,lp++,ogkd", "--shots", "1"],
    "paper/base-to-novel": ["zero-shot,coop"],  # at 16 shots: all images that there are
}


def publish(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, bytes]:
    """Everything that is fetched, small; the catalogues' hashes and counts are of these files."""
    files = {PATH: released_source()}
    records = {}
    for name, record in catalog.benchmarks().items():
        archive, split = _dataset(record, with_split=name != "retina")
        files[record.url.removeprefix(catalog.HUB)] = archive
        files[str(record.split_url).removeprefix(GITHUB)] = split
        each = len(record.class_names)
        counts = Counts(**{part: count * each for part, count in COUNTS.items()})
        facts = {"split_sha256": hashlib.sha256(split).hexdigest(), "split_git_blob": None}
        records[name] = record.model_copy(update={"counts": counts, **facts})
    monkeypatch.setattr(catalog, "read_catalog", lambda _: records)
    model = backbones.catalog()["biomedclip"]
    memory = io.BytesIO()
    torch.save(_weights(), memory)
    start = f"/{model.hub_id}/resolve"
    own = {path.name: path.read_bytes() for path in FIXTURE.glob("*.json")}
    own |= {"vocab.txt": (FIXTURE / "vocab.txt").read_bytes()}
    own |= {str(model.weights): memory.getvalue()}
    for revision in ("main", COMMIT):
        files |= {f"{start}/{revision}/{name}": content for name, content in own.items()}
    listing = {
        "id": model.hub_id,
        "sha": COMMIT,
        "siblings": [{"rfilename": name, "size": len(content)} for name, content in own.items()],
    }
    files[f"/api/models/{model.hub_id}/revision/main"] = json.dumps(listing).encode()
    sha256 = hashlib.sha256(memory.getvalue()).hexdigest()
    small = model.model_copy(update={"sha256": sha256, "size": len(memory.getvalue())})
    known = {**backbones.catalog(), "biomedclip": small}
    monkeypatch.setattr(backbones, "_own_catalog", lambda: known)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return files


def _weights() -> dict[str, torch.Tensor]:
    """The fixture's text tower and a random ViT of the size that its configuration alone names."""
    wide = {24: 192, 72: 576, 96: 768}
    made = {}
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(FIXTURE / "open_clip_model.safetensors").items():
        if not name.startswith("visual.trunk.blocks.1."):
            layers = range(12) if name.startswith("visual.trunk.blocks.0.") else (0,)
            for layer in layers:
                own = name.replace("blocks.0.", f"blocks.{layer}.")
                made[own] = tensor
                if name.startswith("visual."):
                    shape = [wide.get(size, size) for size in tensor.shape]
                    made[own] = 0.05 * torch.randn(shape, generator=generator)
                    if "norm" in name and name.endswith("weight"):
                        made[own] += 1
    return made


def _dataset(record: Benchmark, *, with_split: bool) -> tuple[bytes, bytes]:
    """An archive FOLDER/FOLDER/CLASS/N.png with its split file, and that file."""
    kinds = len(PHANTOMS["endoscopy"].class_names)
    split: dict[str, list[list[object]]] = {part: [] for part in COUNTS}
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w") as archive:
        for label, name in enumerate(record.class_names):
            for number in range(sum(COUNTS.values())):
                part = ["train", "val", "test"][(number >= 3) + (number >= 5)]
                path = f"{name.replace(' ', '_')}/{number}.png"
                split[part].append([path, label, name])
                seed = len(record.name) + label // kinds
                drawn = render("endoscopy", label % kinds, seed=seed, index=number, size=64)
                image = io.BytesIO()
                Image.fromarray(drawn.image).save(image, format="PNG")
                archive.writestr(f"{record.folder}/{record.folder}/{path}", image.getvalue())
        content = json.dumps(split).encode()
        if with_split:
            archive.writestr(f"{record.folder}/{record.split_file}", content)
    return memory.getvalue(), content


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
    with serve() as server:
        server.files = files
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        monkeypatch.setenv("OGKD_GITHUB", server.address)
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
        if protocol == "few-shot":  # its averages need all datasets
            assert "An average needs all of its datasets" in compared
        else:
            assert "The published numbers': released." in compared
        assert "Differences are also" not in compared
