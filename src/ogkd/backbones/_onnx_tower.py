"""An image tower as an ONNX graph, in float32 or with 8-bit products, kept in the cache."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ogkd.backbones.base import Backbone
from ogkd.errors import ConfigError
from ogkd.files import cache_dir, write_atomically
from ogkd.images.transforms import RGB, normalise

_OPSET = 18
_VERSION = 1  # raise it when the graphs change, so that cached ones are made again
_MOST_BYTES = 2_000_000_000  # a protobuf file ends at 2 GiB
_SMOOTHING = 0.4  # how much of an input channel's range is moved to the weights
_SAMPLES = 8  # synthetic images from which the range of each channel is measured


def tower_graph(backbone: Backbone, engine: str, *, patches: bool, deep: bool = False) -> Path:
    """The cached ONNX file of an image tower, made if it is not there yet."""
    import onnxruntime

    versions = [_VERSION, str(torch.__version__), onnxruntime.__version__]
    facts = [backbone.digest, engine, patches, *versions, *(["deep"] if deep else [])]
    key = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    path = cache_dir() / "engines" / f"{key}.onnx"
    if not path.is_file():
        with write_atomically(path, ours=True) as aside:
            if engine == "onnx-int8":
                smooth, layers = _smoothed(backbone)
                _quantise(_export(smooth, patches=patches, deep=deep), layers, aside)
            else:
                graph = _export(backbone, patches=patches, deep=deep)
                aside.write_bytes(graph.SerializeToString())
    return path


def open_session(path: Path) -> Any:
    """Load a graph into ONNX Runtime, with as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = torch.get_num_threads()
    # Idle threads sleep: spinning ones would take the processor from decoding the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def int8_layers(backbone: Backbone) -> list[nn.Linear]:
    """The linear layers of inner blocks, except those that narrow; the text tower's too.

    The first and the last block and the layers that narrow (an MLP's second one) lose most by
    8 bits, so they stay in float32.
    """
    return [
        layer
        for module in _modules(backbone)
        for blocks in module.modules()
        if isinstance(blocks, nn.ModuleList)
        for block in list(blocks)[1:-1]
        for layer in block.modules()
        if isinstance(layer, nn.Linear) and layer.in_features <= layer.out_features
    ]


def too_shallow(backbone: Backbone) -> ConfigError:
    return _unsuited(backbone, "has no inner blocks with linear layers to compute in 8 bits")


def _unsuited(backbone: Backbone, problem: str) -> ConfigError:
    message = f"The image tower of {backbone.name} {problem}. Use the engine torch."
    return ConfigError(message, argument="engine")


class _ImageTower(nn.Module):
    """`encode_images` as a module that can be exported."""

    def __init__(self, backbone: Backbone, *, patches: bool, deep: bool) -> None:
        super().__init__()
        self.backbone, self.patches, self.deep = backbone, patches, deep
        # A backbone is not a module; its modules must be ours for their weights to be found.
        for index, module in enumerate(_modules(backbone)):
            self.add_module(f"tower{index}", module)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        found = self.backbone.encode_images(pixels, patches=self.patches, deep=self.deep)
        outputs = (found.globals, found.patches, found.deep)
        return tuple(output for output in outputs if output is not None)


def _modules(backbone: Backbone) -> list[nn.Module]:
    return [value for value in vars(backbone).values() if isinstance(value, nn.Module)]


def _export(backbone: Backbone, *, patches: bool, deep: bool) -> Any:
    """The image tower as an onnx.ModelProto for one image at a time."""
    size = backbone.preprocessing.size
    outputs = {"globals": True, "patches": patches, "deep": deep}
    try:
        with quiet_exporter(), torch.no_grad():
            program = torch.onnx.export(
                _ImageTower(backbone, patches=patches, deep=deep).eval(),
                (torch.zeros(1, 3, size, size),),
                dynamo=True,
                opset_version=_OPSET,
                input_names=["pixels"],
                output_names=[name for name, wanted in outputs.items() if wanted],
                verbose=False,
            )
            model = program.model_proto  # type: ignore[union-attr]
    except Exception as error:  # the exporter raises many kinds
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        problem = f"cannot be converted to ONNX by torch {torch.__version__} ({reason})"
        raise _unsuited(backbone, problem) from error
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MOST_BYTES:
        raise _unsuited(backbone, "has more than 2 GB of weights, the limit of an ONNX file")
    # The exporter leaves shapes here that contradict the graph.
    del model.graph.value_info[:]
    return model


class _SmoothLinear(nn.Module):
    """The same linear layer, with wide input channels shrunk and their weights enlarged.

    The product is the same, but a few wide channels no longer set the step size of all others.
    """

    def __init__(self, linear: nn.Linear, largest: Tensor) -> None:
        super().__init__()
        stretch = largest.clamp_min(1e-5) ** _SMOOTHING
        stretch = stretch / stretch.mean()
        self.shrink: Tensor
        self.register_buffer("shrink", 1 / stretch)
        self.inner = nn.Linear(linear.in_features, linear.out_features, bias=False, device="meta")
        self.inner.weight = nn.Parameter(linear.weight * stretch, requires_grad=False)
        self.inner.bias = linear.bias

    def forward(self, values: Tensor) -> Tensor:
        product: Tensor = self.inner(values * self.shrink)
        return product


@torch.no_grad()
def _smoothed(backbone: Backbone) -> tuple[Backbone, list[nn.Linear]]:
    """A copy that computes the same features, and its layers that can be quantised.

    All other weights are shared with the original.
    """
    largest = _input_ranges(backbone)
    smooth = {
        layer: _SmoothLinear(layer, largest[layer])
        for layer in int8_layers(backbone)
        if layer in largest  # not the text tower's
    }
    if not smooth:
        raise too_shallow(backbone)
    # deepcopy takes what it finds in the memo as it is: weights are shared, layers replaced.
    memo: dict[int, object] = {id(layer): new for layer, new in smooth.items()}
    for module in _modules(backbone):
        memo |= {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.copy(backbone)
    for key, value in vars(backbone).items():
        if isinstance(value, nn.Module):
            setattr(twin, key, copy.deepcopy(value, memo))
    return twin, [layer.inner for layer in smooth.values()]


def _input_ranges(backbone: Backbone) -> dict[nn.Module, Tensor]:
    """The largest absolute input per channel of each linear layer that images pass through."""
    found: dict[nn.Module, Tensor] = {}

    def measure(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        seen = inputs[0].abs().flatten(0, -2).amax(dim=0)
        found[layer] = torch.maximum(found[layer], seen) if layer in found else seen

    hooks = [layer.register_forward_pre_hook(measure) for layer in int8_layers(backbone)]
    try:
        for image in _synthetic_images(backbone.preprocessing.size):
            backbone.encode_images(normalise([image], backbone.preprocessing))
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _synthetic_images(size: int) -> Iterator[RGB]:
    """Smooth noise at several scales, grey or coloured, some in a dark frame; always the same."""
    rng = torch.Generator().manual_seed(0)
    across = torch.linspace(-1, 1, size)
    inside = across[:, None] ** 2 + across[None, :] ** 2 < 0.7
    for index in range(_SAMPLES):
        values = torch.randn(1, generator=rng) * torch.ones(3, size, size)
        for cells in (2, 4, 8, 16, 32, 64):
            grey = torch.randn(1, 1, cells, cells, generator=rng)
            colour = torch.randn(1, 3, cells, cells, generator=rng) * (0.7 if index % 2 else 0.0)
            strength = torch.rand(1, generator=rng)
            values += strength * interpolate(grey + colour, size=(size, size), mode="bilinear")[0]
        image = values.sigmoid() * (inside if index % 3 == 0 else 1.0)
        yield (image * 255).byte().permute(1, 2, 0).numpy()


def _quantise(model: Any, layers: Sequence[nn.Linear], target: Path) -> None:
    """Write `model` with 8-bit weights in `layers`, and activations quantised as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    graph = model.graph
    weights = (layer.weight.detach().T.contiguous().numpy().tobytes() for layer in layers)
    wanted = {hashlib.sha256(content).digest() for content in weights}
    sums = {tensor.name: hashlib.sha256(tensor.raw_data).digest() for tensor in graph.initializer}
    nodes = [
        node
        for node in graph.node
        if node.op_type == "MatMul" and sums.get(node.input[1]) in wanted
    ]
    # The quantiser transposes the weights of Gemm nodes in place, though others may read them.
    stored = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Gemm" and node.input[1] in stored:
            own = graph.initializer.add()
            own.CopyFrom(stored[node.input[1]])
            own.name = f"{own.name} of {node.name}"
            node.input[1] = own.name
    with quiet_exporter():
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=["MatMul"],
            nodes_to_quantize=[node.name for node in nodes],
            per_channel=True,
            # Signed weights need 7 bits where the CPU has no VNNI: it adds pairs of products in
            # 16 bits. ONNX Runtime has another kernel for unsigned ones, exact with all 8.
            weight_type=QuantType.QUInt8,
        )


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide the exporter's advice about its own internals; errors still come through."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
