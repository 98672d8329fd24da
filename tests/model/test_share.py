"""The README of a model folder, and models on the hub."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import HfApi, constants

import ogkd
from ogkd.errors import ConfigError
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import write_calibration
from ogkd.model.share import README, is_hub_id
from stub_server import serve


@pytest.fixture(scope="module")
def model(bert_backbone, pictures):
    return ogkd.fit(pictures, backbone=bert_backbone, method="gda", shots=3)


def test_readme_says_what_the_model_learned_from_and_no_path(model, tmp_path):
    model.save(tmp_path / "model")
    text = (tmp_path / "model" / README).read_text()
    assert text.startswith("---\nlibrary_name: ogkd\n")
    for name in model.class_names:
        assert f"| {name.replace('_', chr(92) + '_')} | 3 |" in text
    assert "Not calibrated" in text
    assert model.backbone.digest[:12] in text
    assert str(tmp_path) not in text
    model.save(tmp_path / "model")  # a model is replaced, its README with it
    assert (tmp_path / "model" / README).read_text() == text


def test_class_names_cannot_break_out_of_the_table(bert_backbone, pictures, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(pictures, data)
    for split in ("train", "test"):
        (data / split / "bright_spot").rename(data / split / "a|b`c")
    ogkd.fit(data, backbone=bert_backbone, method="gda", shots=2, out=tmp_path / "model")
    rows = [line for line in (tmp_path / "model" / README).read_text().splitlines() if "a" in line]
    assert "| a\\|b\\`c | 2 |" in rows


def test_model_goes_to_the_hub_and_comes_back(
    model, bert_backbone, pictures, tmp_path, monkeypatch
):
    uploaded = {}

    def create(self, repo_id, *, private, exist_ok):
        uploaded["private"] = private

    def upload(self, *, repo_id, folder_path, allow_patterns, commit_message):
        for path in folder_path.iterdir():
            assert path.name in allow_patterns
            uploaded[f"/{repo_id}/resolve/main/{path.name}"] = path.read_bytes()
        return type("Commit", (), {"commit_url": "https://the-hub/commit"})

    monkeypatch.setattr(HfApi, "create_repo", create)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    assert model.push_to_hub("some-one/kidneys") == "https://the-hub/commit"
    assert uploaded.pop("private") is True
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    with serve() as server:
        server.files = uploaded
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        again = ogkd.load("some-one/kidneys", backbone=bert_backbone)
        images = sorted(pictures.rglob("*.png"))[:3]
        np.testing.assert_allclose(again.predict_proba(images), model.predict_proba(images))
        with pytest.raises(ConfigError) as error:
            ogkd.load("some-one/nothing", backbone=bert_backbone)
        assert error.value.argument == "model"


def test_a_hub_that_refuses_is_one_sentence(model, monkeypatch):
    def refuse(*_, **__):
        raise OSError("403 Forbidden")

    monkeypatch.setattr(HfApi, "create_repo", refuse)
    with pytest.raises(ConfigError) as error:
        model.push_to_hub("some-one/kidneys")
    assert error.value.argument == "hub_id"


def test_a_missing_folder_is_still_called_one(tmp_path):
    with pytest.raises(ConfigError):
        ogkd.load(tmp_path / "nothing")


def test_readme_of_a_calibrated_model_says_how_often_it_was_right(model, tmp_path):
    model.save(tmp_path / "model")
    logits = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    labels, keys = logits.argmax(axis=1), [f"{number:016x}" for number in range(40)]
    calibration = Calibration.fit(model.task, logits, labels, keys, weights_sha256="")
    write_calibration(tmp_path / "model", model.card, calibration)
    text = (tmp_path / "model" / README).read_text()
    assert (
        "Calibrated on 40 images. Right on 40 of 40 images that it had not learned from (100 %)"
        in text
    )


def test_paths_of_this_machine_are_never_asked_for_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_hub_id("some-one/kidneys")
    for name in (
        Path("some-one/kidneys"),
        "kidneys",
        "./kidneys",
        "~/kidneys",
        "a/b/c",
        "/kidneys",
    ):
        assert not is_hub_id(name)
    (tmp_path / "some-one" / "kidneys").mkdir(parents=True)
    assert not is_hub_id("some-one/kidneys")
