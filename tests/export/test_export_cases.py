"""The exported file answers as the Decider does, for both tasks and one or several images."""

from __future__ import annotations

import math
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ogkd
from ogkd.core.pooling import Pooling
from ogkd.data.case import images_of
from ogkd.evaluation import predict_labelled
from ogkd.evaluation.calibrate import calibrate
from ogkd.export import export_onnx
from ogkd.export.graph import PooledQuestion
from ogkd.images import read_image
from ogkd.images.transforms import center_crop, normalise
from ogkd.model.card import PoolingCard
from ogkd.model.decide import Decider
from tiny_data import write_exams

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
POOLINGS = [
    Pooling(tau, 0.7, (0.3, -0.2, 0.1), normal, 0.4)
    for tau in (0.0, 0.5, 4.0, math.inf)
    for normal in ((), (1,), (0, 2), (0, 1, 2))
]


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_the_graph_pools_as_predictions_do(pooling):
    rng = torch.Generator().manual_seed(0)
    module = PooledQuestion(pooling, 3)
    for count in (1, 2, 9):
        for _ in range(5):
            z = 5 * torch.randn(count, 3, generator=rng)
            pooled, weights = module(z)
            expected = pooling.logits(z, torch.zeros(count, dtype=torch.long))
            np.testing.assert_allclose(pooled, expected, atol=1e-4)
            each = [pooling.weights(z, label).numpy() for label in range(3)]
            np.testing.assert_allclose(weights, each, atol=1e-4)


@dataclass(frozen=True)
class World:
    model: ogkd.Classifier
    cases: list[ogkd.data.case.Case]
    path: Path
    file: Any

    def pixels(self, images):
        prep = self.model.backbone.preprocessing
        return normalise([center_crop(read_image(image), prep) for image in images], prep).numpy()


@pytest.fixture(scope="module", params=[(f, n) for f in (False, True) for n in (1, 3)], ids=str)
def world(request, bert_backbone, file_of, tmp_path_factory):
    """Of either task; of exams of three images or of single ones."""
    findings, images = request.param
    folder = tmp_path_factory.mktemp("world")
    table = write_exams(
        folder, per_class=8, images=images, splits="train,val,test", findings=findings
    )
    options = {"cases": "exam"} if images > 1 else {}
    options |= {"findings": ["spot", "streak"]} if findings else {"normal": ["normal"]}
    model = ogkd.fit(table, backbone=bert_backbone, **options)
    if images > 1:  # poolings that surely matter
        bias = [(0.2, -0.1), (-0.3, 0.1)]
        normal = model.task.question_normal()
        poolings = [Pooling(2.0, 0.6, b, n, 0.3) for b, n in zip(bias, normal, strict=False)]
        cards = tuple(map(PoolingCard.of, poolings))
        card = model.card.model_copy(update={"poolings": cards})
        model = ogkd.Classifier(model.backbone, model.head, card)
    model.calibration = calibrate(model, table)
    cases = predict_labelled(model, table).cases
    path = folder / "model.onnx"
    exported = export_onnx(model, path, images=images_of(cases))
    assert exported.largest_difference <= 1e-4
    return World(model, cases, path, file_of(path.read_bytes()))


def test_onnxruntime_answers_cases_as_the_decider_does(world):
    joins = world.file.card["cases"]["joins_images"]
    assert ("weights" in world.file.names) == joins == world.model.card.grouping.joins_images
    for decision in Decider(world.model).decide(world.cases[::3]):
        outputs = world.file.run(world.pixels(decision.case.images))
        np.testing.assert_allclose(outputs["probabilities"][0], decision.probabilities, atol=1e-4)
        logits = [seen.logits for seen in decision.images]
        np.testing.assert_allclose(outputs["logits"], logits, atol=1e-3)
        if joins:
            weights = [seen.weight for seen in decision.images]
            np.testing.assert_allclose(outputs["weights"], weights, atol=1e-3)


def test_limits_of_the_file_give_the_deciders_answers(world):
    card, decider = world.file.card, Decider(world.model)
    limits = [np.array(limit) for limit in card["calibration"]["sets"]["least_probability"]]
    for decision in decider.decide(world.cases):
        p = np.array([decision.probabilities], np.float32)
        task = world.model.task
        assert task.answers(p, task.plausible(p, limits)) == [decision.answer]


def test_a_large_case_can_be_pooled_outside_as_the_metadata_says(world):
    card = world.file.card
    if not card["cases"]["joins_images"]:
        assert "poolings" not in card["cases"]
        return
    batch = world.pixels(images_of(world.cases[:2]))
    whole = world.file.run(batch)["probabilities"]
    parts = [world.file.run(batch[k : k + 2])["logits"] for k in range(0, 6, 2)]
    logits = np.concatenate(parts)
    p = {}
    for question, pooling in zip(card["questions"], card["cases"]["poolings"], strict=True):
        names = card["class_names"]
        columns = [
            logits[:, names.index(n)] if n in names else 0 * logits[:, 0] for n in question["names"]
        ]
        z = np.stack(columns, axis=1)
        r = z - np.log(np.exp(z[:, pooling["normal"]]).sum(axis=1, keepdims=True))
        s = pooling["tau"] * np.log(np.exp(r / pooling["tau"]).mean(axis=0))
        u = (1 - 1 / len(r)) * r.mean(axis=0)
        scores = pooling["heat"] * s - pooling["mean_weight"] * u + pooling["bias"]
        scores = scores / question["temperature"] + question["shift"]
        shares = np.exp(scores) / np.exp(scores).sum()
        p |= dict(zip(question["names"], shares, strict=True))
    np.testing.assert_allclose([p[name] for name in card["class_names"]], whole[0], atol=1e-4)


def test_cases_without_fitted_poolings_are_pooled_as_the_decider_does(world, file_of, tmp_path):
    card = world.model.card.model_copy(update={"poolings": (), "cases": {"by": "exam"}})
    model = ogkd.Classifier(world.model.backbone, world.model.head, card)
    export_onnx(model, tmp_path / "plain.onnx")
    images = tuple(images_of(world.cases)[:4])
    [decision] = Decider(model).decide([replace(world.cases[0], images=images)])
    outputs = file_of((tmp_path / "plain.onnx").read_bytes()).run(world.pixels(images))
    np.testing.assert_allclose(outputs["probabilities"][0], decision.probabilities, atol=1e-4)


def test_the_example_script_answers_all_its_images_as_one_case(world, capsys):
    script = runpy.run_path(str(EXAMPLE), run_name="example")
    case = world.cases[0]
    assert script["main"](str(world.path), *map(str, case.images)) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    [decision] = Decider(world.model).decide([case])
    shown = dict(cell.rsplit(" ", 1) for cell in first.split("\t")[1:])
    expected = dict(zip(world.model.class_names, decision.probabilities, strict=True))
    assert {name: float(p) for name, p in shown.items()} == pytest.approx(expected, abs=1e-4)
    assert len(rest) == (len(case.images) if world.file.card["cases"]["joins_images"] else 0)
