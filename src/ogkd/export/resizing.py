"""Resizing and cropping as ONNX nodes in front of the graph, for bytes of images of any size."""

from __future__ import annotations

from typing import Any

from ogkd.errors import ConfigError
from ogkd.images.transforms import LONGEST, Preprocessing

_MODES = {"bicubic": "cubic", "bilinear": "linear"}
_CROP = "crop"  # what the rest of the graph takes: uint8 [1, size, size, 3]


def check_resizing(prep: Preprocessing) -> None:
    """Refuse a preprocessing that ONNX has no equal operation for."""
    if prep.interpolation not in _MODES:
        raise ConfigError(
            f"The backbone resizes with Pillow's {prep.interpolation} filter, which ONNX does not "
            "have. Export without raw_pixels, and resize before the graph.",
            argument="raw_pixels",
        )


def prepend_resizing(model: Any, prep: Preprocessing) -> None:
    """Make a graph for uint8 [N, size, size, 3] take uint8 [H, W, 3], one image of any size.

    The steps are those of `images.transforms.center_crop`. `Resize` with these settings and on
    bytes is Pillow's algorithm; onnxruntime differs from it by one or two levels here and there.
    """
    from onnx import TensorProto, helper

    graph, size = model.graph, prep.size
    source = graph.input[0].name
    for node in graph.node:
        node.input[:] = [_CROP if name == source else name for name in node.input]
    constants: dict[str, Any] = {}

    def whole(*values: int) -> str:
        """The name of an int64 constant."""
        name = "ogkd_" + "_".join(map(str, values))
        constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
        return name

    nodes: list[Any] = []

    def add(kind: str, *inputs: str, out: str = "", **settings: Any) -> str:
        name = out or f"ogkd_resize_{len(nodes)}"
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **settings))
        return name

    image, new = source, whole(size, size)
    if prep.resize == "shortest":
        sides = add("Slice", add("Shape", image), whole(0), whole(2))
        short = add("ReduceMin", sides, keepdims=1)
        kept = add("Min", sides, add("Mul", short, whole(LONGEST)))  # without a strip's far ends
        start = add("Div", add("Sub", sides, kept), whole(2))
        image = add("Slice", image, start, add("Add", start, kept), whole(0, 1))
        new = add("Div", add("Mul", kept, whole(size)), short)
    image = add("Unsqueeze", add("Transpose", image, perm=[2, 0, 1]), whole(0))
    image = add(
        "Resize",
        *(image, "", "", add("Concat", whole(1, 3), new, axis=0)),
        mode=_MODES[prep.interpolation],
        antialias=1,
        cubic_coeff_a=-0.5,
        exclude_outside=1,
        coordinate_transformation_mode="half_pixel",
    )
    # Halves are rounded to even numbers, as Python does.
    spare = add("Cast", add("Sub", new, whole(size)), to=TensorProto.FLOAT)
    half = helper.make_tensor("ogkd_half", TensorProto.FLOAT, [1], [0.5])
    middle = add("Cast", add("Round", add("Mul", spare, "ogkd_half")), to=TensorProto.INT64)
    image = add("Slice", image, middle, add("Add", middle, whole(size)), whole(2, 3))
    add("Transpose", image, out=_CROP, perm=[0, 2, 3, 1])
    rest = list(graph.node)
    del graph.node[:]
    graph.node.extend([*nodes, *rest])
    graph.initializer.extend([*constants.values(), half])
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(source, TensorProto.UINT8, ["H", "W", 3]))
    for output in graph.output:
        output.type.tensor_type.shape.dim[0].dim_value = 1
