from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ogkd
import ogkd.fitting.pipeline
import world
from ogkd.data.case import Dataset
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError, StorageError, TrainingError
from ogkd.model.calibration import Calibration
from ogkd.model.load import load
from tiny_data import FAST, case_of


def fit(data, backbone, **options):
    return world.fit(data, backbone, **{"method": "ogkd", **options})


def left_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def images_encoded(bert_backbone, monkeypatch):
    """How many images the tower has seen."""
    seen = []
    encode = bert_backbone.encode_images

    def counting(pixels, **options):
        seen.append(len(pixels))
        return encode(pixels, **options)

    monkeypatch.setattr(bert_backbone, "encode_images", counting)
    return seen


def test_a_second_fit_encodes_no_image(bert_backbone, pictures, images_encoded):
    fit(pictures, bert_backbone)
    assert sum(images_encoded) == 36  # a crop to learn from and the whole, which is kept
    card = fit(pictures, bert_backbone, shots=2, settings={**FAST, "lambda_gad": 2.0}).card
    assert sum(images_encoded) == 36
    assert card.support_counts == (2, 2, 2)
    assert (card.shots, card.seed, card.method, card.preset) == (2, 1, "ogkd", "auto")


def test_the_saved_model_is_the_returned_one_and_no_work_is_left(bert_backbone, pictures, tmp_path):
    model = fit(pictures, bert_backbone, out=tmp_path / "new" / "m")
    assert left_in(tmp_path / "new") == {"m"}
    assert left_in(tmp_path / "new" / "m") == {
        "README.md",
        "model.json",
        "weights.safetensors",
        "support.safetensors",
        "training.jsonl",
    }
    again = load(tmp_path / "new" / "m", backbone=bert_backbone)
    files = sorted((pictures / "test").rglob("*.png"))
    assert np.array_equal(again.predict_proba(files), model.predict_proba(files))
    log = (tmp_path / "new" / "m" / "training.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in log] == [0, 1]


def test_one_image_under_two_labels_is_named(bert_backbone, pictures, tmp_path, notes):
    data = shutil.copytree(pictures, tmp_path / "data")
    first, second = sorted(folder for folder in (data / "train").iterdir())[:2]
    copy = shutil.copy(sorted(first.glob("*.png"))[0], second / "copy.png")
    fit(data, bert_backbone, shots=None)
    (note,) = (line for line in notes if "several labels" in line)
    assert str(copy) in note
    notes.clear()
    fit(pictures, bert_backbone)
    assert not any("several labels" in line for line in notes)


def calibrated(folder: Path, backbone) -> bytes:
    model = load(folder, backbone=backbone)
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    keys = [str(n) for n in range(30)]
    model.calibration = Calibration.fit(model.task, logits, np.arange(30) % 3, keys)
    model.save(folder)
    return (folder / "calibration.json").read_bytes()


def test_a_finished_fit_is_recognised_and_another_replaces_it_only_on_request(
    bert_backbone, pictures, tmp_path, monkeypatch, notes
):
    out = tmp_path / "m"
    first = fit(pictures, bert_backbone, out=out)
    before = calibrated(out, bert_backbone)
    with monkeypatch.context() as patch:
        patch.setattr(ogkd.fitting.pipeline, "train", None)  # nothing is trained
        again = fit(read_dataset(pictures), bert_backbone, out=out)
    assert torch.equal(first.head.T, again.head.T)
    assert again.calibration is not None
    assert "already fitted" in notes[-1]
    other = {"out": out, "seed": 2, "settings": {**FAST, "lambda_gad": 2.0}}
    with pytest.raises(ConfigError, match="fitted with other settings, seed") as error:
        fit(pictures, bert_backbone, **other)
    assert error.value.argument == "restart"
    assert (out / "calibration.json").read_bytes() == before
    assert left_in(tmp_path) == {"m"}
    fit(pictures, bert_backbone, **other, restart=True)
    assert load(out, backbone=bert_backbone).card.seed == 2
    assert not (out / "calibration.json").exists()
    (out / "weights.safetensors").write_bytes(b"")  # damaged: fitted again
    fit(pictures, bert_backbone, **other)
    assert load(out, backbone=bert_backbone).card.seed == 2
    other_method = {"out": out, "method": "zero-shot"}
    with pytest.raises(ConfigError, match="fitted with other method"):
        fit(pictures, bert_backbone, **other_method)
    fit(pictures, bert_backbone, **other_method, restart=True)
    assert "fitted with other method" in notes[-1]


def test_a_fit_that_diverged_leaves_the_earlier_model(bert_backbone, pictures, tmp_path):
    settings, there = {"lr": 1e9, "epochs": 5}, {"out": tmp_path / "m", "restart": True}
    fit(pictures, bert_backbone, method="gda", out=tmp_path / "m")
    before = (tmp_path / "m" / "model.json").read_bytes()
    with pytest.raises(TrainingError):
        fit(pictures, bert_backbone, method="tip-adapter-f", settings=settings, **there)
    assert (tmp_path / "m" / "model.json").read_bytes() == before


def test_a_second_fit_into_a_folder_is_refused_while_the_first_is_at_work(
    bert_backbone, pictures, tmp_path, monkeypatch
):
    out, refused = tmp_path / "m", []
    prepare = ogkd.fitting.pipeline.prepare

    def meanwhile(*args):
        with pytest.raises(StorageError) as error:
            fit(pictures, bert_backbone, out=out)
        refused.append(error)
        return prepare(*args)

    monkeypatch.setattr(ogkd.fitting.pipeline, "prepare", meanwhile)
    fit(pictures, bert_backbone, out=out)
    assert len(refused) == 1
    assert load(out, backbone=bert_backbone)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_data_that_cannot_be_learned_from_is_refused(bert_backbone, pictures, tmp_path):
    dataset = read_dataset(pictures)
    lacking = dataset.with_cases(c for c in dataset.cases if c.split == "test" or c.target != 1)
    with pytest.raises(DataError, match="dark field"):
        fit(lacking, bert_backbone)
    fit(lacking, bert_backbone, method="zero-shot")  # learns from no image
    gone = tuple(case_of(tmp_path / f"gone{label}.png", label) for label in (0, 1))
    with pytest.raises(DataError, match=r"(?s)gone0\.png.*gone1\.png"):
        fit(Dataset(gone, OneOf(("a", "b"))), bert_backbone)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"method": "ogdk"}, "method"),
        ({"settings": {**FAST, "context.n_ctx": 1000}}, None),
        ({"shots": 0}, "shots"),
        ({"prompts": {"bright mark": ["x"]}}, "prompts"),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_invalid_options_are_refused_and_leave_nothing(pictures, tmp_path, options, argument):
    fixture = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
    with pytest.raises(ConfigError) as error:
        fit(pictures, fixture, out=tmp_path / "m", **options)
    assert error.value.argument == argument
    assert left_in(tmp_path) == set()


@pytest.fixture
def stopped(bert_backbone, pictures, tmp_path, monkeypatch):
    """A fit of five epochs that was stopped in its third; returns the options to go on."""
    options = {
        "out": tmp_path / "m",
        "settings": {"train.epochs": 5, "views": 1, "train.checkpoint_every": 1},
    }
    keep = ogkd.fitting.pipeline._training_folder

    def short(*arguments, **named):
        folder = keep(*arguments, **named)

        def log(entry):
            folder.log(entry)
            if entry["epoch"] == 2:
                raise KeyboardInterrupt

        return type(folder)(folder.path, folder.fingerprint, log)

    with monkeypatch.context() as patch:
        patch.setattr(ogkd.fitting.pipeline, "_training_folder", short)
        with pytest.raises(ogkd.OgkdError, match="Run the same fit again"):
            fit(pictures, bert_backbone, **options)
    assert left_in(tmp_path) == {".m.training"}
    return options


def test_a_stopped_fit_goes_on_to_the_same_result(
    stopped, bert_backbone, pictures, tmp_path, notes
):
    log = tmp_path / ".m.training" / "training.jsonl"
    with log.open("a") as file:
        file.write('{"epoch": 3, "ter')  # what a kill in the middle of a line leaves
    model = fit(pictures, bert_backbone, **stopped)
    notes_of_part = list(notes)
    notes.clear()
    whole = fit(pictures, bert_backbone, settings=stopped["settings"])
    assert torch.equal(model.head.T, whole.head.T)
    [note] = [note for note in notes_of_part if note not in notes]
    assert "continues at epoch 4 of 5" in note
    lines = (tmp_path / "m" / "training.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2, 3, 4]
    assert left_in(tmp_path) == {"m"}
