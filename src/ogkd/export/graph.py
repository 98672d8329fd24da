"""Image tower and head as an ONNX graph without any path in it."""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.core.pooling import Pooling, relative
from ogkd.errors import ConfigError
from ogkd.model.classifier import Classifier
from ogkd.model.decide import default_poolings

INPUT = "pixels"
OUTPUTS = ("logits", "probabilities", "features")
WEIGHTS = "weights"  # the output that only models of cases of several images have
_OPSET = 18
_MOST_BYTES = 2_000_000_000  # a protobuf file is limited to 2 GiB


class PooledQuestion(nn.Module):
    """One question about one case: `Pooling.logits` and `Pooling.weights` as a graph.

    Logits [N, C] of its images in; its logits [1, C], and for each answer the images' weights
    [C, N] out.
    """

    findings: Tensor
    nothing: Tensor
    bias: Tensor

    def __init__(self, pooling: Pooling, classes: int) -> None:
        super().__init__()
        self.pooling = pooling
        findings = [label for label in range(classes) if label not in pooling.normal]
        # "Nothing found" is decided by no image: then the finding that came nearest counts.
        barred = torch.full((classes,), -math.inf)
        barred[findings] = 0.0
        nothing = torch.zeros(classes, dtype=torch.bool)
        if findings:
            nothing[list(pooling.normal)] = True
        self.register_buffer("findings", barred)
        self.register_buffer("nothing", nothing)
        self.register_buffer("bias", torch.tensor(pooling.bias or (0.0,) * classes))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        logits, tau = relative(z, self.pooling.normal), self.pooling.tau
        if math.isinf(tau):
            pooled = logits.mean(0, keepdim=True)
            weights = torch.ones_like(logits)
        else:
            top = logits.amax(0, keepdim=True)
            if tau == 0:
                pooled, weights = top, (logits == top).to(logits)
            else:
                weights = ((logits - top) / tau).exp()
                pooled = top + tau * weights.mean(0, keepdim=True).log()
        count = torch.ones_like(logits[:, 0]).sum()  # inside the graph: cases have any size
        usual = (1 - 1 / count) * logits.mean(0, keepdim=True)
        pooled = self.pooling.heat * pooled - self.pooling.mean_weight * usual + self.bias  # [1, C]
        labels = torch.arange(logits.shape[1])
        nearest = (pooled + self.findings).argmax(1)  # [1]
        labels = torch.where(self.nothing, nearest, labels)  # [C]
        return pooled, (weights / weights.sum(0, keepdim=True)).T.index_select(0, labels)


class Graph(nn.Module):
    """Pixels in; logits, calibrated probabilities and unit features out.

    Where cases have several images, the batch is one case: its probabilities [1, C], and the
    weights [N] of its images in the answer.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        backbone, task = classifier.backbone, classifier.task
        self.backbone = backbone
        # A backbone is not a module; its modules must be ours for their weights to be found.
        for name, value in vars(backbone).items():
            if isinstance(value, nn.Module):
                self.add_module(name.strip("_"), value)
        self.head = classifier.head
        self.wanted = {"deep": True} if classifier.deep else {}
        sizes = [len(names) for names in task.question_names()]
        self.located = [task.locate(label) for label in range(len(task.names))]
        # The column of logits of each class of a question; the last one is 0: it has no name.
        number = {position: label for label, position in enumerate(self.located)}
        self.columns = [[number.get((q, c), -1) for c in range(n)] for q, n in enumerate(sizes)]
        self.scales = question_scales(classifier)
        self.poolings = nn.ModuleList(
            PooledQuestion(pooling, size)
            for pooling, size in zip(exported_poolings(classifier), sizes, strict=False)
        )

    def example(self) -> Tensor:
        """Two images of the right shape; the exporter would treat a batch of one as fixed."""
        size = self.backbone.preprocessing.size
        return torch.zeros(2, 3, size, size)

    @property
    def outputs(self) -> list[str]:
        return [*OUTPUTS, *([WEIGHTS] if len(self.poolings) else [])]

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """From normalised pixels [N, 3, H, W]."""
        features = self.backbone.encode_images(pixels, patches=False, **self.wanted).rows
        logits = self.head.logits(features)
        padded = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1)
        tables = [padded[:, columns] for columns in self.columns]  # `Task.questions`
        if not len(self.poolings):
            return logits, self._probabilities(tables), features
        pairs = zip(self.poolings, tables, strict=True)
        pooled, weights = zip(*(pooling(table) for pooling, table in pairs), strict=True)
        p = self._probabilities(pooled)
        each = torch.stack([weights[question][column] for question, column in self.located])
        return logits, p, features, each.index_select(0, p.argmax(1)).squeeze(0)

    def _probabilities(self, tables: Sequence[Tensor]) -> Tensor:
        """`Task.probabilities` as a graph: [N, C] of the names."""
        scaled = [
            (table * scale + table.new_tensor(shift)).softmax(dim=1)
            for table, (scale, shift) in zip(tables, self.scales, strict=True)
        ]
        return torch.stack([scaled[q][:, column] for q, column in self.located], dim=1)


def question_scales(classifier: Classifier) -> list[tuple[float, tuple[float, ...]]]:
    """Of each question, what its logits are multiplied with, and what is added for each class."""
    sizes = [len(names) for names in classifier.task.question_names()]
    if classifier.calibration is None:
        return [(1.0, (0.0,) * size) for size in sizes]
    pairs = zip(classifier.calibration.questions, sizes, strict=True)
    return [(question.scale, question.shift or (0.0,) * size) for question, size in pairs]


def exported_poolings(classifier: Classifier) -> Sequence[Pooling]:
    """Of each question; () where each image is a case."""
    if classifier.poolings or not classifier.card.grouping.joins_images:
        return classifier.poolings
    return default_poolings(classifier.task)


def build(classifier: Classifier) -> Any:
    """The model as an onnx.ModelProto for batches of any size."""
    backbone, head = classifier.backbone, classifier.head
    if backbone.engine != "torch":
        raise ConfigError(
            f"This model encodes images with the engine {backbone.engine}, which ONNX does not "
            'have. Load the model with engine="torch".',
            argument="engine",
        )
    if (reason := head.export_error) is not None:
        raise ConfigError(f"A model of {classifier.card.method} cannot be exported. {reason}")
    module = Graph(classifier).eval()
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
    if sum(len(tensor.raw_data) for tensor in model.graph.initializer) > _MOST_BYTES:
        raise ConfigError(
            f"{backbone.name} has more than 2 GB of weights, which do not fit into one ONNX file."
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
