"""What is refused, and that nothing is left behind."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest

from ogkd.errors import ConfigError, StorageError
from ogkd.export import export_onnx, write
from ogkd.model.classifier import Classifier

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def refuse(model, tmp_path, monkeypatch):
    """Export something changed, which raises an error for this argument and leaves no file."""

    def run(path=None, *, argument=None, kind=ConfigError, graph=None, options=None, **changes):
        if graph is not None:
            monkeypatch.setattr(write, "build", lambda *_, **__: onnx.load(graph))
        parts = {"backbone": model.backbone, "head": model.head, "card": model.card, **changes}
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind) as raised:
            export_onnx(Classifier(**parts), path or tmp_path / "out.onnx", **(options or {}))
        assert raised.value.argument == argument
        assert sorted(tmp_path.rglob("*")) == before

    return run


def test_a_graph_that_differs_from_torch_is_not_written(refuse, exported, tmp_path):
    # The stored graph has a temperature that this classifier has not.
    refuse(graph=exported.path, argument="tolerance")
    old = tmp_path / "old.onnx"
    old.write_bytes(b"what was there")
    refuse(old, graph=exported.path, argument="tolerance")
    assert old.read_bytes() == b"what was there"


def test_a_graph_that_gives_nan_is_not_written(refuse, exported, tmp_path):
    broken = onnx.load(exported.path)
    for tensor in broken.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.raw_data = np.full(len(tensor.raw_data) // 4, np.nan, np.float32).tobytes()
    path = tmp_path / "broken"
    path.write_bytes(broken.SerializeToString())
    refuse(graph=path, argument="tolerance")


def test_models_that_cannot_be_exported_are_refused(refuse, model, heads):
    other = copy.copy(model.backbone)
    other.engine = "bf16"
    refuse(argument="engine", backbone=other)
    refuse(head=heads["cocoop"])
    refuse(argument="max_risk", options={"max_risk": 0.1})  # not calibrated


def test_a_threshold_needs_a_calibration_of_the_same_encoder(refuse, model):
    other = model.calibration.model_copy(update={"engine": "bf16"})
    refuse(argument="max_risk", calibration=other, options={"max_risk": 0.5})


def test_invalid_paths_are_refused(refuse, tmp_path):
    refuse(tmp_path, argument="onnx")
    refuse(tmp_path / "model.json", argument="onnx")
    (tmp_path / "file").write_text("")
    refuse(tmp_path / "file" / "m.onnx", kind=StorageError, argument="out")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_a_missing_package_is_refused(refuse, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    refuse()
