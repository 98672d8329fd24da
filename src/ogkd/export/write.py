"""Export, compare with torch, and only then write the file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ogkd.data.case import images_of
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.errors import ConfigError, OgkdError
from ogkd.export.graph import INPUT, build
from ogkd.export.metadata import KEY, file_metadata, guarantee_note
from ogkd.files import write_atomically
from ogkd.images import ImageRef, read_image
from ogkd.images.transforms import RGB, Preprocessing, center_crop, normalise
from ogkd.model.classifier import Classifier, cases_of
from ogkd.progress import progress_bar

TOLERANCE = 1e-4  # of a probability
BATCHES = (1, 2, 7)  # images per batch; the last size is repeated


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
    try:
        for name in ("onnx", "onnxruntime", "onnxscript"):
            importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f'The export needs the package {name}. Install it with: pip install "ogkd[onnx]".'
        ) from error


def check_onnx_path(path: str | Path) -> Path:
    """Check that an ONNX file may be written here: a new file, or an ONNX file to replace."""
    file = Path(path)
    if file.is_dir() or file.suffix.lower() != ".onnx":
        raise ConfigError(f"{path} is not the name of a file ending in .onnx.", argument="onnx")
    return file


def export_onnx(
    classifier: Classifier,
    path: str | Path,
    *,
    images: Sequence[str | Path | ImageRef] = (),
    max_risk: float | None = None,
    tolerance: float = TOLERANCE,
) -> Exported:
    """Write `path` if its probabilities equal torch's on `images`, or else on phantoms.

    Args:
        classifier: a loaded model, on the CPU, with the engine torch.
        path: the file, ending in .onnx.
        images: images to compare on; up to ten phantoms are added if there are only a few.
        max_risk: store the threshold for this error rate, from the model's calibration.
        tolerance: how much a probability may differ from torch's.
    """
    require_extra()
    target = check_onnx_path(path)
    note = guarantee_note(classifier)
    if max_risk is not None and note and classifier.calibration is not None:
        raise ConfigError(f"{note} Do that first, or leave out max_risk.", argument="max_risk")
    # Each image for itself: which of them are a case does not matter, volumes give their slices.
    grouping = replace(classifier.card.grouping, by=None)
    refs = images_of(cases_of(list(images), grouping))
    total = max(len(refs), sum(BATCHES))
    card = file_metadata(classifier, max_risk=max_risk)
    with write_atomically(target) as temporary:
        try:
            model = build(classifier)
            session = open_session(model.SerializeToString())
        except OgkdError:
            raise
        except Exception as error:  # exporter and runtime raise many kinds of errors
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(
                f"torch {torch.__version__} cannot export {classifier.card.method} on "
                f"{classifier.backbone.name} as ONNX ({reason}). Use the model folder itself."
            ) from error
        difference = _largest_difference(classifier, session, refs, total)
        if not difference <= tolerance:  # also true for NaN
            # A head with large weights turns float32's last digits into visible differences.
            raise ConfigError(
                f"The exported graph differs from torch by {difference:.1e} in a probability, more "
                f"than the allowed {tolerance:.0e}, on {total} images. Nothing was written.",
                argument="tolerance",
            )
        card["check"] = {"images": total, "largest_difference": difference, "tolerance": tolerance}
        del model.metadata_props[:]
        entry = model.metadata_props.add()
        entry.key, entry.value = KEY, json.dumps(card, ensure_ascii=False)
        content: bytes = model.SerializeToString()
        open_session(content)  # it opens with its metadata
        temporary.write_bytes(content)
    return Exported(target, len(content), total, total - len(refs), difference, note)


def _largest_difference(
    classifier: Classifier, session: Any, images: Sequence[ImageRef], total: int
) -> float:
    """The graph's largest difference from torch; where cases have several images, by batches."""
    backbone, joined = classifier.backbone, classifier.card.grouping.joins_images
    options = {"deep": True} if classifier.deep else {}
    differences = []
    with progress_bar("Checking", total) as bar:
        for crops in in_batches(model_crops(images, backbone.preprocessing, least=total)):
            pixels = normalise(crops, backbone.preprocessing)
            features = backbone.encode_images(pixels, patches=False, **options).rows
            case = torch.zeros(len(crops), dtype=torch.long) if joined else None
            [output] = session.run(
                ["logits" if joined else "probabilities"], {INPUT: pixels.numpy()}
            )
            graph = classifier.pooled(torch.from_numpy(output), case) if joined else output
            differences.append(np.abs(graph - classifier.probabilities(features, case)).max())
            bar.advance(len(crops))
    return float(np.max(differences))


def open_session(content: bytes) -> Any:
    """The content of an ONNX file in onnxruntime, on as many threads as torch uses here."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def model_crops(images: Sequence[ImageRef], prep: Preprocessing, *, least: int) -> Iterator[RGB]:
    """The images at the model's size, followed by phantoms if there are fewer than `least`."""
    for image in images:
        yield center_crop(read_image(image), prep)
    names = islice(cycle(PHANTOMS), max(0, least - len(images)))
    for index, name in enumerate(names):
        label = index % len(PHANTOMS[name].class_names)
        yield center_crop(render(name, label, seed=0, index=index).image, prep)


def in_batches(crops: Iterable[RGB], sizes: Sequence[int] = BATCHES) -> Iterator[list[RGB]]:
    """Batches of these sizes, with the last size repeated."""
    rest = iter(crops)
    for size in chain(sizes, repeat(sizes[-1])):
        if not (batch := list(islice(rest, size))):
            return
        yield batch
