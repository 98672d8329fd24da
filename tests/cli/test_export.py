from __future__ import annotations

import numpy as np
import pytest

import ogkd as library
from ogkd.images import read_image, to_pixels

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


def test_a_file_is_written_that_answers_as_predict_does(ogkd, fitted, data, tmp_path):
    out = tmp_path / "new" / "model.onnx"
    outcome = ogkd("export", fitted, "--onnx", out, "--check", data / "test")
    assert (outcome.code, outcome.err) == (0, "")
    first, last = outcome.out.splitlines()
    assert first.startswith("Compared with torch on 10 images (4 of them phantoms")
    assert float(first.split("probability ")[1].split(",")[0]) <= 1e-4
    assert last.startswith(f"Wrote {out}")
    assert [path.name for path in out.parent.iterdir()] == ["model.onnx"]
    model = library.load(fitted, device="cpu")
    files = sorted((data / "test").rglob("*.png"))
    pixels = to_pixels([read_image(file) for file in files], model.backbone.preprocessing)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {"pixels": pixels.numpy()})
    np.testing.assert_allclose(found, model.predict_proba(files), atol=1e-4)


def test_an_image_that_cannot_be_read_leaves_no_file(refused, fitted, tmp_path):
    (tmp_path / "b.png").write_bytes(b"no image")
    assert "b.png" in refused("export", fitted, "--onnx", tmp_path / "m.onnx", "--check", tmp_path)


def test_what_cannot_work_is_refused_before_anything_is_loaded(refused, fitted, tmp_path):
    out = tmp_path / "m.onnx"
    assert "ending in .onnx" in refused("export", fitted, "--onnx", tmp_path / "m.json")
    assert "gone" in refused("export", fitted, "--onnx", out, "--check", tmp_path / "gone")
    assert "--onnx" in refused("export", fitted)
    words = ("export", fitted, "--onnx", out, "--max-risk", 0.1)
    message = refused(*words)
    assert "needs a calibrated model" in message
    assert "--max-risk" in message
