"""Export, compare with torch, and only then write the file."""

from __future__ import annotations

import importlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, repeat
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.datasets.bags import BagRule
from ogkd.datasets.phantoms import PHANTOMS, render
from ogkd.errors import ConfigError
from ogkd.export.bags import refuse_for_bags
from ogkd.export.graph import INPUT, KEY, build, file_metadata, guarantee_note, quantise, strip
from ogkd.files import write_atomically
from ogkd.images import ImageRef, read_image
from ogkd.images.transforms import RGB, Preprocessing, center_crop, normalise
from ogkd.model.bags import named_pictures
from ogkd.model.classifier import Classifier
from ogkd.progress import progress_bar

TOLERANCE = 1e-4  # of a probability
BATCHES = (1, 2, 7)  # images per batch; the last size is repeated
Predictor = Callable[[Sequence[RGB]], NDArray[np.float32]]  # crops to probabilities [N, C]
_ROUNDS = 11
_EXTRA = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Int8:
    """What 8 bits cost and gain, compared with torch in float32 on the same images one by one."""

    images: int
    largest_difference: float
    agreement: float  # share of images with the same most probable class, or of equal answers
    accuracy: float | None  # if labels are known
    float32_accuracy: float | None
    float32_bytes: int
    speed_gain: float  # over the float32 graph on this machine; below 1 it is slower


@dataclass(frozen=True)
class Resizing:
    """How resizing inside the graph changes the probabilities, compared with Pillow's."""

    images: int
    largest_difference: float
    agreement: float  # share of images with the same most probable class


@dataclass(frozen=True)
class Exported:
    path: Path
    bytes: int
    images: int  # compared with torch, phantoms included
    phantoms: int  # of these
    largest_difference: float  # between the probabilities of the float32 graph and torch
    images_per_second: dict[str, float]  # torch, onnx and, if requested, int8; one image at a time
    int8: Int8 | None = None
    resizing: Resizing | None = None  # only with raw_pixels
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


def place_for_onnx(path: str | Path) -> Path:
    """Check that an ONNX file may be written here: a new file, or an ONNX file to replace."""
    place = Path(path)
    if place.is_dir():
        raise ConfigError(f"{path} is a folder. Give the name of a file in it.", argument="onnx")
    if place.suffix.lower() != ".onnx":
        raise ConfigError(
            f"{path} must end in .onnx, so that no other file is replaced.", argument="onnx"
        )
    return place


def export_onnx(
    classifier: Classifier,
    path: str | Path,
    *,
    images: Sequence[str | Path | ImageRef] = (),
    labels: Sequence[int] | NDArray[np.int64] | None = None,
    include_preprocessing: bool = False,
    raw_pixels: bool = False,
    int8: bool = False,
    max_risk: float | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `path` if its probabilities equal torch's on `images`, or else on phantoms.

    Args:
        classifier: a loaded model, on the CPU, with the engine torch.
        path: the file, ending in .onnx.
        images: images to compare on; up to ten phantoms are added if there are only a few.
        labels: class numbers of `images`, to measure the accuracy lost with int8.
        include_preprocessing: take uint8 [N, H, W, 3] and normalise inside the graph.
        raw_pixels: take uint8 [H, W, 3], one image of any size, and also resize and crop inside.
        int8: store and multiply the image tower's weights in 8 bits.
        max_risk: store the threshold for this error rate, from the model's calibration; not
            with int8, for which the calibration does not hold.
        tolerance: how much a probability may differ from torch's.
    """
    require_extra()
    place = place_for_onnx(path)
    if max_risk is not None:
        _check_guarantee(classifier, int8=int8)
    if labels is not None and len(labels) != len(images):
        raise ConfigError(
            f"There are {len(labels)} labels for {len(images)} images.", argument="labels"
        )
    if classifier.card.bags is not None:
        refuse_for_bags(raw_pixels=raw_pixels, int8=int8)
    refs, prep = _pictures(classifier, images), classifier.backbone.preprocessing
    total = max(len(refs), sum(BATCHES))
    how = {"include_preprocessing": include_preprocessing, "raw_pixels": raw_pixels}
    card = file_metadata(classifier, **how, max_risk=max_risk, int8=int8)
    with (
        write_atomically(place, suffixes=(".onnx",)) as aside,
        tempfile.TemporaryDirectory() as folder,
    ):
        model = build(classifier, **how)
        full = Path(folder) / "float32.onnx"
        full.write_bytes(model.SerializeToString())
        predictors = {"torch": torch_predictor(classifier), "onnx": onnx_predictor(full, prep)}
        batches = in_batches(model_crops(refs, prep, least=total))
        reference, difference = _compare(list(predictors.values()), batches, total, tolerance)
        card["check"] = {
            "images": total,
            "largest_difference": difference,
            "tolerance": tolerance,
        }
        resizing = None
        if raw_pixels:
            resizing = _resizing(predictors["onnx"], refs, reference, classifier.card.findings)
            card["check"]["resizing"] = asdict(resizing)
        if int8:
            small = Path(folder) / "int8.onnx"
            quantise(full, small)
            predictors["int8"] = onnx_predictor(small, prep)
        per_second = speeds(predictors, next(model_crops(refs, prep)))
        cost = None
        if int8:
            cost = Int8(
                **_cost(
                    predictors["int8"], refs, prep, reference, labels, classifier.card.findings
                ),
                float32_bytes=full.stat().st_size,
                speed_gain=per_second["int8"] / per_second["onnx"],
            )
            card["int8"] = asdict(cost)
            model = importlib.import_module("onnx").load(small)
        _finish(model, card, aside)
        onnx_predictor(aside, prep)  # it opens with its metadata
        size = aside.stat().st_size
    return Exported(
        path=place,
        bytes=size,
        images=total,
        phantoms=total - len(refs),
        largest_difference=difference,
        images_per_second=per_second,
        int8=cost,
        resizing=resizing,
        note=guarantee_note(classifier, int8=int8),
    )


def _pictures(classifier: Classifier, images: Sequence[str | Path | ImageRef]) -> list[ImageRef]:
    """The images to compare on; for a model of bags, volumes give their slices."""
    bags = classifier.card.bags
    if bags is None or not images:
        return classifier.refs(images)
    return [ref for _, ref in named_pictures(list(images), BagRule(None, bags.rule.slices))]


def _check_guarantee(classifier: Classifier, *, int8: bool) -> None:
    """Refuse a risk limit if the calibration was made with another encoder than the file's."""
    if int8:
        raise ConfigError(
            "max_risk cannot be guaranteed with int8: its threshold is for the encoder that the "
            "model was calibrated with, and 8 bits change the encoder. Export without int8; or "
            "leave out max_risk and find a threshold from labelled images and the int8 file.",
            argument="max_risk",
        )
    note = guarantee_note(classifier, int8=False)
    if note and classifier.calibration is not None:
        raise ConfigError(f"{note} Do that first, or leave out max_risk.", argument="max_risk")


def _compare(
    predictors: Sequence[Predictor], batches: Iterable[list[RGB]], total: int, tolerance: float
) -> tuple[NDArray[np.float32], float]:
    """Torch's probabilities and the graph's largest difference from them, refused if too large.

    For a model of bags, each batch is a bag.
    """
    reference, graph = predict_all(predictors, batches, total=total)
    largest = float(np.abs(graph - reference).max())
    if not largest <= tolerance:  # also true for NaN
        # A head with large weights turns float32's last digits into visible differences.
        raise ConfigError(
            f"The exported graph differs from torch by {largest:.1e} in a probability, more than "
            f"the allowed {tolerance:.0e}, on {total} images. Nothing was written. If the "
            "difference is acceptable, allow a larger tolerance; otherwise try another version of "
            "torch or onnxruntime.",
            argument="tolerance",
        )
    return reference, largest


def _resizing(
    predict: Predictor,
    refs: Sequence[ImageRef],
    reference: NDArray[np.float32],
    findings: bool,
) -> Resizing:
    """The graph on whole images against torch on Pillow's crops of them."""
    rows = np.concatenate([predict([image]) for image in whole_images(refs, least=len(reference))])
    same = _agreement(rows, reference, findings)
    return Resizing(len(rows), float(np.abs(rows - reference).max()), same)


def _agreement(rows: NDArray[np.float32], reference: NDArray[np.float32], findings: bool) -> float:
    """The share of images with the same most probable class; or of findings, of all answers."""
    if findings:
        return float(((rows >= 0.5) == (reference >= 0.5)).mean())
    return float((rows.argmax(axis=1) == reference.argmax(axis=1)).mean())


def _cost(
    predict: Predictor,
    refs: Sequence[ImageRef],
    prep: Preprocessing,
    reference: NDArray[np.float32],
    labels: Sequence[int] | NDArray[np.int64] | None,
    findings: bool,
) -> dict[str, Any]:
    """What 8 bits change in the predictions: all of `Int8` but size and speed."""
    total = len(reference)
    alone = in_batches(model_crops(refs, prep, least=total), (1,))
    (rows,) = predict_all([predict], alone, total=total)
    # Other batch sizes must work too, though their numbers differ slightly.
    others = [predict(list(model_crops((), prep, least=size))) for size in BATCHES]
    if not all(np.isfinite(p).all() for p in (rows, *others)):
        raise ConfigError(
            "The int8 graph gives numbers that are not finite. Export without int8.",
            argument="int8",
        )
    given = len(refs) or total
    difference = float(np.abs(rows[:given] - reference[:given]).max())
    right = [
        None if labels is None else _accuracy(p[:given], np.asarray(labels), findings)
        for p in (rows, reference)
    ]
    return {
        "images": given,
        "largest_difference": difference,
        "agreement": _agreement(rows[:given], reference[:given], findings),
        "accuracy": right[0],
        "float32_accuracy": right[1],
    }


def _accuracy(p: NDArray[np.float32], labels: NDArray[np.int64], findings: bool) -> float:
    """The share of images with the right class; of findings, of known answers that are right."""
    if findings:
        return float(((p >= 0.5) == (labels == 1))[labels >= 0].mean())
    return float((p.argmax(axis=1) == labels).mean())


def _finish(model: Any, card: dict[str, Any], file: Path) -> None:
    """Write the graph with its metadata and no trace of where it was made."""
    strip(model)
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(card, ensure_ascii=False)
    file.write_bytes(model.SerializeToString())


def torch_predictor(classifier: Classifier) -> Predictor:
    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        pixels = normalise(crops, classifier.backbone.preprocessing)
        wanted = {"deep": True} if classifier.deep else {}
        features = classifier.backbone.encode_images(pixels, patches=False, **wanted).rows
        bags = None if classifier.card.bags is None else torch.zeros(len(crops), dtype=torch.long)
        return classifier.probabilities(features, bags)

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
    given = session.get_inputs()[0]
    raw, alone = given.type == "tensor(uint8)", len(given.shape) == 3

    def predict(crops: Sequence[RGB]) -> NDArray[np.float32]:
        if alone:
            each = [session.run(["probabilities"], {INPUT: crop})[0] for crop in crops]
            return np.concatenate(each)
        pixels = np.stack(crops) if raw else normalise(crops, prep).numpy()
        found: NDArray[np.float32] = session.run(["probabilities"], {INPUT: pixels})[0]
        return found

    return predict


def model_crops(
    images: Sequence[ImageRef], prep: Preprocessing, *, least: int = 1
) -> Iterator[RGB]:
    """The images at the model's size, followed by phantoms if there are fewer than `least`."""
    for image in whole_images(images, least=least):
        yield center_crop(image, prep)


def whole_images(images: Sequence[ImageRef], *, least: int) -> Iterator[RGB]:
    for image in images:
        yield read_image(image)
    names = tuple(PHANTOMS)
    for index in range(least - len(images)):
        name = names[index % len(names)]
        label = index % len(PHANTOMS[name].class_names)
        yield render(name, label, seed=0, index=index).image


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
