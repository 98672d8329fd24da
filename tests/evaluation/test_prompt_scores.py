from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone
from ogkd.data.case import Dataset
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.evaluation.prompts import score_prompts, zero_shot_accuracy
from ogkd.features.store import FeatureStore
from ogkd.prompts.bank import SINGLE
from stub_server import texts
from tiny_data import case_of


class Known(Backbone):
    """Texts have the features a test gives them; `pieces` are words."""

    name = "known"
    context_length, leading_tokens, trailing_tokens = 6, 1, 1

    def __init__(self, features):
        self.features = features

    def encode_texts(self, texts, *, batch_size=64):
        return normalize(torch.stack([torch.tensor(self.features[text]) for text in texts]), dim=-1)

    def pieces(self, text):
        return list(range(len(text.split())))

    def encode_images(self, pixels, *, patches=True):
        raise NotImplementedError

    def pack(self, pieces):
        raise NotImplementedError

    def embed(self, tokens):
        raise NotImplementedError

    def encode_text(self, embeddings, tokens, *, dropout=None):
        raise NotImplementedError


def plane(*degrees):
    return [
        [float(np.cos(np.radians(angle))), float(np.sin(np.radians(angle)))] for angle in degrees
    ]


def test_a_text_far_from_its_class_is_an_outlier_and_the_z_scores_are_standardised():
    angles = [*np.linspace(-4, 4, 19), 60.0]
    features = {f"a{i}": vector for i, vector in enumerate(plane(*angles))}
    features |= {
        f"b{i}": vector for i, vector in enumerate(plane(*(angle + 90 for angle in angles)))
    }
    bank = {"a": [f"a{i}" for i in range(20)], "b": [f"b{i}" for i in range(20)]}
    scores, findings = score_prompts(Known(features), bank)
    z = np.array([score.z for score in scores if score.class_name == "a"])
    assert z.mean() == pytest.approx(0, abs=1e-3)
    assert z.std(ddof=1) == pytest.approx(1, abs=1e-3)
    assert z.argmin() == 19
    outliers = {found.class_name: found.texts for found in findings if found.rule == "outlier"}
    assert outliers == {"a": ("a19",), "b": ("b19",)}
    nearest = {score.text: score.nearest for score in scores}
    assert nearest["a19"] == "b"  # at 60 degrees, nearer to 90 than to 0
    assert nearest["a0"] == "a"


def test_texts_nearer_to_another_class_and_texts_too_long_are_reported():
    features = {f"a{i}": vector for i, vector in enumerate(plane(0, 1, 2, 80, 85))}
    features |= {"one two three four five": plane(90)[0], "b1": plane(91)[0]}
    bank = {"a": [f"a{i}" for i in range(5)], "b": ["one two three four five", "b1"]}
    findings = {(found.rule, found.class_name) for found in score_prompts(Known(features), bank)[1]}
    assert findings == {("nearest class", "a"), ("tokens", "b")}


def test_a_class_of_one_text_has_no_outlier():
    scores, findings = score_prompts(
        Known({"a": [1.0, 0.0], "b": [0.0, 1.0]}), {"a": ["a"], "b": ["b"]}
    )
    assert [score.z for score in scores] == [0.0, 0.0]
    assert findings == []


def test_accuracies_are_those_of_plain_arithmetic(bert_backbone, pictures):
    dataset = read_dataset(pictures)
    bank = {name: texts(name, 7, seed=3) for name in dataset.names}
    result = zero_shot_accuracy(bert_backbone, bank, dataset, tau=1.0)
    cases = dataset.part("train")
    assert result["images"] == len(cases) == 18
    V = FeatureStore(bert_backbone).get([case.image for case in cases]).globals[:, 0].numpy()
    y = np.array([case.target for case in cases])
    E = np.stack([bert_backbone.encode_texts(bank[name]).numpy() for name in dataset.names])
    s = np.einsum("bd,cnd->bcn", V, E).max(axis=1).mean(axis=0)
    keep = np.abs(s - s.mean()) <= s.std(ddof=1)
    one = bert_backbone.encode_texts([SINGLE.format(name) for name in dataset.names]).numpy()

    def accuracy(T):
        T = T / np.linalg.norm(T, axis=-1, keepdims=True)
        return float(((V @ T.T).argmax(axis=1) == y).mean())

    assert result["accuracy"]["single"] == pytest.approx(accuracy(one))
    assert result["accuracy"]["ensemble"] == pytest.approx(accuracy(E.mean(axis=1)))
    assert result["accuracy"]["selective"] == pytest.approx(accuracy(E[:, keep].mean(axis=1)))
    assert 0 < keep.sum() < 7
    assert result["kept"] == pytest.approx(keep.mean())


def test_the_images_that_prompts_are_selected_on_may_be_others(bert_backbone, pictures):
    dataset = read_dataset(pictures)
    bank = {name: texts(name, 7, seed=3) for name in dataset.names}
    on_train = zero_shot_accuracy(
        bert_backbone, bank, dataset, splits=["test"], select_on=["train"]
    )
    assert on_train["images"] == 12
    kept = zero_shot_accuracy(bert_backbone, bank, dataset)["kept"]
    assert on_train["kept"] == kept


def test_data_without_the_split_is_refused(bert_backbone, pictures):
    bank = {"bright spot": ["x"]}
    with pytest.raises(DataError) as error:
        zero_shot_accuracy(bert_backbone, bank, read_dataset(pictures), splits=["val"])
    assert error.value.argument == "split"


def test_data_without_splits_is_judged_as_a_whole(bert_backbone, pictures):
    dataset = read_dataset(pictures)
    plain = dataset.map(lambda case: case_of(case.image, case.target))
    bank = {name: [name] for name in dataset.names}
    result = zero_shot_accuracy(bert_backbone, bank, plain)
    assert result["images"] == 30


def test_missing_files_are_named(bert_backbone, pictures):
    cases = (case_of(Path("gone.png"), 0), case_of(Path("lost.png"), 1))
    dataset = Dataset(cases, OneOf(("a", "b")))
    with pytest.raises(DataError, match=r"gone\.png"):
        zero_shot_accuracy(bert_backbone, {"a": ["x"]}, dataset)
