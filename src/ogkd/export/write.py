"""Export, compare with torch, and only then leave a file."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.errors import ConfigError
from ogkd.export.card import KEY, describe, promise_note
from ogkd.export.compare import (
    BATCHES,
    Run,
    answers,
    in_batches,
    onnx_run,
    pictures,
    speeds,
    torch_run,
)
from ogkd.export.graph import build, strip
from ogkd.export.int8 import quantise
from ogkd.files import write_atomically
from ogkd.images import ImageRef
from ogkd.model.classifier import Classifier

__all__ = ["TOLERANCE", "Exported", "Int8", "export_onnx", "place_for_onnx", "require_extra"]

TOLERANCE = 1e-4  # of a probability
_EXTRA = ("onnx", "onnxruntime", "onnxscript")


@dataclass(frozen=True)
class Int8:
    """What 8 bits cost and gain, against torch in float32 on the same images one by one."""

    images: int
    largest_difference: float
    agreement: float  # share of images with the same most probable class
    accuracy: float | None  # where labels are known
    float32_accuracy: float | None
    float32_bytes: int
    speed_gain: float  # against the float32 graph on this machine; below 1 it is slower


@dataclass(frozen=True)
class Exported:
    """The file and how it was checked."""

    path: Path
    bytes: int
    images: int  # compared with torch, phantoms included
    phantoms: int  # of these
    largest_difference: float  # of the float32 graph's probabilities from torch's
    images_per_second: dict[str, float]  # torch, onnx and, asked for, int8: one image at a time
    int8: Int8 | None = None
    note: str = ""  # why the calibration promises nothing for this file


def require_extra() -> None:
    """Refuse to start without the packages of the extra `onnx`."""
    for name in _EXTRA:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"The export needs the package {name}, which is not installed. Install it with: "
                'pip install "ogkd[onnx]".'
            ) from error


def place_for_onnx(path: str | Path) -> Path:
    """Where an ONNX file may be written: a new name, or an ONNX file to replace."""
    place = Path(path)
    if place.is_dir():
        raise ConfigError(f"--onnx {path} is a folder. Give the name of a file in it.")
    if place.suffix.lower() != ".onnx":
        raise ConfigError(f"--onnx {path} must end in .onnx, so that no other file is replaced.")
    return place


def export_onnx(
    classifier: Classifier,
    path: str | Path,
    *,
    images: Sequence[str | Path | ImageRef] = (),
    labels: Sequence[int] | NDArray[np.int64] | None = None,
    include_preprocessing: bool = False,
    int8: bool = False,
    max_risk: float | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `path` if its probabilities are torch's on `images`, or on phantoms without any.

    Args:
        classifier: a loaded model, on the CPU, with the engine torch.
        path: the file, ending in .onnx.
        images: files to compare on; up to ten phantoms are added where they are few.
        labels: class numbers of `images`, for the accuracy that int8 costs.
        include_preprocessing: take uint8 [N, H, W, 3] and normalise inside the graph.
        int8: store and multiply the image tower's weights in 8 bits.
        max_risk: note the threshold for this error rate, from the model's calibration; not
            with int8, which the calibration was not made with.
        tolerance: how much a probability may differ from torch's.
    """
    require_extra()
    place = place_for_onnx(path)
    if max_risk is not None:
        _refuse_threshold(classifier, int8=int8)
    if labels is not None and len(labels) != len(images):
        raise ConfigError(f"There are {len(labels)} labels for {len(images)} images.")
    paths = classifier.refs(images)
    card = describe(
        classifier,
        include_preprocessing=include_preprocessing,
        max_risk=max_risk,
        int8=int8,
    )
    with write_atomically(place) as aside, tempfile.TemporaryDirectory() as folder:
        model = build(classifier, include_preprocessing=include_preprocessing)
        full = Path(folder) / "float32.onnx"
        full.write_bytes(model.SerializeToString())
        found = _Checked(classifier, full, paths, tolerance)
        card["check"] = {
            "images": len(found.torch),
            "largest_difference": found.largest_difference,
            "tolerance": tolerance,
        }
        runs = {"torch": found.runs[0], "onnx": found.runs[1]}
        small = None
        if int8:
            small = Path(folder) / "int8.onnx"
            quantise(full, small)
            runs["int8"] = onnx_run(small, classifier.backbone.preprocessing)
        per_second = speeds(runs, next(pictures(paths, classifier.backbone.preprocessing)))
        cost = None
        if small is not None:
            cost = _cost(found, runs["int8"], labels, full, per_second)
            card["int8"] = asdict(cost)
            model = _read(small)
        _finish(model, card, aside)
        onnx_run(aside, classifier.backbone.preprocessing)  # it opens, metadata and all
        size = aside.stat().st_size
    return Exported(
        path=place,
        bytes=size,
        images=len(found.torch),
        phantoms=len(found.torch) - len(paths),
        largest_difference=found.largest_difference,
        images_per_second=per_second,
        int8=cost,
        note=promise_note(classifier, int8=int8),
    )


def _refuse_threshold(classifier: Classifier, *, int8: bool) -> None:
    """A threshold to abstain below is of the encoder that it was found with, and of no other."""
    if int8:
        raise ConfigError(
            "--max-risk cannot be promised with --int8: its threshold is for the encoder that the "
            "model was calibrated with, which 8 bits change. Export without --int8; or leave out "
            "--max-risk, and find a threshold from labelled images put through the int8 file."
        )
    if classifier.calibration is None:
        raise ConfigError(
            "A threshold for --max-risk comes from calibration images, and this model has seen "
            "none. Run `ogkd calibrate` first."
        )
    if note := promise_note(classifier, int8=False):
        raise ConfigError(f"{note} Do that first, or leave out --max-risk.")


class _Checked:
    """Torch's and the graph's probabilities of the same images; refuses where they differ."""

    def __init__(
        self, classifier: Classifier, file: Path, paths: Sequence[ImageRef], tolerance: float
    ) -> None:
        self.prep, self.paths = classifier.backbone.preprocessing, paths
        self.runs = (torch_run(classifier), onnx_run(file, self.prep))
        total = max(len(paths), sum(BATCHES))
        batches = in_batches(pictures(paths, self.prep, least=total))
        self.torch, graph = answers(self.runs, batches, total=total)
        self.largest_difference = float(np.abs(graph - self.torch).max())
        if not self.largest_difference <= tolerance:  # also true for NaN
            # A head with large weights turns float32's last digits into visible differences.
            raise ConfigError(
                f"The exported graph differs from torch by {self.largest_difference:.1e} in a "
                f"probability, more than the {tolerance:.0e} that is allowed, on {total} images. "
                "Nothing was written. If it is little more and you can live with it, allow it "
                "with --tolerance; else try another version of torch or onnxruntime."
            )


def _cost(
    found: _Checked,
    run: Run,
    labels: Sequence[int] | NDArray[np.int64] | None,
    full: Path,
    per_second: dict[str, float],
) -> Int8:
    total = len(found.torch)
    alone = in_batches(pictures(found.paths, found.prep, least=total), (1,))
    (rows,) = answers([run], alone, total=total)
    # Other batch sizes must work as well, though their numbers are a little different.
    others = [run(list(pictures((), found.prep, least=size))) for size in BATCHES]
    if not all(np.isfinite(p).all() for p in (rows, *others)):
        raise ConfigError("The int8 graph gives numbers that are not finite. Leave out --int8.")
    given = len(found.paths) or total
    small, reference = rows[:given], found.torch[:given]

    def accuracy(p: NDArray[np.float32]) -> float | None:
        return None if labels is None else float((p.argmax(axis=1) == np.asarray(labels)).mean())

    return Int8(
        images=given,
        largest_difference=float(np.abs(small - reference).max()),
        agreement=float((small.argmax(axis=1) == reference.argmax(axis=1)).mean()),
        accuracy=accuracy(small),
        float32_accuracy=accuracy(reference),
        float32_bytes=full.stat().st_size,
        speed_gain=per_second["int8"] / per_second["onnx"],
    )


def _read(file: Path) -> Any:
    import onnx

    return onnx.load(file)


def _finish(model: Any, card: dict[str, Any], file: Path) -> None:
    """Write the graph with its description and nothing else about where it was made."""
    strip(model)
    del model.metadata_props[:]
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, json.dumps(card, ensure_ascii=False)
    file.write_bytes(model.SerializeToString())
