"""An exported graph with 8-bit weights: smaller, other numbers, and by no means always faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ogkd.export.graph import quiet

__all__ = ["quantise"]

_PRODUCTS = ("MatMul", "Gemm")


def quantise(source: Path, target: Path) -> None:
    """Dynamic quantisation of the image tower's linear layers; the head stays in float32."""
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(source)
    with quiet():
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=True,
            # Without VNNI the CPU adds pairs of 8-bit products in 16 bits; 7 bits never overflow.
            reduce_range=True,
            nodes_to_exclude=head_nodes(model),
            extra_options={"MatMulConstBOnly": True},  # products of weights, not attention's own
        )


def head_nodes(model: Any) -> list[str]:
    """Names of the products that come after the features: few numbers, and they decide."""
    after = {"features"}
    names = []
    for node in model.graph.node:  # in the order of computation
        if after.intersection(node.input):
            after.update(node.output)
            if node.op_type in _PRODUCTS:
                names.append(node.name)
    return names
