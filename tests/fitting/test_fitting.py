from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import ogkd
import ogkd.fitting.pipeline
import ogkd.fitting.prepare
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


def test_the_same_seed_gives_the_same_bits_and_another_seed_does_not(bert_backbone, pictures):
    first, again, other = (fit(pictures, bert_backbone, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.head.T, again.head.T)
    assert first.card == again.card == fit(read_dataset(pictures), bert_backbone).card
    assert not torch.equal(first.head.T, other.head.T)


def test_a_second_fit_encodes_no_image(bert_backbone, pictures, images_encoded):
    fit(pictures, bert_backbone)
    assert sum(images_encoded) == 36  # a crop to learn from and the whole, which is kept
    fit(pictures, bert_backbone, settings={**FAST, "lambda_gad": 2.0})
    assert sum(images_encoded) == 36


def test_only_the_training_part_and_the_shots_are_learned_from(bert_backbone, pictures):
    card = fit(pictures, bert_backbone, shots=2).card
    assert card.support_counts == (2, 2, 2)
    assert (card.shots, card.seed, card.method, card.preset) == (2, 1, "ogkd", "auto")
    assert card.config["train"]["epochs"] == 2
    assert fit(pictures, bert_backbone).card.support_counts == (6, 6, 6)


def test_prompts_from_a_file_and_from_python_are_the_same(bert_backbone, pictures, tmp_path):
    bank = {
        name: [f"{name} seen", name] for name in ("bright spot", "dark field", "striped tissue")
    }
    path = tmp_path / "bank.json"
    path.write_text(json.dumps(bank))
    by_file = fit(pictures, bert_backbone, prompts=path, method="zero-shot-ensemble")
    by_hand = fit(pictures, bert_backbone, prompts=bank, method="zero-shot-ensemble")
    without = fit(pictures, bert_backbone, method="zero-shot-ensemble")
    assert by_file.card.prompts == "bank.json"
    assert by_file.card.model_copy(update={"prompts": by_hand.card.prompts}) == by_hand.card
    assert torch.equal(by_file.head.T, by_hand.head.T)
    assert by_file.card.prompts_sha256 != without.card.prompts_sha256


def test_the_saved_model_is_the_returned_one_and_no_work_is_left(bert_backbone, pictures, tmp_path):
    model = fit(pictures, bert_backbone, out=tmp_path / "new" / "m")
    assert left_in(tmp_path / "new") == {"m"}
    assert left_in(tmp_path / "new" / "m") == {
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


def test_a_model_is_replaced_by_a_new_fit(bert_backbone, pictures, tmp_path):
    fit(pictures, bert_backbone, out=tmp_path / "m")
    messages: list[str] = []
    fit(pictures, bert_backbone, out=tmp_path / "m", method="zero-shot", say=messages.append)
    assert "this fit replaces the model" in messages[-1]
    assert "fitted with other method" in messages[-1]
    assert load(tmp_path / "m", backbone=bert_backbone).card.method == "zero-shot"
    assert left_in(tmp_path) == {"m"}


def test_one_image_under_two_labels_is_named(bert_backbone, pictures, tmp_path):
    data = shutil.copytree(pictures, tmp_path / "data")
    first, second = sorted(folder for folder in (data / "train").iterdir())[:2]
    copy = shutil.copy(sorted(first.glob("*.png"))[0], second / "copy.png")
    messages: list[str] = []
    fit(data, bert_backbone, say=messages.append, shots=None)
    (note,) = (line for line in messages if "several labels" in line)
    assert str(copy) in note
    messages.clear()
    fit(pictures, bert_backbone, say=messages.append)
    assert not any("several labels" in line for line in messages)


def calibrated(folder: Path, backbone) -> bytes:
    model = load(folder, backbone=backbone)
    logits = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
    keys = [str(n) for n in range(30)]
    model.calibration = Calibration.fit(model.task, logits, np.arange(30) % 3, keys)
    model.save(folder)
    return (folder / "calibration.json").read_bytes()


def test_a_finished_fit_is_recognised_and_keeps_its_calibration(
    bert_backbone, pictures, tmp_path, monkeypatch
):
    messages: list[str] = []
    first = fit(pictures, bert_backbone, out=tmp_path / "m")
    before = calibrated(tmp_path / "m", bert_backbone)
    with monkeypatch.context() as patch:
        patch.setattr(ogkd.fitting.pipeline, "train", None)  # nothing is trained
        again = fit(read_dataset(pictures), bert_backbone, out=tmp_path / "m", say=messages.append)
    assert torch.equal(first.head.T, again.head.T)
    assert again.calibration is not None
    assert (tmp_path / "m" / "calibration.json").read_bytes() == before
    assert "already fitted" in messages[-1]
    assert left_in(tmp_path) == {"m"}
    fit(pictures, bert_backbone, out=tmp_path / "m", restart=True, say=messages.append)
    assert not (tmp_path / "m" / "calibration.json").exists()


def test_another_fit_deletes_a_calibration_only_on_request(bert_backbone, pictures, tmp_path):
    fit(pictures, bert_backbone, out=tmp_path / "m")
    before = calibrated(tmp_path / "m", bert_backbone)
    other = {"out": tmp_path / "m", "seed": 2, "settings": {**FAST, "lambda_gad": 2.0}}
    with pytest.raises(ConfigError, match="fitted with other settings, seed") as error:
        fit(pictures, bert_backbone, **other)
    assert error.value.argument == "restart"
    assert (tmp_path / "m" / "calibration.json").read_bytes() == before
    assert left_in(tmp_path) == {"m"}
    fit(pictures, bert_backbone, **other, restart=True)
    assert load(tmp_path / "m", backbone=bert_backbone).card.seed == 2


def test_a_finished_fit_with_damaged_weights_is_fitted_again(bert_backbone, pictures, tmp_path):
    fit(pictures, bert_backbone, out=tmp_path / "m")
    (tmp_path / "m" / "weights.safetensors").write_bytes(b"")
    fit(pictures, bert_backbone, out=tmp_path / "m")
    assert load(tmp_path / "m", backbone=bert_backbone).card.seed == 1


def test_a_fit_that_diverged_leaves_the_earlier_model(bert_backbone, pictures, tmp_path):
    settings = {"lr": 1e9, "epochs": 5}
    fit(pictures, bert_backbone, method="gda", out=tmp_path / "m")
    before = (tmp_path / "m" / "model.json").read_bytes()
    with pytest.raises(TrainingError):
        fit(pictures, bert_backbone, method="tip-adapter-f", settings=settings, out=tmp_path / "m")
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


def test_a_class_without_training_images_is_refused(bert_backbone, pictures):
    dataset = read_dataset(pictures)
    lacking = dataset.with_cases(c for c in dataset.cases if c.split == "test" or c.target != 1)
    with pytest.raises(DataError, match="dark field"):
        fit(lacking, bert_backbone)
    fit(lacking, bert_backbone, method="zero-shot")  # learns from no image


def test_every_missing_file_is_named_at_once(bert_backbone, tmp_path):
    cases = tuple(case_of(tmp_path / f"gone{label}.png", label) for label in (0, 1))
    with pytest.raises(DataError, match=r"(?s)gone0\.png.*gone1\.png"):
        fit(Dataset(cases, OneOf(("a", "b"))), bert_backbone)


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"method": "ogdk"}, "method"),
        ({"preset": "paper/few-shot/busy"}, "preset"),
        ({"settings": {"train.epoch": 2}}, None),
        ({"settings": {"train.epochs": 0}}, None),
        ({"settings": {**FAST, "context.n_ctx": 1000}}, None),
        ({"shots": 0}, "shots"),
        ({"seed": -1}, "seed"),
        ({"prompts": {"bright mark": ["x"]}}, "prompts"),
        ({"device": "warp"}, "device"),
        ({"cases": " "}, "cases"),
        ({"on_error": "ignore"}, "on_error"),
        ({"slice": "middle"}, "slice"),
        ({"sampling": "nest"}, "sampling"),
    ],
)
def test_invalid_options_are_refused_and_leave_nothing(pictures, tmp_path, options, argument):
    fixture = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"
    with pytest.raises(ConfigError) as error:
        fit(pictures, fixture, out=tmp_path / "m", **options)
    assert error.value.argument == argument
    assert left_in(tmp_path) == set()


def test_too_little_memory_is_refused_before_any_image_is_encoded(
    bert_backbone, pictures, images_encoded, monkeypatch
):
    class Little:
        available = 1000

    monkeypatch.setattr(ogkd.fitting.prepare.psutil, "virtual_memory", lambda: Little)
    with pytest.raises(ConfigError, match="18 images with 3 views"):
        fit(pictures, bert_backbone, settings={"views": 3})
    assert images_encoded == []
    fit(pictures, bert_backbone, settings={**FAST, "lambda_lgd": 0.0})


def test_out_that_is_no_place_for_a_model_is_refused_before_any_work(
    bert_backbone, pictures, tmp_path, images_encoded
):
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.doc").write_text("x")
    for out in ("file", "full"):
        with pytest.raises(ConfigError) as error:
            fit(pictures, bert_backbone, out=tmp_path / out)
        assert error.value.argument == "out"
    with pytest.raises(StorageError):
        fit(pictures, bert_backbone, out=tmp_path / "file" / "m")
    assert images_encoded == []
    assert left_in(tmp_path) == {"file", "full"}


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


def test_a_stopped_fit_goes_on_to_the_same_result(stopped, bert_backbone, pictures, tmp_path):
    log = tmp_path / ".m.training" / "training.jsonl"
    with log.open("a") as file:
        file.write('{"epoch": 3, "ter')  # what a kill in the middle of a line leaves
    notes, notes_of_whole = [], []
    model = fit(pictures, bert_backbone, **stopped, say=notes.append)
    whole = fit(pictures, bert_backbone, settings=stopped["settings"], say=notes_of_whole.append)
    assert torch.equal(model.head.T, whole.head.T)
    [note] = [note for note in notes if note not in notes_of_whole]
    assert "continues at epoch 4 of 5" in note
    lines = (tmp_path / "m" / "training.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2, 3, 4]
    assert left_in(tmp_path) == {"m"}


def test_restart_forgets_a_stopped_fit(stopped, bert_backbone, pictures, tmp_path):
    fit(pictures, bert_backbone, out=stopped["out"], settings=FAST, restart=True)
    assert len((tmp_path / "m" / "training.jsonl").read_text().splitlines()) == 2


def test_a_mistake_does_not_cost_the_progress_of_a_stopped_fit(
    stopped, bert_backbone, pictures, tmp_path
):
    before = left_in(tmp_path / ".m.training")
    with pytest.raises(ConfigError, match="other settings"):
        fit(pictures, bert_backbone, out=stopped["out"], settings=FAST)
    with pytest.raises(ConfigError, match="no_such"):
        fit(pictures, bert_backbone, out=stopped["out"], settings={"no_such": 1}, restart=True)
    assert left_in(tmp_path / ".m.training") == before
