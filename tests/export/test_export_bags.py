"""A model of bags as ONNX: one bag in, one answer out, and the weights of its pictures."""

from __future__ import annotations

import json
import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from ogkd.datasets.manifest import by_bag
from ogkd.model.bags import OpenBag

import ogkd
from ogkd.core.pooling import Pooling
from ogkd.datasets.read import read_manifest
from ogkd.export import export_onnx
from ogkd.export.graph import PooledBag, quiet_exporter
from ogkd.images import read_image
from ogkd.images.transforms import center_crop, normalise
from tiny_data import write_exams

onnxruntime = pytest.importorskip("onnxruntime")
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
    module = PooledBag(pooling, 3)
    for count in (1, 2, 9):
        for _ in range(5):
            z = 5 * torch.randn(count, 3, generator=rng)
            bag = OpenBag("bag", logits=list(z.numpy()))
            pooled, weights = module(z)
            expected = bag.pooled(pooling)
            np.testing.assert_allclose(pooled.numpy(), expected, atol=1e-4)
            label = int(expected.argmax())
            np.testing.assert_allclose(weights.numpy(), bag.weights(pooling, label), atol=1e-4)


@pytest.mark.parametrize("tau", [0.0, 0.5, math.inf])
@pytest.mark.parametrize("normal", [(), (0, 2)])
def test_every_kind_of_pooling_is_exported(tau, normal):
    module = PooledBag(Pooling(tau, 0.7, (0.3, -0.2, 0.1), normal, 0.4), 3).eval()
    with quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            module,
            (torch.zeros(2, 3),),
            dynamo=True,
            input_names=["z"],
            dynamic_shapes=({0: torch.export.Dim("N")},),
            verbose=False,
        )
    content = program.model_proto.SerializeToString()
    graph = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    rng = torch.Generator().manual_seed(1)
    for count in (1, 5):
        z = 3 * torch.randn(count, 3, generator=rng)
        for output, expected in zip(graph.run(None, {"z": z.numpy()}), module(z), strict=True):
            np.testing.assert_allclose(output, expected.numpy(), atol=1e-5)


@pytest.fixture(scope="module")
def exams(tmp_path_factory):
    return write_exams(tmp_path_factory.mktemp("exams"), per_class=4, splits="train,test")


@pytest.fixture(scope="module")
def bag_model(exams, bert_backbone, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        model = ogkd.fit(exams, backbone=bert_backbone, bags="exam", normal=["normal"])
    bags = model.card.bags.model_copy(
        update={"tau": 2.0, "heat": 0.6, "usual": 0.3, "bias": (0.2, -0.1)}
    )
    model.card = model.card.model_copy(update={"bags": bags})
    return ogkd.Classifier(model.backbone, model.head, model.card)


@pytest.fixture(scope="module")
def graph(bag_model, exams, tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "bags.onnx"
    files = sorted((exams.parent / "test").glob("*.png"))
    exported = export_onnx(bag_model, path, images=files)
    assert (exported.images, exported.phantoms) == (32, 0)
    assert exported.largest_difference <= 1e-4
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def pixels(model, items):
    prep = model.backbone.preprocessing
    return normalise([center_crop(read_image(i.image), prep) for i in items], prep).numpy()


def test_onnxruntime_answers_a_bag_as_predict_does(graph, bag_model, exams):
    items = [item for item in read_manifest(exams, bags="exam").items if item.split == "test"]
    for name, members in list(by_bag(items).items())[::3]:
        [said] = bag_model.decide({name: [item.image for item in members]})
        p, weights, z = graph.run(
            ["probabilities", "weights", "logits"], {"pixels": pixels(bag_model, members)}
        )
        assert (p.shape, weights.shape, z.shape) == ((1, 2), (4,), (4, 2))
        np.testing.assert_allclose(p[0], said.probabilities, atol=1e-4)
        best = weights.argmax()
        assert members[best].image == said.image
        assert weights[best] == pytest.approx(said.decided_by[0].share, abs=1e-3)


def test_a_large_bag_can_be_pooled_outside_as_the_metadata_says(graph, bag_model, exams):
    card = json.loads(graph.get_modelmeta().custom_metadata_map["ogkd"])
    bags = card["bags"]
    assert (bags["by"], bags["tau"], bags["normal"]) == ("exam", 2.0, [0])
    batch = pixels(bag_model, read_manifest(exams, bags="exam").items[:6])
    (whole,) = graph.run(["probabilities"], {"pixels": batch})
    parts = [graph.run(["logits"], {"pixels": batch[k : k + 2]})[0] for k in range(0, 6, 2)]
    z = np.concatenate(parts)
    r = z - np.log(np.exp(z[:, bags["normal"]]).sum(axis=1, keepdims=True))
    s = bags["tau"] * np.log(np.exp(r / bags["tau"]).mean(axis=0))
    u = (1 - 1 / len(r)) * r.mean(axis=0)
    scores = (bags["heat"] * s - bags["usual"] * u + bags["bias"]) / card["temperature"]
    p = np.exp(scores) / np.exp(scores).sum()
    np.testing.assert_allclose(p, whole[0], atol=1e-4)


def test_the_example_script_answers_all_its_images_as_one_bag(
    graph, bag_model, exams, tmp_path, capsys
):
    script = runpy.run_path(str(EXAMPLE), run_name="example")
    files = sorted((exams.parent / "test").glob("spot-1-*.png"))
    assert script["main"](graph._model_path, *map(str, files)) == 0
    answer, *shares = capsys.readouterr().out.splitlines()
    [said] = bag_model.decide({"exam": files})
    assert answer.startswith(f"4 images\t{said.prediction} {said.probability:.4f}"[:-1])
    best = max(shares, key=lambda line: float(line.rpartition(" ")[2]))
    assert best.startswith(str(said.image))
    assert len(shares) == 4
