"""What is refused, and that nothing is left behind."""

from __future__ import annotations

import copy
import sys

import numpy as np
import pytest
import torch

from ogkd.errors import ConfigError, StorageError
from ogkd.export import export_onnx, write
from ogkd.methods.heads import LinearHead
from ogkd.model.classifier import Classifier

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


@pytest.fixture
def refuse(model, tmp_path, monkeypatch):
    """Export something changed; the message, once it is sure that no file is there."""

    def run(path=None, match="", *, kind=ConfigError, graph=None, options=None, **changes):
        if graph is not None:
            monkeypatch.setattr(write, "build", lambda *_, **__: onnx.load(graph))
        parts = {"backbone": model.backbone, "head": model.head, "card": model.card, **changes}
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(kind, match=match):
            export_onnx(Classifier(**parts), path or tmp_path / "out.onnx", **(options or {}))
        assert sorted(tmp_path.rglob("*")) == before

    return run


def test_a_graph_that_differs_from_torch_is_not_left(refuse, exported, model, tmp_path):
    # The stored graph has a temperature that this classifier has not.
    refuse(match="differs from torch by .* Nothing was written", graph=exported.path)
    old = tmp_path / "old.onnx"
    old.write_bytes(b"what was there")
    refuse(old, match="differs from torch", graph=exported.path)
    assert old.read_bytes() == b"what was there"


def test_a_graph_that_gives_no_number_is_not_left(refuse, exported, tmp_path):
    broken = onnx.load(exported.path)
    for tensor in broken.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            tensor.raw_data = np.full(len(tensor.raw_data) // 4, np.nan, np.float32).tobytes()
    path = tmp_path / "broken"
    path.write_bytes(broken.SerializeToString())
    refuse(match="differs from torch by nan", graph=path)


def test_models_that_cannot_be_exported_are_refused(refuse, model, heads):
    other = copy.copy(model.backbone)
    other.engine = "int8"
    refuse(match='engine="torch"', backbone=other)
    moved = copy.copy(model.backbone)
    moved.device = torch.device("meta")
    refuse(match='device="cpu"', backbone=moved)
    refuse(match="cannot be exported.*new class texts for every image", head=heads["cocoop"])
    holes = LinearHead(torch.full((3, model.backbone.embed_dim), torch.nan), torch.zeros(3))
    refuse(match=r"not finite \(W\)", head=holes)
    refuse(match="max_risk needs a calibrated model", options={"max_risk": 0.1})
    refuse(match="1 labels for 0 images", options={"labels": [0]})


def test_a_threshold_is_of_the_encoder_that_it_was_found_with(refuse, model):
    for calibration in (None, model.calibration):
        options = {"int8": True, "max_risk": 0.5}
        match = "Export without int8; or leave out max_risk"
        refuse(match=match, calibration=calibration, options=options)
    other = model.calibration.model_copy(update={"engine": "int8"})
    match = "Calibrate again with the engine torch.* leave out max_risk"
    refuse(match=match, calibration=other, options={"max_risk": 0.5})


def test_places_that_cannot_be_written_are_refused(refuse, tmp_path):
    refuse(tmp_path, match="is a folder")
    refuse(tmp_path / "model.json", match=r"must end in \.onnx")
    (tmp_path / "file").write_text("")
    refuse(tmp_path / "file" / "m.onnx", kind=StorageError, match="a file is where a folder")


@pytest.mark.parametrize("name", ["onnx", "onnxruntime", "onnxscript"])
def test_without_the_extra_the_message_says_how_to_get_it(refuse, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    refuse(match=rf'needs the package {name}, .* pip install "ogkd\[onnx\]"')
