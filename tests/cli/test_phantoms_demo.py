from __future__ import annotations

import pytest
from PIL import Image

from ogkd.backbones.builtin import BUILTIN_FOLDER
from ogkd.data.phantoms import CHEST_FINDINGS, PHANTOMS
from ogkd.data.read import read_dataset
from ogkd.model.load import load


@pytest.mark.skipif(
    not (BUILTIN_FOLDER / "model.safetensors").is_file(), reason="the built-in model is not there"
)
def test_a_demo_learns_more_than_descriptions_say_and_replaces_only_a_demo(ogkd, tmp_path):
    out = tmp_path / "d"
    out.mkdir()  # an empty folder will do
    outcome = ogkd("demo", "--out", out)
    assert outcome.code == 0, outcome.err
    ensemble, fused, learned = (
        float(line.split("accuracy")[1].split()[0])
        for line in outcome.out.splitlines()
        if " accuracy " in line
    )
    assert min(fused, learned) > ensemble > 20
    model = load(out / "model")
    assert model.card.method == "fused"
    assert model.calibration is not None
    page = (out / "report.html").read_text(encoding="utf-8")
    assert model.weights_sha256 in page
    assert "The data was not checked" not in page
    assert str(tmp_path) not in page
    following = next(line for line in outcome.out.splitlines() if line.startswith("Next: ogkd "))
    predicted = ogkd(*following.split()[2:])
    assert len(predicted.out.splitlines()) == 1 + 5 * 50
    (out / "model" / "stale").mkdir()
    (out / "my notes.txt").write_text("x")
    assert ogkd("demo", "--out", out).code == 0
    assert not (out / "model" / "stale").exists()
    assert (out / "my notes.txt").is_file()


def test_the_list_names_every_dataset(ogkd):
    *lines, several = ogkd("phantoms").out.splitlines()
    assert several.startswith(CHEST_FINDINGS)
    for line, dataset in zip(lines, PHANTOMS.values(), strict=True):
        assert line.startswith(dataset.name)
        assert all(name in line for name in dataset.class_names)


def test_a_dataset_is_written_as_folders_that_can_be_read(ogkd, tmp_path):
    out = tmp_path / "new" / "p"
    words = ["phantoms", "us-breast", "--out", out, "--train", 2, "--val", 0, "--test", 1]
    outcome = ogkd(*words, "--size", 128)
    assert outcome.code == 0, outcome.err
    names = PHANTOMS["us-breast"].class_names
    assert f"{3 * len(names)} images of {len(names)} classes" in outcome.out
    dataset = read_dataset(out)
    assert set(dataset.names) == set(names)
    assert len(dataset.part("train")) == 2 * len(names)
    with Image.open(dataset.images[0].file) as image:
        assert image.size == (128, 128)
