"""How much faster products of 8 bits are than those of float32 on this CPU, in ONNX Runtime."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import numpy as np

_TOKENS, _WIDTH, _INNER = 197, 768, 3072  # of one image in a layer of BiomedCLIP's image tower
_ROUNDS = 7


def int8_gain() -> float:
    """Seconds of a float32 product over those of the same in 8 bits; needs onnx and its runtime.

    The 8-bit product includes scaling the input, as in the engine `onnx-int8`. An engine gains
    less than its products, because softmax, norms and the outer layers stay in float32.
    """
    rng = np.random.default_rng(0)
    x = rng.standard_normal((_TOKENS, _WIDTH), dtype=np.float32)
    sessions = [_session(eight_bits) for eight_bits in (False, True)]
    ratios = []
    for _ in range(_ROUNDS + 1):  # taking turns, so that a busy machine slows both down
        seconds = []
        for session in sessions:
            began = time.process_time()
            session.run(None, {"x": x})
            seconds.append(time.process_time() - began)
        ratios.append(seconds[0] / max(seconds[1], 1e-9))
    return median(ratios[1:])  # the first turn warms up


def _session(eight_bits: bool) -> Any:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    if eight_bits:
        weight = np.ones((_WIDTH, _INNER), dtype=np.int8)
        nodes = [
            helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
            helper.make_node("MatMulInteger", ["q", "w", "zero"], ["i"]),
            helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["f", "scale"], ["y"]),
        ]
    else:
        weight = np.ones((_WIDTH, _INNER), dtype=np.float32)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [_TOKENS, _WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [_TOKENS, _INNER])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
