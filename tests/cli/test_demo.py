from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

import ogkd.cli.demo as demo
import ogkd.fitting.pipeline as fitting
from ogkd.backbones.builtin import BUILTIN_FOLDER
from ogkd.data.phantoms import CHEST_FINDINGS, PHANTOMS
from ogkd.data.read import read_dataset
from ogkd.model.load import load
from tiny_data import FAST, write_image


@pytest.fixture
def quick(tiny_builtin, monkeypatch):
    """The demo with a tiny backbone and few images and epochs."""
    real = fitting.fit

    def fit(*arguments, **options):
        short = FAST if options["method"] == "ogkd" else None
        return real(*arguments, **options, settings=short)

    monkeypatch.setattr(fitting, "fit", fit)
    for name, count in (("_SHOTS", 2), ("_VAL", 5), ("_TEST", 2)):
        monkeypatch.setattr(demo, name, count)


def test_a_demo_ends_with_a_table_models_and_a_report_on_its_first_dataset(ogkd, quick, tmp_path):
    out = tmp_path / "d"
    outcome = ogkd("demo", "--out", out)
    assert outcome.code == 0, outcome.err
    table = outcome.out.split("Test accuracy")[1].splitlines()
    assert table[1].split() == ["dataset", "chance", *demo._METHODS]
    assert [row.split()[:2] for row in table[2:4]] == [["cxr", "20.0"], ["endoscopy", "20.0"]]
    for method in demo._METHODS:
        assert f"\n  {method} " in outcome.out.split("What each method uses:")[1]
    *_, following, last = outcome.out.splitlines()
    page = Path(last.split(": ", 1)[1]).read_text(encoding="utf-8")
    model = load(out / "models" / "cxr")
    assert model.card.method == "fused"
    assert model.calibration is not None
    assert load(out / "models" / "endoscopy").calibration is None
    assert model.weights_sha256 in page
    assert "data:image/jpeg" in page
    assert "The data was not checked" not in page
    assert str(tmp_path) not in page
    predicted = ogkd(*following.split()[2:])
    assert predicted.code == 0
    assert len(predicted.out.splitlines()) == 1 + 5 * demo._TEST


def test_a_demo_replaces_an_earlier_demo_only(ogkd, refused, quick, tmp_path):
    out = tmp_path / "d"
    words = ["demo", "--out", out]
    out.mkdir()  # an empty folder will do
    assert ogkd(*words).code == 0
    (out / "models" / "stale").mkdir()
    (out / "my notes.txt").write_text("x")
    assert ogkd(*words).code == 0
    assert not (out / "models" / "stale").exists()
    assert (out / "my notes.txt").is_file()
    write_image(tmp_path / "mine" / "images" / "holiday.png")
    (tmp_path / "file").write_text("x")
    for taken in ("mine", "file"):
        assert "--out" in refused("demo", "--out", tmp_path / taken)
    assert (tmp_path / "mine" / "images" / "holiday.png").is_file()


@pytest.mark.skipif(
    not (BUILTIN_FOLDER / "model.safetensors").is_file(), reason="the built-in model is not there"
)
def test_learning_beats_descriptions_on_phantoms(ogkd, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "_DATASETS", ("endoscopy",))
    outcome = ogkd("demo", "--out", tmp_path / "d")
    assert outcome.code == 0, outcome.err
    row = next(line for line in outcome.out.splitlines() if line.startswith("endoscopy "))
    chance, ensemble, fused, learned = map(float, row.split()[1:])
    assert min(fused, learned) > ensemble > chance


def test_the_list_names_every_dataset(ogkd):
    outcome = ogkd("phantoms")
    assert outcome.code == 0
    *lines, several = outcome.out.splitlines()
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
    found = read_dataset(out)
    assert set(found.names) == set(names)
    assert len(found.part("train")) == 2 * len(names)
    with Image.open(found.images[0].file) as image:
        assert image.size == (128, 128)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["us-breast"], "--out"),
        (["us-brest", "--out", "OUT"], "Did you mean 'us-breast'?"),
        (["us-breast", "--out", "OUT", "--size", 5], "--size"),
        (["us-breast", "--out", "FULL"], "not an empty folder"),
    ],
)
def test_what_cannot_be_drawn_is_refused(refused, tmp_path, words, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    places = {"OUT": tmp_path / "out", "FULL": tmp_path / "full"}
    assert message in refused("phantoms", *[places.get(word, word) for word in words])
