"""Image tower and head as an ONNX graph without any path in it, and what it says about itself."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.errors import ConfigError
from ogkd.export.bags import WEIGHTS, PooledBag, bag_metadata
from ogkd.export.resizing import check_resizing, prepend_resizing
from ogkd.images.transforms import LONGEST, Preprocessing
from ogkd.model.card import CAUTION
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.engine_note import engine_note
from ogkd.model.policy import Policy

INPUT = "pixels"
OUTPUTS = ("logits", "probabilities", "features")
KEY = "ogkd"  # of the JSON in the file's metadata
SCHEMA = 1
_INT8 = "onnx int8"  # not an engine of ours, so no calibration is made with it
_OPSET = 18
_MOST_BYTES = 2_000_000_000  # a protobuf file is limited to 2 GiB
_PRODUCTS = ("MatMul", "Gemm")


class Graph(nn.Module):
    """Pixels in; logits, calibrated probabilities and unit features out.

    Of a model of bags, the images are one bag: its probabilities, and the weights of the images.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, classifier: Classifier, *, include_preprocessing: bool) -> None:
        super().__init__()
        backbone, calibration = classifier.backbone, classifier.class_calibration
        self.backbone = backbone
        # A backbone is not a module; its modules must be ours for their weights to be found.
        for name, value in vars(backbone).items():
            if isinstance(value, nn.Module):
                self.add_module(name.strip("_"), value)
        self.head = classifier.head
        self.wanted = {"deep": True} if classifier.deep else {}
        self.temperature = 1.0 if calibration is None else calibration.temperature
        self.odds: tuple[Tensor, Tensor] | None = None  # slopes and offsets, of several findings
        if classifier.card.findings:
            ones = [(1.0, 0.0)] * len(classifier.class_names)
            found = classifier.finding_calibration
            pairs = ones if found is None else [(one.slope, one.offset) for one in found.scores]
            slopes, offsets = torch.tensor(pairs).T
            self.odds = slopes, offsets
        self.bag: PooledBag | None = None
        if classifier.card.bags is not None:
            self.bag = PooledBag(classifier.pooling, len(classifier.class_names))
        self.include_preprocessing = include_preprocessing
        self.register_buffer("mean", torch.tensor(backbone.preprocessing.mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(backbone.preprocessing.std).view(1, 3, 1, 1))

    def example(self) -> Tensor:
        """Two images of the right shape; the exporter would treat a batch of one as fixed."""
        size = self.backbone.preprocessing.size
        if self.include_preprocessing:
            return torch.zeros(2, size, size, 3, dtype=torch.uint8)
        return torch.zeros(2, 3, size, size)

    @property
    def outputs(self) -> list[str]:
        return [*OUTPUTS, *([] if self.bag is None else [WEIGHTS])]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """[N, 3, H, W] float32, or with preprocessing [N, H, W, 3] uint8."""
        if self.include_preprocessing:
            pixels = (pixels.permute(0, 3, 1, 2).float() / 255.0 - self.mean) / self.std
        features = self.backbone.encode_images(pixels, patches=False, **self.wanted).rows
        logits = self.head.logits(features)
        if self.odds is not None:
            return logits, (logits * self.odds[0] + self.odds[1]).sigmoid(), features
        if self.bag is not None:
            pooled, weights = self.bag(logits)
            return logits, (pooled / self.temperature).softmax(dim=-1), features, weights
        return logits, (logits / self.temperature).softmax(dim=-1), features


def build(
    classifier: Classifier, *, include_preprocessing: bool = False, raw_pixels: bool = False
) -> Any:
    """The model as an onnx.ModelProto for batches of any size, or for one image of any size."""
    _refuse(classifier)
    if raw_pixels:
        check_resizing(classifier.backbone.preprocessing)
    inside = include_preprocessing or raw_pixels
    module = Graph(classifier, include_preprocessing=inside).eval()
    try:
        with quiet_exporter(), torch.no_grad():
            program = torch.onnx.export(
                module,
                (module.example(),),
                dynamo=True,
                opset_version=_OPSET,
                input_names=[INPUT],
                output_names=module.outputs,
                dynamic_shapes=({0: torch.export.Dim("N")},),
                verbose=False,
            )
            model = program.model_proto  # type: ignore[union-attr]
    except Exception as error:  # the exporter raises many kinds of errors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"torch {torch.__version__} cannot export {classifier.card.method} on "
            f"{classifier.backbone.name} as ONNX ({reason}). Nothing was written. Try another "
            "version of torch, or use the model folder itself."
        ) from error
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MOST_BYTES:
        raise ConfigError(
            f"{classifier.backbone.name} has more than 2 GB of weights, which do not fit "
            "into one ONNX file. Use the model folder itself, or a smaller backbone."
        )
    strip(model)
    if raw_pixels:
        prepend_resizing(model, classifier.backbone.preprocessing)
    return model


def _refuse(classifier: Classifier) -> None:
    """Refuse what cannot be exported, before minutes are spent on it."""
    backbone, head = classifier.backbone, classifier.head
    if backbone.engine != "torch":
        raise ConfigError(
            f"This model encodes images with the engine {backbone.engine}, whose kernels ONNX does "
            'not have. Load the model with engine="torch" (its probabilities differ slightly from '
            "this model's), and export with int8 if the file should be small.",
            argument="engine",
        )
    if backbone.device.type != "cpu":
        raise ConfigError(
            f"The export runs on the CPU, but the model is on {backbone.device}. Load it with "
            'device="cpu".'
        )
    if (reason := head.export_error) is not None:
        raise ConfigError(f"A model of {classifier.card.method} cannot be exported. {reason}")
    if bad := head.not_finite():
        raise ConfigError(
            f"The model has weights that are not finite ({', '.join(bad)}). Fit it again."
        )


def strip(model: Any) -> None:
    """Remove what the exporter records about source files; the computation is unchanged."""
    model.doc_string = ""
    graph = model.graph
    graph.doc_string = ""
    del graph.metadata_props[:]
    # The optimiser also leaves shapes here that contradict the graph.
    del graph.value_info[:]
    named = [*graph.input, *graph.output, *graph.initializer, *graph.node, *model.functions]
    for part in [*named, *(node for function in model.functions for node in function.node)]:
        part.doc_string = ""
        del part.metadata_props[:]


def quantise(source: Path, target: Path) -> None:
    """Quantise the image tower's linear layers to 8 bits; the head stays in float32.

    The file gets smaller and its outputs change; it is not always faster.
    """
    import onnx
    from onnxruntime.quantization import quantize_dynamic

    model = onnx.load(source)
    with quiet_exporter():
        quantize_dynamic(
            model,
            target,
            op_types_to_quantize=list(_PRODUCTS),
            per_channel=True,
            # Without VNNI the CPU adds pairs of 8-bit products in 16 bits; 7 bits never overflow.
            reduce_range=True,
            nodes_to_exclude=_head_nodes(model),
            extra_options={"MatMulConstBOnly": True},  # products with weights, not in attention
        )


def _head_nodes(model: Any) -> list[str]:
    """Names of the products after the features: they are few numbers, and they decide."""
    after = {"features"}
    names = []
    for node in model.graph.node:  # in the order of computation
        if after.intersection(node.input):
            after.update(node.output)
            if node.op_type in _PRODUCTS:
                names.append(node.name)
    return names


def file_metadata(
    classifier: Classifier,
    *,
    include_preprocessing: bool = False,
    raw_pixels: bool = False,
    max_risk: float | None = None,
    int8: bool = False,
) -> dict[str, Any]:
    """Everything that a program needs besides the graph; contains no path and no file name."""
    card, prep = classifier.card, classifier.backbone.preprocessing
    size = prep.size
    bytes_in = include_preprocessing or raw_pixels
    shape: list[str | int] = ["N", size, size, 3] if bytes_in else ["N", 3, size, size]
    if raw_pixels:
        shape = ["H", "W", 3]
    return {
        "schema_version": SCHEMA,
        "class_names": list(card.class_names),
        "asks": "findings" if card.findings else "class",
        "normal": list(card.normal),
        "input": {
            "name": INPUT,
            "type": "uint8" if bytes_in else "float32",
            "shape": shape,
            "normalised": not bytes_in,
        },
        "preprocessing": {
            "colour": "RGB",
            "size": size,
            "resize": prep.resize,
            "crop": "center",
            "interpolation": prep.interpolation,
            "antialias": True,
            "mean": list(prep.mean),
            "std": list(prep.std),
            "steps": _steps(prep, bytes_in=bytes_in, raw_pixels=raw_pixels),
        },
        "slice": card.slice,
        "bags": None if card.bags is None else bag_metadata(card.bags, classifier.pooling),
        "backbone": {"name": card.backbone.short_name, "digest": classifier.backbone.digest},
        "method": card.method,
        "preset": card.preset,
        **_calibration(classifier, max_risk, int8=int8),
        "caution": CAUTION,
        "versions": {name: version(name) for name in ("ogkd", "torch", "onnx")},
    }


def guarantee_note(classifier: Classifier, *, int8: bool) -> str:
    """Why the file has no guarantees that the model has, if there is a reason."""
    if classifier.calibration is None:
        known = classifier.head.ranking is not None and classifier.support is not None
        return (
            "Prediction sets from the images learned from need the model folder." if known else ""
        )
    return engine_note(classifier, engine=_INT8 if int8 else None)


def _calibration(classifier: Classifier, max_risk: float | None, *, int8: bool) -> dict[str, Any]:
    """The temperature, the limit of prediction sets, and the threshold below which to abstain."""
    decider = Decider(classifier, Policy(max_risk=max_risk))
    if classifier.card.findings:
        return _findings(classifier, int8=int8)
    found = classifier.class_calibration
    if found is None:
        return {"temperature": 1.0, "calibration": None}
    values: dict[str, Any] = {"images": found.images, "sets": None, "abstain": None}
    if note := guarantee_note(classifier, int8=int8):
        return {"temperature": found.temperature, "calibration": values | {"note": note}}
    if (least := decider.least_probability) is not None:
        # A class belongs to the set if its probability is at least this.
        values["sets"] = {"kind": "lac", "coverage": decider.coverage, "least_probability": least}
    if (below := decider.threshold) is not None:
        confidence = decider.policy.confidence
        values["abstain"] = {"max_risk": max_risk, "confidence": confidence, "below": below}
    return {"temperature": found.temperature, "calibration": values}


def _findings(classifier: Classifier, *, int8: bool) -> dict[str, Any]:
    """Of each finding, the limits below which the answer is no and above which it is yes."""
    found = classifier.finding_calibration
    if found is None:
        return {"calibration": None}
    values: dict[str, Any] = {"images": found.images, "sensitivity": found.sensitivity}
    if note := guarantee_note(classifier, int8=int8):
        return {"calibration": values | {"note": note}}
    limits = zip(classifier.class_names, found.limits(), strict=True)
    return {"calibration": values | {"limits": {name: asdict(one) for name, one in limits}}}


def _steps(prep: Preprocessing, *, bytes_in: bool, raw_pixels: bool) -> str:
    decode = "Decode to 8-bit RGB, upright by its EXIF orientation; scale deeper images by their "
    decode += "own smallest and largest value. "
    if raw_pixels:
        return f"{decode}Pass the bytes of one whole image: the graph resizes and crops."
    size = prep.size
    scale, crop = f"Scale both sides to {size}", ""
    if prep.resize == "shortest":
        scale = f"Scale the short side to {size} and the long one to int({size} * long / short)"
        left = f"left = round((width - {size}) / 2), top likewise"
        crop = f" Crop the central {size} x {size}: {left}."
        scale = f"Cut a side longer than {LONGEST} times the other to that, centrally. {scale}"
    end = " Pass the bytes unchanged."
    if not bytes_in:
        end = " Divide by 255, subtract mean and divide by std per channel, channels first."
    return f"{decode}{scale} with Pillow's {prep.interpolation} filter.{crop}{end}"


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
