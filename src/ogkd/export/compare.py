"""The same pictures through torch and onnxruntime: probabilities and speed side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.datasets.phantoms import PHANTOMS, render
from ogkd.errors import ConfigError
from ogkd.export.graph import INPUT
from ogkd.images import ImageRef
from ogkd.images.decode import read_image
from ogkd.images.transforms import RGB, Preprocessing, center_crop, normalise
from ogkd.model.classifier import Classifier
from ogkd.progress import progress_bar

__all__ = ["BATCHES", "Run", "answers", "in_batches", "onnx_run", "speeds", "torch_run"]

BATCHES = (1, 2, 7)  # how many images at a time; the last goes on
Run = Callable[[Sequence[RGB]], NDArray[np.float32]]  # crops of the model's size to [N, C]
_ROUNDS = 11


def torch_run(classifier: Classifier) -> Run:
    """What the classifier says."""

    def run(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = normalise(crops, classifier.backbone.preprocessing)
        features = classifier.backbone.encode_images(pixels, patches=False).globals
        return classifier.probabilities(features)

    return run


def onnx_run(file: Path, prep: Preprocessing) -> Run:
    """What an ONNX file says, on as many threads as torch has here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(
            file.read_bytes(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # of kinds that its bindings make up
        raise ConfigError(
            f"onnxruntime {onnxruntime.__version__} cannot run the exported graph "
            f"({str(error).splitlines()[0]}). Nothing was written. Try another version of it."
        ) from error
    raw = session.get_inputs()[0].type == "tensor(uint8)"

    def run(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = np.stack(crops) if raw else normalise(crops, prep).numpy()
        found: NDArray[np.float32] = session.run(["probabilities"], {INPUT: pixels})[0]
        return found

    return run


def pictures(paths: Sequence[ImageRef], prep: Preprocessing, *, least: int = 1) -> Iterator[RGB]:
    """The files at the model's size; phantoms where there are fewer than `least`."""
    for path in paths:
        yield center_crop(read_image(path), prep)
    names = tuple(PHANTOMS)
    for index in range(least - len(paths)):
        name = names[index % len(names)]
        label = index % len(PHANTOMS[name].class_names)
        yield center_crop(render(name, label, seed=0, index=index).image, prep)


def in_batches(crops: Iterable[RGB], sizes: Sequence[int] = BATCHES) -> Iterator[list[RGB]]:
    """Batches of these sizes, then on with the last size."""
    batch: list[RGB] = []
    place = 0
    for crop in crops:
        batch.append(crop)
        if len(batch) == sizes[min(place, len(sizes) - 1)]:
            yield batch
            batch, place = [], place + 1
    if batch:
        yield batch


def answers(
    runs: Sequence[Run], batches: Iterable[list[RGB]], *, total: int
) -> list[NDArray[np.float32]]:
    """Probabilities [N, C] of every run for the same images."""
    found: list[list[NDArray[np.float32]]] = [[] for _ in runs]
    with progress_bar("Checking", total) as bar:
        for batch in batches:
            for run, rows in zip(runs, found, strict=True):
                rows.append(run(batch))
            bar.advance(len(batch))
    return [np.concatenate(rows) for rows in found]


def speeds(runs: Mapping[str, Run], crop: RGB) -> dict[str, float]:
    """Images per second, one image at a time: medians of rounds in which all take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(_ROUNDS + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run([crop])
            seconds[name].append(time.perf_counter() - start)
    return {name: 1 / median(rounds[1:]) for name, rounds in seconds.items()}  # the first warms up
