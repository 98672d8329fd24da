"""Export, compare with torch, and only then write the file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.data.case import images_of
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.errors import ConfigError
from ogkd.export.graph import INPUT, build
from ogkd.export.metadata import KEY, file_metadata, guarantee_note
from ogkd.files import write_atomically
from ogkd.images import ImageRef, read_image
from ogkd.images.transforms import RGB, Preprocessing, center_crop, normalise
from ogkd.model.classifier import Classifier, cases_of
from ogkd.progress import progress_bar

TOLERANCE = 1e-4  # of a probability
BATCHES = (1, 2, 7)  # images per batch; the last size is repeated
Predictor = Callable[[Sequence[RGB]], NDArray[np.float32]]  # crops to probabilities [N, C]
_EXTRA = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Exported:
    path: Path
    bytes: int
    images: int  # compared with torch, phantoms included
    phantoms: int  # of these
    largest_difference: float  # between the probabilities of the graph and torch
    note: str = ""  # why guarantees of the model do not hold for this file


def require_extra() -> None:
    """Raise a ConfigError if a package of the extra `onnx` is missing."""
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"The export needs the package {name}, which is not installed. Install it with: "
                'pip install "ogkd[onnx]".'
            ) from error


def check_onnx_path(path: str | Path) -> Path:
    """Check that an ONNX file may be written here: a new file, or an ONNX file to replace."""
    file = Path(path)
    if file.is_dir():
        raise ConfigError(f"{path} is a folder. Give the name of a file in it.", argument="onnx")
    if file.suffix.lower() != ".onnx":
        raise ConfigError(
            f"{path} must end in .onnx, so that no other file is replaced.", argument="onnx"
        )
    return file


def export_onnx(
    classifier: Classifier,
    path: str | Path,
    *,
    images: Sequence[str | Path | ImageRef] = (),
    include_preprocessing: bool = False,
    max_risk: float | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `path` if its probabilities equal torch's on `images`, or else on phantoms.

    Args:
        classifier: a loaded model, on the CPU, with the engine torch.
        path: the file, ending in .onnx.
        images: images to compare on; up to ten phantoms are added if there are only a few.
        include_preprocessing: take uint8 [N, H, W, 3] and normalise inside the graph.
        max_risk: store the threshold for this error rate, from the model's calibration.
        tolerance: how much a probability may differ from torch's.
    """
    require_extra()
    target = check_onnx_path(path)
    note = guarantee_note(classifier)
    if max_risk is not None and note and classifier.calibration is not None:
        raise ConfigError(f"{note} Do that first, or leave out max_risk.", argument="max_risk")
    prep = classifier.backbone.preprocessing
    # Each image for itself: which of them are a case does not matter, volumes give their slices.
    grouping = replace(classifier.card.grouping, by=None)
    refs = images_of(cases_of(list(images), grouping))
    total = max(len(refs), sum(BATCHES))
    card = file_metadata(classifier, include_preprocessing=include_preprocessing, max_risk=max_risk)
    with write_atomically(target) as temporary:
        model = build(classifier, include_preprocessing=include_preprocessing)
        graph = onnx_predictor(model.SerializeToString(), prep)
        difference = _largest_difference(
            [torch_predictor(classifier), graph],
            in_batches(model_crops(refs, prep, least=total)),
            total,
            tolerance,
        )
        card["check"] = {"images": total, "largest_difference": difference, "tolerance": tolerance}
        content = _with_metadata(model, card)
        onnx_predictor(content, prep)  # it opens with its metadata
        temporary.write_bytes(content)
    return Exported(
        path=target,
        bytes=len(content),
        images=total,
        phantoms=total - len(refs),
        largest_difference=difference,
        note=note,
    )


def _largest_difference(
    predictors: Sequence[Predictor], batches: Iterable[list[RGB]], total: int, tolerance: float
) -> float:
    """The graph's largest difference from torch, refused if too large.

    Where cases have several images, each batch is a case.
    """
    reference, graph = predict_all(predictors, batches, total=total)
    largest = float(np.abs(graph - reference).max())
    if not largest <= tolerance:  # also true for NaN
        # A head with large weights turns float32's last digits into visible differences.
        raise ConfigError(
            f"The exported graph differs from torch by {largest:.1e} in a probability, more than "
            f"the allowed {tolerance:.0e}, on {total} images. Nothing was written.",
            argument="tolerance",
        )
    return largest


def _with_metadata(model: Any, card: dict[str, Any]) -> bytes:
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(card, ensure_ascii=False)
    content: bytes = model.SerializeToString()
    return content


def torch_predictor(classifier: Classifier) -> Predictor:
    joined = classifier.card.grouping.joins_images

    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = normalise(crops, classifier.backbone.preprocessing)
        options = {"deep": True} if classifier.deep else {}
        features = classifier.backbone.encode_images(pixels, patches=False, **options).rows
        case = torch.zeros(len(crops), dtype=torch.long) if joined else None
        return classifier.probabilities(features, case)

    return predict


def onnx_predictor(content: bytes, prep: Preprocessing) -> Predictor:
    """Predicts with the content of an ONNX file, on as many threads as torch uses here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its bindings raise classes of their own
        raise ConfigError(
            f"onnxruntime {onnxruntime.__version__} cannot run the exported graph "
            f"({str(error).splitlines()[0]}). Nothing was written."
        ) from error
    takes_bytes = session.get_inputs()[0].type == "tensor(uint8)"

    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = np.stack(crops) if takes_bytes else normalise(crops, prep).numpy()
        probabilities: NDArray[np.float32] = session.run(["probabilities"], {INPUT: pixels})[0]
        return probabilities

    return predict


def model_crops(images: Sequence[ImageRef], prep: Preprocessing, *, least: int) -> Iterator[RGB]:
    """The images at the model's size, followed by phantoms if there are fewer than `least`."""
    for image in images:
        yield center_crop(read_image(image), prep)
    names = tuple(PHANTOMS)
    for index in range(least - len(images)):
        name = names[index % len(names)]
        label = index % len(PHANTOMS[name].class_names)
        yield center_crop(render(name, label, seed=0, index=index).image, prep)


def in_batches(crops: Iterable[RGB], sizes: Sequence[int] = BATCHES) -> Iterator[list[RGB]]:
    """Batches of these sizes, with the last size repeated."""
    rest = iter(crops)
    for size in chain(sizes, repeat(sizes[-1])):
        if not (batch := list(islice(rest, size))):
            return
        yield batch


def predict_all(
    predictors: Sequence[Predictor], batches: Iterable[list[RGB]], *, total: int
) -> list[NDArray[np.float32]]:
    """Probabilities [N, C] of every predictor for the same images."""
    outputs: list[list[NDArray[np.float32]]] = [[] for _ in predictors]
    with progress_bar("Checking", total) as bar:
        for batch in batches:
            for predict, rows in zip(predictors, outputs, strict=True):
                rows.append(predict(batch))
            bar.advance(len(batch))
    return [np.concatenate(rows) for rows in outputs]
