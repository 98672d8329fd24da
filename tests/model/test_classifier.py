from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.utils.data import TensorDataset

import ogkd
from ogkd.data.case import Dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import BackboneError, ConfigError, DataError
from ogkd.images import ImageRef, read_image
from ogkd.model import card
from ogkd.model.classifier import place_for_model
from ogkd.model.familiarity import SupportFeatures
from tiny_backbones import make_clip
from tiny_data import CLASSES, FAST, case_of, edit_sealed, write_image


@pytest.fixture(scope="module")
def fitted(clip, data, tmp_path_factory):
    """A classifier; tests that change files work on a copy of its folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("models") / "m"
        return ogkd.fit(data, backbone=clip, method="ogkd", settings=FAST, out=out), out


@pytest.fixture
def folder(fitted, tmp_path):
    return shutil.copytree(fitted[1], tmp_path / "copy")


@pytest.fixture(scope="module")
def test_files(data):
    return sorted((data / "test").rglob("*.png"))


def test_a_saved_model_predicts_the_same_bits(fitted, test_files):
    model, out = fitted
    again = ogkd.load(out, device="cpu")
    assert again.class_names == CLASSES
    p = again.predict_proba(test_files)
    assert p.dtype == np.float32
    assert np.array_equal(p, model.predict_proba(test_files))
    np.testing.assert_allclose(p.sum(axis=1), 1.0, atol=1e-5)
    assert again.predict(test_files) == [CLASSES[row] for row in p.argmax(axis=1)]


def test_a_model_folder_is_small_and_holds_no_pickle_and_no_path(fitted, data, clip):
    _, out = fitted
    names = {path.name for path in out.iterdir()}
    files = {
        "README.md",
        "model.json",
        "weights.safetensors",
        "support.safetensors",
        "training.jsonl",
    }
    assert names == files
    assert (out / "weights.safetensors").stat().st_size < 1_000_000
    for name in ("model.json", "README.md"):
        text = (out / name).read_text()
        assert ".png" not in text
        assert str(data) not in text
        assert str(clip) not in text
    text = (out / "model.json").read_text()
    assert json.loads(text)["backbone"]["name"] == clip.name


def test_probabilities_are_the_softmax_of_scaled_cosines(fitted):
    model, out = fitted
    T = load_file(out / "weights.safetensors")["T"].double().numpy()
    v = np.random.default_rng(0).normal(size=(5, T.shape[1]))
    z = model.card.logit_scale * (v / np.linalg.norm(v, axis=1, keepdims=True)) @ T.T
    expected = np.exp(z - z.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    p = model.probabilities(torch.tensor(v, dtype=torch.float32))
    np.testing.assert_allclose(p, expected, atol=1e-4)
    with pytest.raises(ConfigError):
        model.probabilities(torch.full((1, T.shape[1]), torch.nan))


@pytest.mark.parametrize("batch_size", [1, 2, 32])
def test_decisions_come_in_order_and_say_what_failed(fitted, test_files, tmp_path, batch_size):
    model, _ = fitted
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    paths = [test_files[0], bad, test_files[1], test_files[0]]
    decisions = list(model.decide(paths, batch_size=batch_size))
    assert [decision.image for decision in decisions] == [ImageRef(path) for path in paths]
    assert [answer.probabilities is None for answer in decisions] == [False, True, False, False]
    assert "bad.png" in decisions[1].error
    wrong = read_image(test_files[0]) * 3.0  # named by its number
    for images, words in (
        ([tmp_path / "gone1", test_files[0], tmp_path / "gone2"], r"(?s)gone1.*gone2"),
        ([test_files[0], wrong], "Image 1 "),
        ([], "No image"),
        ({"empty": []}, "no image"),
    ):
        with pytest.raises(DataError, match=words):
            model.predict(images)
    expected = model.predict_proba([paths[0], paths[2], paths[3]])
    got = np.stack([decisions[row].probabilities for row in (0, 2, 3)])
    np.testing.assert_allclose(got, expected, atol=1e-5)


def test_an_image_has_the_same_probabilities_in_every_form(fitted, test_files):
    model, _ = fitted
    pixels = np.stack([read_image(file) for file in test_files])
    tensors = torch.tensor(pixels).permute(0, 3, 1, 2)
    labels = torch.arange(len(pixels))
    forms = {
        "bytes": [file.read_bytes() for file in test_files],
        "PIL images": [Image.fromarray(image) for image in pixels],
        "arrays": list(pixels),
        "batch": pixels,
        "shares": pixels / 255,
        "tensors": tensors,
        "pairs": list(zip(test_files, labels, strict=True)),
        "dataset": TensorDataset(tensors, labels),
        "dataset of cases": Dataset(tuple(case_of(f, 0) for f in test_files), OneOf(CLASSES)),
    }
    expected = model.predict_proba(test_files)
    for name, images in forms.items():
        np.testing.assert_array_equal(model.predict_proba(images), expected, err_msg=name)
    assert model.predict(str(test_files[0])) == model.predict(test_files[:1])
    single = model.predict_proba(pixels[0])
    np.testing.assert_array_equal(single, model.predict_proba(test_files[0]))
    assert single.shape == (1, 3)
    (shown,) = ogkd.explain(model, pixels[0])
    (same,) = ogkd.explain(model, test_files[0])
    np.testing.assert_array_equal(shown.grid, same.grid)


def test_a_stream_is_read_as_it_is_used(fitted):
    model, _ = fitted
    given = []

    def endless():
        while True:
            given.append(1)
            yield np.full((8, 8), len(given) % 256, np.uint8)

    decisions = model.decide(endless(), batch_size=4)
    assert len([next(decisions) for _ in range(10)]) == 10
    assert len(given) <= 20
    decisions.close()


def test_new_and_empty_folders_and_models_may_be_written(fitted, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    (folder / "training.jsonl").write_text("of another model")
    for target in (tmp_path / "a" / "new", tmp_path / "empty", folder):
        assert place_for_model(target) == target.resolve()
        fitted[0].save(target)
        assert ogkd.load(target).class_names == CLASSES
    assert ogkd.load(folder).history == fitted[0].history


def test_a_backbone_is_found_by_its_digest_beside_the_model_or_where_it_is_said_to_be(
    folder, clip, tmp_path, test_files, bert_backbone, monkeypatch
):
    expected = ogkd.load(folder).predict(test_files)  # known from the fit
    monkeypatch.setattr(card, "_places", lambda: tmp_path / "none")  # as on another machine
    with pytest.raises(BackboneError, match="say where it is") as error:
        ogkd.load(folder)
    assert error.value.argument == "backbone"
    assert ogkd.load(folder, backbone=clip).predict(test_files) == expected
    with pytest.raises(BackboneError, match="another backbone"):
        ogkd.load(folder, backbone=bert_backbone)
    make_clip(tmp_path / "clip", legacy=True)  # beside the model, but not the same
    with pytest.raises(BackboneError, match="another backbone"):
        ogkd.load(folder)
    shutil.rmtree(tmp_path / "clip")
    shutil.copytree(clip, tmp_path / "clip")
    assert ogkd.load(folder).predict(test_files) == expected


def test_the_support_images_are_kept_as_features_and_hashes(fitted, data):
    model, out = fitted
    again = ogkd.load(out)
    cases = ogkd.read_dataset(data).part("train")
    answers = list(model.decide([case.image for case in cases]))
    assert again.support.features.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(again.support.features, axis=1), 1, atol=1e-5)
    assert sorted(again.support.labels.tolist()) == sorted(case.target for case in cases)
    cosines = again.support.features @ np.stack([answer.features for answer in answers]).T
    np.testing.assert_allclose(cosines.max(axis=0), 1, atol=2e-3)  # half precision on disk
    keys = again.card.support_images
    assert len(keys) == len(set(keys)) == len(cases)
    assert all(len(key) == 16 and int(key, 16) >= 0 for key in keys)


def test_only_a_model_is_ever_replaced(fitted, folder, tmp_path, monkeypatch):
    photos = tmp_path / "photos"
    image = write_image(photos / "holiday.png")
    other = write_image(folder / "images" / "a.png")  # in a model folder
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for target in (photos, tmp_path, image, folder, "."):
        with pytest.raises(ConfigError) as error:
            fitted[0].save(target)
        assert error.value.argument == "out"
    assert image.is_file()
    assert other.is_file()


def replaced(name, **tensors):
    """Write other tensors into a file of the folder; `name` is its name without its end."""

    def change(folder):
        save_file(tensors, folder / f"{name}.safetensors")

    return change


def unsealed(change):
    """The same where the card no longer has the digests of the files."""

    def both(folder):
        change(folder)
        digests = {"weights_sha256": None, "support_sha256": None}
        edit_sealed(folder / "model.json", lambda card: card.update(digests))

    return both


def with_value(value):
    def change(folder):
        tensors = load_file(folder / "weights.safetensors")
        tensors["T"].view(-1)[0] = value
        save_file(tensors, folder / "weights.safetensors")

    return change


def other_support(folder):
    support = SupportFeatures.read(folder / "support.safetensors", OneOf(CLASSES), width=20)
    other = SupportFeatures(support.features[::-1], support.labels)
    (folder / "support.safetensors").write_bytes(other.to_bytes())


LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: (folder / "model.json").unlink(),
        lambda folder: (folder / "weights.safetensors").unlink(),
        with_value(0.5),
        unsealed(with_value(math.nan)),
        unsealed(replaced("weights", T=torch.zeros(2, 3))),
        unsealed(replaced("weights", t=torch.zeros(3, 20))),
        other_support,
        unsealed(replaced("support", features=torch.ones(2, 3), labels=LABELS)),
        unsealed(replaced("support", features=torch.ones(2, 20), labels=LABELS + 8)),
        unsealed(replaced("support", features=torch.full((2, 20), torch.nan), labels=LABELS)),
    ],
)
def test_a_folder_that_was_changed_is_refused(folder, change):
    assert ogkd.load(folder) is not None
    change(folder)
    with pytest.raises(ConfigError):
        ogkd.load(folder)
