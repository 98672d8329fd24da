"""Resizing and cropping inside the graph, against Pillow's."""

from __future__ import annotations

import numpy as np
import pytest
from export_world import session_of

from ogkd.datasets.phantoms import render
from ogkd.errors import ConfigError
from ogkd.export.resizing import check_resizing, prepend_resizing
from ogkd.images.transforms import Preprocessing, center_crop

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

SHAPES = [(224, 224), (500, 700), (701, 500), (97, 131), (224, 301), (1200, 224), (20, 900), (1, 1)]


def resized(prep, image):
    """The crop that the graph makes of a whole image."""
    helper, kind = onnx.helper, onnx.TensorProto.UINT8
    shape = ["N", prep.size, prep.size, 3]
    given, made = (helper.make_tensor_value_info(name, kind, shape) for name in ("pixels", "out"))
    nodes = [helper.make_node("Identity", ["pixels"], ["out"])]
    graph = helper.make_graph(nodes, "g", [given], [made])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    prepend_resizing(model, prep)
    onnx.checker.check_model(model)
    return session_of(model).run(None, {"pixels": image})[0][0].astype(int)


@pytest.mark.parametrize("resize", ["shortest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_crop_of_the_graph_is_pillow_s_within_two_levels(shape, interpolation, resize):
    prep = Preprocessing(interpolation=interpolation, resize=resize)
    noise = np.random.default_rng(0).integers(0, 256, (*shape, 3), np.uint8)
    difference = np.abs(resized(prep, noise) - center_crop(noise, prep))
    assert difference.max() <= 2
    assert (difference > 0).mean() < 0.02


def test_on_pictures_most_pixels_are_equal():
    image = render("endoscopy", 1, seed=0, index=0, size=333).image[:300]
    prep = Preprocessing()
    assert (resized(prep, image) == center_crop(image, prep)).mean() > 0.999


def test_a_filter_that_onnx_lacks_is_refused():
    with pytest.raises(ConfigError, match="nearest filter"):
        check_resizing(Preprocessing(interpolation="nearest"))
