"""Image tower and head as an ONNX graph without any path in it."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.core.pooling import Pooling, relative
from ogkd.errors import ConfigError
from ogkd.model.classifier import Classifier

INPUT = "pixels"
OUTPUTS = ("logits", "probabilities", "features")
WEIGHTS = "weights"  # the output that only models of bags have
_OPSET = 18
_MOST_BYTES = 2_000_000_000  # a protobuf file is limited to 2 GiB


class PooledBag(nn.Module):
    """Logits of the pictures of one bag [N, C] in; its logits [1, C] and their weights [N] out."""

    others: Tensor
    nothing: Tensor
    bias: Tensor

    def __init__(self, pooling: Pooling, classes: int) -> None:
        super().__init__()
        self.pooling = pooling
        findings = [label for label in range(classes) if label not in pooling.normal]
        # "Nothing found" is decided by no picture: then the finding that came nearest counts.
        others = torch.full((classes,), -math.inf)
        others[findings] = 0.0
        nothing = torch.zeros(classes, dtype=torch.bool)
        if findings:
            nothing[list(pooling.normal)] = True
        self.register_buffer("others", others)
        self.register_buffer("nothing", nothing)
        self.register_buffer("bias", torch.tensor(pooling.bias or (0.0,) * classes))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        logits, tau = relative(z, self.pooling.normal), self.pooling.tau
        if math.isinf(tau):
            pooled = logits.mean(0, keepdim=True)
        else:
            top = logits.amax(0, keepdim=True)
            pooled = top if tau == 0 else top + tau * ((logits - top) / tau).exp().mean(0).log()
        count = torch.ones_like(logits[:, 0]).sum()  # inside the graph: bags have any size
        common = (1 - 1 / count) * logits.mean(0, keepdim=True)
        pooled = self.pooling.heat * pooled - self.pooling.mean_weight * common + self.bias  # [1, C]
        label = pooled.argmax(1)  # [1]
        label = torch.where(self.nothing[label], (pooled + self.others).argmax(1), label)
        answer = logits.index_select(1, label).squeeze(1)  # [N]
        if math.isinf(tau):
            weights = torch.ones_like(answer)
        elif tau == 0:
            weights = (answer == answer.amax(0)).to(answer)
        else:
            weights = (answer / tau).softmax(0)
        return pooled, weights / weights.sum()


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
            pairs = [(1.0, 0.0)] * len(classifier.class_names)
            if (findings := classifier.finding_calibration) is not None:
                pairs = [(score.slope, score.offset) for score in findings.scores]
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


def build(classifier: Classifier, *, include_preprocessing: bool = False) -> Any:
    """The model as an onnx.ModelProto for batches of any size."""
    _check_exportable(classifier)
    module = Graph(classifier, include_preprocessing=include_preprocessing).eval()
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
    return model


@contextlib.contextmanager
def quiet_exporter() -> Iterator[None]:
    """Hide the exporter's advice about its internals; errors still come through."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _check_exportable(classifier: Classifier) -> None:
    """Refuse what cannot be exported, before minutes are spent on it."""
    backbone, head = classifier.backbone, classifier.head
    if backbone.engine != "torch":
        raise ConfigError(
            f"This model encodes images with the engine {backbone.engine}, which ONNX does not "
            'have. Load the model with engine="torch".',
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
