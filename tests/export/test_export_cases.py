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
from ogkd.images import read_image
from ogkd.images.transforms import center_crop, normalise
from ogkd.model.card import PoolingCard
from ogkd.model.decide import Decider
from tiny_data import write_exams

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

SCRIPT = Path(__file__).parents[2] / "examples" / "onnx_predict.py"
EXAMPLE = runpy.run_path(str(SCRIPT), run_name="example")


POOLINGS = [
    Pooling(tau, 0.7, (0.3, -0.2, 0.1), normal, 0.4)
    for tau in (0.0, 0.5, 4.0, math.inf)
    for normal in ((), (1,), (0, 2), (0, 1, 2))
]


@pytest.mark.parametrize("pooling", POOLINGS, ids=str)
def test_the_example_pools_as_predictions_do(pooling):
    card = PoolingCard.of(pooling).model_dump() | {"normal": list(pooling.normal)}
    for count in (1, 2, 9):
        z = 5 * np.random.default_rng(count).normal(size=(count, 3))
        expected = pooling.logits(torch.from_numpy(z), torch.zeros(count, dtype=torch.long))[0]
        np.testing.assert_allclose(EXAMPLE["pool"](z, card), expected, atol=1e-6)


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
    assert ("probabilities" not in world.file.names) == joins
    assert joins == world.model.card.grouping.joins_images
    for decision in Decider(world.model).decide(world.cases[::3]):
        outputs = world.file.run(world.pixels(decision.case.images))
        logits = [seen.logits for seen in decision.images]
        np.testing.assert_allclose(outputs["logits"], logits, atol=1e-3)
        if joins:
            p = EXAMPLE["answer"](outputs["logits"], world.file.card)
        else:
            [p] = outputs["probabilities"]
        np.testing.assert_allclose(p, decision.probabilities, atol=1e-4)


def test_limits_of_the_file_give_the_deciders_answers(world):
    card, decider = world.file.card, Decider(world.model)
    limits = [np.array(limit) for limit in card["calibration"]["sets"]["least_probability"]]
    for decision in decider.decide(world.cases):
        p = np.array([decision.probabilities], np.float32)
        task = world.model.task
        assert task.answers(p, task.plausible(p, limits)) == [decision.answer]


def test_cases_without_fitted_poolings_are_pooled_as_the_decider_does(world, file_of, tmp_path):
    card = world.model.card.model_copy(update={"poolings": (), "cases": {"by": "exam"}})
    model = ogkd.Classifier(world.model.backbone, world.model.head, card)
    export_onnx(model, tmp_path / "plain.onnx")
    images = tuple(images_of(world.cases)[:4])
    [decision] = Decider(model).decide([replace(world.cases[0], images=images)])
    file = file_of((tmp_path / "plain.onnx").read_bytes())
    p = EXAMPLE["answer"](file.run(world.pixels(images))["logits"], file.card)
    np.testing.assert_allclose(p, decision.probabilities, atol=1e-4)


def test_the_example_script_answers_all_its_images_as_one_case(world, capsys):
    case = world.cases[0]
    assert EXAMPLE["main"](str(world.path), *map(str, case.images)) == 0
    [first] = capsys.readouterr().out.splitlines()
    [decision] = Decider(world.model).decide([case])
    shown = dict(cell.rsplit(" ", 1) for cell in first.split("\t")[1:])
    expected = dict(zip(world.model.class_names, decision.probabilities, strict=True))
    assert {name: float(p) for name, p in shown.items()} == pytest.approx(expected, abs=1e-4)
