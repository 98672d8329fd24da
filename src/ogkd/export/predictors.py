"""The same images through torch and onnxruntime, to compare probabilities and speed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.datasets.phantoms import PHANTOMS, render
from ogkd.errors import ConfigError
from ogkd.export.graph import INPUT
from ogkd.images import ImageRef, read_image
from ogkd.images.transforms import RGB, Preprocessing, center_crop, normalise
from ogkd.model.classifier import Classifier
from ogkd.progress import progress_bar

BATCHES = (1, 2, 7)  # images per batch; the last size is repeated
Predictor = Callable[[Sequence[RGB]], NDArray[np.float32]]  # crops to probabilities [N, C]
_ROUNDS = 11


def torch_predictor(classifier: Classifier) -> Predictor:
    """Predicts with the classifier itself."""

    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = normalise(crops, classifier.backbone.preprocessing)
        features = classifier.backbone.encode_images(pixels, patches=False).globals
        return classifier.probabilities(features)

    return predict


def onnx_predictor(file: Path, prep: Preprocessing) -> Predictor:
    """Predicts with an ONNX file, on as many threads as torch uses here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            file.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # its bindings raise classes of their own
        raise ConfigError(
            f"onnxruntime {onnxruntime.__version__} cannot run the exported graph "
            f"({str(error).splitlines()[0]}). Nothing was written. Try another version of it."
        ) from error
    raw = session.get_inputs()[0].type == "tensor(uint8)"

    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = np.stack(crops) if raw else normalise(crops, prep).numpy()
        found: NDArray[np.float32] = session.run(["probabilities"], {INPUT: pixels})[0]
        return found

    return predict


def model_crops(
    images: Sequence[ImageRef], prep: Preprocessing, *, least: int = 1
) -> Iterator[RGB]:
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
    found: list[list[NDArray[np.float32]]] = [[] for _ in predictors]
    with progress_bar("Checking", total) as bar:
        for batch in batches:
            for predict, rows in zip(predictors, found, strict=True):
                rows.append(predict(batch))
            bar.advance(len(batch))
    return [np.concatenate(rows) for rows in found]


def speeds(predictors: Mapping[str, Predictor], crop: RGB) -> dict[str, float]:
    """Images per second, one image at a time: medians of rounds in which all take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in predictors}
    for _ in range(_ROUNDS + 1):
        for name, predict in predictors.items():
            start = time.perf_counter()
            predict([crop])
            seconds[name].append(time.perf_counter() - start)
    return {name: 1 / median(rounds[1:]) for name, rounds in seconds.items()}  # the first warms up
