"""`OGKDClassifier`: fit, predict and score in scikit-learn's way, on files, arrays or pictures.

Arrays and pictures go through temporary PNG files, which lose nothing: so everything that works
for files, the feature cache included, works for them, and cross-validation encodes nothing twice.
"""

from __future__ import annotations

import contextlib
import inspect
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ogkd.backbones import Backbone
from ogkd.data.case import Case, Dataset, case_numbers, images_of
from ogkd.data.grouping import Grouping
from ogkd.data.names import read_class_names
from ogkd.data.task import Target, Task
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.features.store import FeatureStore
from ogkd.fitting.pipeline import fit_request
from ogkd.fitting.request import FitRequest
from ogkd.images import ImageRef, read_image
from ogkd.images.memory import InMemory, as_ref, is_one_image
from ogkd.model.load import load


class InvalidConfig(ConfigError, ValueError):
    """A ConfigError about X, y or a parameter, as scikit-learn expects it."""


class InvalidData(DataError, ValueError):
    """A DataError about X or y, as scikit-learn expects it."""


@contextlib.contextmanager
def _value_errors() -> Iterator[None]:
    try:
        yield
    except (ConfigError, DataError) as error:
        kind = InvalidConfig if isinstance(error, ConfigError) else InvalidData
        raise kind(str(error), argument=error.argument) from error


class OGKDClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped there
    """A classifier on a frozen vision-language model, for scikit-learn's tools.

    `X` is a sequence of images of the kinds that `Classifier.predict` takes: files, bytes of
    files, arrays, tensors or PIL images; an array [N, H, W] or [N, H, W, 3] works too. `y` are
    labels of any kind, or [N, F] whether an image shows each finding (1 or 0; -1 or NaN: unknown).
    Their texts are what the text tower reads: the labels themselves if they are names, or
    `class_names`, a mapping from label to name. Other parameters are those of `ogkd.fit`.

    Several images may share one answer (a case: an exam, a volume). Then an item of `X` is a list
    of images or, with `slices`, a volume.

    After `fit`: `classes_`, and `model_`, the `Classifier`, which can be saved.
    """

    method: str
    preset: str | None
    settings: Mapping[str, Any] | None
    class_names: Mapping[Any, str] | None
    slices: str | None

    def __init__(self, *args: Any, **options: Any) -> None:
        given = inspect.signature(type(self)).bind(*args, **options)
        given.apply_defaults()
        for name, value in given.arguments.items():
            setattr(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        """The model as the files of its folder: the backbone is named, and loaded again."""
        name = self.backbone.name if isinstance(self.backbone, Backbone) else self.backbone
        state: dict[str, Any] = {**super().__getstate__(), "backbone": name}
        if "model_" in state:
            with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
                self.model_.write_into(Path(folder))
                files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
            state["model_"] = files
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "model_" in state:
            with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
                for name, content in state["model_"].items():
                    (Path(folder) / name).write_bytes(content)
                state = state | {"model_": load(folder, device=state["device"])}
        super().__setstate__(state)

    @_value_errors()
    def fit(self, X: Any, y: Any) -> OGKDClassifier:
        """Learn from images X and their labels y."""
        items, labels = _listed(X), np.asarray(y)
        if labels.ndim not in (1, 2) or len(labels) != len(items):
            raise DataError(
                f"There are {len(items)} images, but labels of shape {labels.shape}. Give one "
                "label for each image, or a row with a column for each finding."
            )
        encode = self._encode_findings if labels.ndim == 2 else self._encode_classes
        task, targets = encode(labels)
        options = {name: getattr(self, name) for name in _SHARED}
        if any(isinstance(item, list | tuple) for item in items):
            options["cases"] = _COLUMN
        with _files(items) as files:
            cases = [
                Case.single(image, target, columns={_COLUMN: str(row)})
                for row, (images, target) in enumerate(zip(files, targets, strict=True))
                for image in images
            ]
            self.model_ = fit_request(FitRequest(Dataset(tuple(cases), task), **options))
        if lost := set(task.names) - set(self.model_.class_names):
            raise DataError(
                f"Nothing can be learned about {', '.join(sorted(lost))}: y needs images with it "
                "(1) and without it (0). Leave the column out."
            )
        return self

    def _encode_classes(self, labels: NDArray[Any]) -> tuple[Task, list[Target]]:
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"A classifier needs at least 2 classes, but y has {len(classes)}.")
        names = self._names(classes)
        self.classes_: Any = classes  # of several findings, a list
        return OneOf(names), numbers.tolist()

    def _encode_findings(self, labels: NDArray[Any]) -> tuple[Task, list[Target]]:
        try:
            values = np.nan_to_num(labels.astype(np.float64), nan=-1)
        except (TypeError, ValueError) as error:
            raise DataError(f"Findings are 1, 0 or -1 (unknown), but y has {error}.") from error
        if not values.shape[1] or not np.isin(values, (1, 0, -1)).all():
            raise DataError("Findings are 1, 0 or -1 (unknown), but y has other values or none.")
        names = self._names(np.arange(labels.shape[1]))
        self.classes_ = [np.array([0, 1])] * len(names)
        return Findings(names), [tuple(map(int, row)) for row in values]

    def predict_proba(self, X: Any) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Probabilities [N, C] of the classes, in the order of `classes_`.

        Of several findings, a list with [N, 2] for each: that it is absent, and present.
        """
        p = self._probabilities(X)
        if not isinstance(self.classes_, list):
            return p
        return [np.stack([1 - column, column], axis=1) for column in p.T]

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable label of each item; of several findings [N, F], 1 from 0.5."""
        p = self._probabilities(X)
        if isinstance(self.classes_, list):
            return (p >= 0.5).astype(np.int64)
        return np.asarray(self.classes_[p.argmax(axis=1)])

    @_value_errors()
    def _probabilities(self, X: Any) -> NDArray[np.float32]:
        check_is_fitted(self, "model_")
        grouping = Grouping(slices=self.model_.card.grouping.slices)
        with _files(_listed(X)) as files:
            cases = [Case(str(row), tuple(images)) for row, images in enumerate(files)]
            cases = grouping.expand(cases)
            store = FeatureStore(self.model_.backbone)
            features = store.get(images_of(cases), deep=self.model_.deep).rows[:, 0]
        return self.model_.probabilities(features, torch.from_numpy(case_numbers(cases)))

    def _names(self, classes: NDArray[Any]) -> tuple[str, ...]:
        """The class texts, in label order."""
        known = self.class_names
        if known is None:
            if classes.dtype.kind not in "UO" or not all(isinstance(c, str) for c in classes):
                warnings.warn(
                    f"The labels are {', '.join(map(str, classes[:5]))}, which mean nothing to the "
                    "text tower. Pass their names: class_names={label: name}.",
                    OgkdWarning,
                    stacklevel=3,
                )
            return read_class_names([str(label) for label in classes])
        if all(isinstance(label, str) for label in known) and set(classes.tolist()) == set(
            range(len(known))
        ):  # as cross_val_predict numbers labels for probabilities: in sorted order
            known = {number: known[label] for number, label in enumerate(sorted(known))}
        missing = [label for label in classes.tolist() if label not in known]
        if missing:
            raise ConfigError(
                f"class_names has no name for the label {missing[0]!r} of y. It has: "
                f"{', '.join(map(repr, known))}."
            )
        return read_class_names([known[label] for label in classes.tolist()])

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: images, not a table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.no_validation = True
        return tags


# What a fit on files needs beside these has no meaning for arrays.
_SHARED = (
    "backbone",
    "method",
    "shots",
    "preset",
    "settings",
    "prompts",
    "normal",
    "slices",
    "seed",
    "device",
    "engine",
)
_COLUMN = "case"  # what `ogkd predict` needs in a table for a model that was fitted here
_PLAIN = inspect.Parameter.POSITIONAL_OR_KEYWORD
_REQUEST = inspect.signature(FitRequest).parameters
# scikit-learn reads an estimator's parameters from here.
OGKDClassifier.__init__.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter("self", _PLAIN),
        *(_REQUEST[name].replace(kind=_PLAIN) for name in _SHARED[:2]),
        *(_REQUEST[name] for name in _SHARED[2:]),
        inspect.Parameter(
            "class_names",
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation="Mapping[Any, str] | None",
        ),
    ]
)


def _listed(X: Any) -> list[Any]:
    """X as a list of images; anything that is not a sequence of images is refused."""
    if is_one_image(X):
        raise DataError("X is one image. Give a list of images, even if there is only one.")
    images = list(X)
    if not images:
        raise DataError("X contains no image.")
    return images


@contextlib.contextmanager
def _files(items: Sequence[Any]) -> Iterator[list[list[ImageRef]]]:
    """Image files with the content of each item; those made here are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
        files = []
        for row, item in enumerate(items):
            images = list(item) if isinstance(item, list | tuple) else [item]
            if not images:
                raise DataError(f"Item {row} of X has no image.")
            names = (Path(folder) / f"{row}.{number}.png" for number in range(len(images)))
            files.append([_file(image, name) for image, name in zip(images, names, strict=True)])
        yield files


def _file(image: Any, path: Path) -> ImageRef:
    ref = as_ref(image, f"Image {path.stem} of X")
    if not isinstance(ref, InMemory):
        return ref
    Image.fromarray(read_image(ref)).save(path, compress_level=1)
    return ImageRef(path)
