"""Image tower and head as an ONNX graph without any path in it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.errors import ConfigError
from ogkd.model.classifier import Classifier

INPUT = "pixels"
OUTPUTS = ("logits", "probabilities", "features")
_OPSET = 18
_MOST_BYTES = 2_000_000_000  # a protobuf file is limited to 2 GiB


class Graph(nn.Module):
    """Pixels in; logits, calibrated probabilities and unit features out.

    Where cases have several images there are no probabilities: a program pools the logits of a
    case, which need not fit into one batch, by what the metadata says.
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
        self.outputs = list(OUTPUTS)
        if classifier.card.grouping.joins_images:
            self.outputs.remove("probabilities")

    def example(self) -> Tensor:
        """Two images of the right shape; the exporter would treat a batch of one as fixed."""
        size = self.backbone.preprocessing.size
        return torch.zeros(2, 3, size, size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """From normalised pixels [N, 3, H, W]."""
        features = self.backbone.encode_images(pixels, patches=False, **self.wanted).rows
        logits = self.head.logits(features)
        if "probabilities" in self.outputs:
            return logits, self._probabilities(logits), features
        return logits, features

    def _probabilities(self, logits: Tensor) -> Tensor:
        """`Task.probabilities` as a graph: [N, C] of the names."""
        padded = torch.cat([logits, torch.zeros_like(logits[:, :1])], dim=1)
        tables = [padded[:, columns] for columns in self.columns]  # `Task.questions`
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
