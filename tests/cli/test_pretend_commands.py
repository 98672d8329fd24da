"""Every command that takes a device runs on the pretended accelerator."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from typer.main import get_command

from ogkd.backbones import loading
from ogkd.cli import app
from ogkd.images import ImageRef, read_image
from ogkd.serve.models import answers
from ogkd.serve.uploads import Upload
from pretend_device import THERE, pretending
from tiny_data import CLASSES, write_dataset

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


def commands_with_a_device(command=None, path=()):
    command = command or get_command(app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands_with_a_device(inner, (*path, name))
    if any(option.name == "device" for option in command.params):
        yield " ".join(path)


@pytest.fixture
def pictures(tmp_path):
    return write_dataset(tmp_path / "data", splits={"train": 4, "val": 6, "test": 4})


def words_of(pictures, out):
    """The commands in an order in which each finds what it needs."""
    test, model = pictures / "test", out / "model"
    own = f"--backbone={FIXTURE}"
    labelled = [f"{test}/{name.replace(' ', '_')}/0.png,{name}\n" for name in CLASSES]
    (out / "labels.csv").write_text("path,label\n" + "".join(labelled))
    grid = out / "grid.toml"
    grid.write_text(
        f'name = "g"\ndata = "{pictures.parent}"\nbackbone = "{FIXTURE}"\ndatasets = ["data"]\n'
        'shots = [2]\nseeds = [1]\nmethods = ["coop"]\n[settings]\n"train.epochs" = 1\n'
    )
    few = ["--set", "train.epochs=1", "--set", "views=1"]
    return {
        "fit": [pictures, own, "--method", "ogkd", "--out", model, *few],
        "calibrate": [model, pictures, "--split", "val"],
        "evaluate": [model, pictures, "--resamples", 10],
        "predict": [model, test, "--out", out / "rows.csv", "--explain", out / "maps"],
        "embed": [test, own, "--out", out / "features.safetensors"],
        "bench run": [grid, "--out", out / "runs", "--workers", 0],
        "app": [model],
        "studio": [test, own, "--out", out / "project"],
    }  # fmt: skip


@pytest.fixture
def _without_waiting(pictures, monkeypatch):
    """Servers that answer one question and end."""
    image = ImageRef.of(sorted((pictures / "test").rglob("*.png"))[0])

    def serve_model(model, settings, *, ready):
        upload = Upload({image.file: "a.png"}, [image], read_image(image))
        [answer] = answers(model, upload, images=True)
        assert answer["evidence"] is not None

    def serve(make, settings, *, ready):
        make("private")

    def make_studio(session, *_):
        session.encoding.result(timeout=300)

    monkeypatch.setattr("ogkd.serve.server.serve_model", serve_model)
    monkeypatch.setattr("ogkd.serve.server.serve", serve)
    monkeypatch.setattr("ogkd.serve.studio.routes.make_studio", make_studio)


def probabilities_in(table):
    rows = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    return [float(row["probability"]) for row in rows]


@pytest.mark.slow
@pytest.mark.usefixtures("_without_waiting")
def test_every_command_works_on_the_device(ogkd, pictures, tmp_path, monkeypatch):
    place = loading.resolve_device
    monkeypatch.setattr(
        loading, "resolve_device", lambda name: THERE if name == "pretended" else place(name)
    )
    words = words_of(pictures, tmp_path)
    assert set(words) == set(commands_with_a_device())
    failed = {}
    for name, arguments in words.items():
        monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "caches" / name))  # nothing is encoded yet
        with pretending() as count:
            found = ogkd(*name.split(), *arguments, "--device", "pretended")
        if found.code != 0 or not count.there:
            failed[name] = found
    assert not failed, "\n".join(f"{name}: {how}" for name, how in failed.items())
    model, images, *_ = words["predict"]
    assert ogkd("predict", model, images, "--out", tmp_path / "cpu.csv").code == 0
    there, here = (probabilities_in(tmp_path / name) for name in ("rows.csv", "cpu.csv"))
    assert there == pytest.approx(here, abs=1e-3)
