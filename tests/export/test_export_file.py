"""What the exported file answers and says, and what is refused."""

from __future__ import annotations

import copy
import getpass
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.backbones import load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.errors import ConfigError, StorageError
from ogkd.export import export_onnx, write
from ogkd.export.graph import build
from ogkd.export.metadata import file_metadata
from ogkd.features.views import FixedViews
from ogkd.methods import METHODS, Support, TextSide, make_method
from ogkd.methods.heads import Head, LinearHead
from ogkd.model.classifier import Classifier
from tiny_backbones import make_siglip
from tiny_data import CLASSES
from tiny_images import png

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parents[2] / "examples" / "onnx_predict.py"


def changed(model, **changes):
    parts = {"backbone": model.backbone, "head": model.head, "card": model.card, **changes}
    return Classifier(**parts)


def test_the_file_describes_itself(exported, model, file_of):
    card = file_of(exported.path.read_bytes()).card
    prep = model.backbone.preprocessing
    assert card["class_names"] == list(CLASSES)
    shape = ["N", 3, 32, 32]
    expected = {"name": "pixels", "type": "float32", "shape": shape, "normalised": True}
    assert card["input"] == expected
    shown = card["preprocessing"]
    assert (shown["size"], shown["resize"], shown["interpolation"]) == (32, "shortest", "bicubic")
    assert (shown["mean"], shown["std"]) == (list(prep.mean), list(prep.std))
    assert card["backbone"] == {"name": "secret-clip", "digest": model.backbone.digest}
    assert (card["method"], card["asks"]) == ("gda", "classes")
    assert [question["temperature"] for question in card["questions"]] == [2.5]
    assert card["check"]["largest_difference"] == exported.largest_difference
    assert "not for autonomous clinical use" in card["caution"]


def test_sets_and_threshold_of_the_file_are_the_calibrations_own(exported, model, file_of):
    noted = file_of(exported.path.read_bytes()).card["calibration"]
    p = np.random.default_rng(0).dirichlet([1.0, 1.0, 1.0], 200).astype(np.float32)
    least = noted["sets"]["least_probability"]
    limits = model.calibration.limits(noted["sets"]["coverage"])
    expected = model.task.plausible(p, limits)
    assert np.array_equal(p >= np.array(least[0]), expected)
    assert 0 < expected.mean() < 1
    assert noted["abstain"]["below"] == model.calibration.questions[0].threshold(0.5)
    plain = file_metadata(changed(model))
    assert (plain["questions"][0]["temperature"], plain["calibration"]) == (1.0, None)


@pytest.mark.parametrize(("engine", "kept"), [(None, True), ("torch", True), ("bf16", False)])
def test_promises_made_with_another_engine_are_left_out(model, engine, kept):
    made = model.calibration.model_copy(update={"engine": engine})
    noted = file_metadata(changed(model, calibration=made))["calibration"]
    assert (noted["sets"] is not None, "note" not in noted) == (kept, kept)


def test_nothing_in_the_file_tells_where_it_was_made(exported, folder, files):
    model = onnx.load(exported.path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")  # weights may hold any bytes
    content = model.SerializeToString()
    words = [".py", "site-packages", str(folder), str(folder.parent), os.sep + "home"]
    words += [file.name for file in files]
    words += [os.sep + getpass.getuser() + os.sep, os.sep + "tmp" + os.sep]
    assert [word for word in words if word.encode() in content] == []
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


def test_the_example_agrees_without_torch_and_ogkd_and_goes_on_after_a_bad_file(
    exported, model, files, tmp_path
):
    bad = png(tmp_path / "deep.png", np.full((9, 9, 3), 4000, np.uint16))
    block = (
        "import runpy, sys; sys.modules.update(ogkd=None, torch=None, onnx=None); "
        f"sys.argv = sys.argv[1:]; runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    )
    words = map(str, [sys.executable, "-c", block, EXAMPLE, exported.path, bad, *files])
    done = subprocess.run(list(words), capture_output=True, text=True)
    assert done.returncode == 1
    assert f"{bad} is not read: its 16-bit colours" in done.stderr
    rows = []
    for line, file in zip(done.stdout.splitlines(), files, strict=True):
        path, *ranked = line.split("\t")
        assert path == str(file)
        pairs = [entry.rsplit(" ", 1) for entry in ranked]
        shares = [float(share) for _, share in pairs]
        assert shares == sorted(shares, reverse=True)
        rows.append([float(dict(pairs)[name]) for name in CLASSES])
    np.testing.assert_allclose(rows, model.predict_proba(files), atol=1e-4)


class Together(Head):
    """All heads in one, so that one export tells about every method."""

    def __init__(self, heads):
        self.heads = heads

    @property
    def shape(self):
        return sum(head.shape[0] for head in self.heads), self.heads[0].shape[1]

    def logits(self, features):
        return torch.cat([head.logits(features) for head in self.heads], dim=-1)

    def tensors(self):
        return {}


@pytest.fixture(scope="module")
def heads(bert_backbone):
    """A head of every method, fitted on random features."""
    rng = torch.Generator().manual_seed(0)
    patches = bert_backbone.patch_grid[0] * bert_backbone.patch_grid[1]

    def unit(*shape):
        return normalize(torch.randn(*shape, generator=rng), dim=-1)

    d, labels = bert_backbone.embed_dim, torch.arange(3).repeat_interleave(3)
    views = FixedViews(ImageFeatures(unit(9, 1, d), unit(9, 1, patches, d).half()))
    support = Support(views, labels, (unit(6, d), torch.arange(3).repeat(2)))
    names = ("cyst", "stone", "tumor")
    prompts = tuple((f"a {name}", f"one bright {name}", f"no {name}") for name in names)
    text, fitted = TextSide(bert_backbone, names, prompts), {}
    for name in sorted(METHODS):
        fast = {"train.epochs": 1} if METHODS[name].needs_training else {}
        method = make_method(name, settings=fast)
        given = support if method.needs_images else None
        if method.needs_pixels:
            size = bert_backbone.preprocessing.size
            pixels = torch.randn(9, 1, 3, size, size, generator=rng)
            given = Support(FixedViews(ImageFeatures(pixels)), labels)
        fitted[name] = method.fit(given, text, seed=1)
    return fitted


@pytest.mark.parametrize("tower", ["all methods", "siglip"])
def test_every_tower_and_every_method_but_cocoop_is_exported(
    heads, bert_backbone, model, file_of, tmp_path, tower
):
    usable = [head for head in heads.values() if head.export_error is None]
    assert [name for name, head in heads.items() if head.export_error] == ["cocoop"]
    backbone, head = bert_backbone, Together(usable)
    if tower == "siglip":
        make_siglip(tmp_path / "siglip")
        backbone = load_backbone(tmp_path / "siglip", device="cpu")
        W = torch.randn(3, backbone.embed_dim, generator=torch.Generator().manual_seed(2))
        head = LinearHead(4 * W, torch.zeros(3))
    graph = file_of(build(changed(model, backbone=backbone, head=head)).SerializeToString())
    size = backbone.preprocessing.size
    pixels = torch.randn(3, 3, size, size, generator=torch.Generator().manual_seed(1))
    expected = head.logits(backbone.encode_images(pixels).globals).numpy()
    tolerance = 1e-4 * max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(graph.run(pixels)["logits"], expected, atol=tolerance)


@pytest.fixture
def refuse(model, tmp_path, monkeypatch):
    """Export something changed, which raises an error for this argument and leaves no file."""

    def run(argument, path=None, *, kind=ConfigError, graph=None, max_risk=None, **changes):
        if graph is not None:
            monkeypatch.setattr(write, "build", lambda *_: graph)
        before, target = sorted(tmp_path.rglob("*")), path or tmp_path / "out.onnx"
        with pytest.raises(kind) as raised:
            export_onnx(changed(model, **changes), target, max_risk=max_risk)
        assert raised.value.argument == argument
        assert sorted(tmp_path.rglob("*")) == before

    return run


def test_a_graph_that_differs_from_torch_or_gives_nan_is_not_written(refuse, exported, tmp_path):
    # The stored graph has a temperature that this classifier has not.
    refuse("tolerance", graph=onnx.load(exported.path))
    old = tmp_path / "old.onnx"
    old.write_bytes(b"what was there")
    refuse("tolerance", old, graph=onnx.load(exported.path))
    assert old.read_bytes() == b"what was there"
    broken = onnx.load(exported.path)
    for tensor in broken.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.raw_data = np.full(len(tensor.raw_data) // 4, np.nan, np.float32).tobytes()
    refuse("tolerance", graph=broken)
    refuse(None, graph=onnx.ModelProto())  # one that cannot run


def test_models_and_paths_that_cannot_be_exported_are_refused(
    refuse, model, heads, tmp_path, monkeypatch
):
    other = copy.copy(model.backbone)
    other.engine = "bf16"
    refuse("engine", backbone=other)
    refuse(None, head=heads["cocoop"])
    refuse("max_risk", max_risk=0.1)  # not calibrated
    calibration = model.calibration.model_copy(update={"engine": "bf16"})
    refuse("max_risk", calibration=calibration, max_risk=0.5)
    refuse("onnx", tmp_path)
    refuse("onnx", tmp_path / "model.json")
    (tmp_path / "file").write_text("")
    refuse("out", tmp_path / "file" / "m.onnx", kind=StorageError)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    refuse(None)
