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
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted

from ogkd.datasets.bags import BagRule, grouped, in_bags
from ogkd.datasets.manifest import (
    ABSENT,
    NO_CLASS,
    PRESENT,
    UNKNOWN,
    Item,
    Manifest,
    by_bag,
    read_class_names,
)
from ogkd.errors import ConfigError, DataError, OgkdWarning, did_you_mean
from ogkd.features.store import FeatureStore
from ogkd.fitting.pipeline import fit_request
from ogkd.fitting.prepare import default_preset
from ogkd.fitting.request import FitRequest
from ogkd.images import ImageRef, read_image
from ogkd.images.memory import InMemory, as_ref, is_one_image
from ogkd.methods import METHODS, flatten, make_method


class OGKDClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # untyped there
    """A classifier on a frozen vision-language model, for scikit-learn's tools.

    `X` is a sequence of images of the kinds that `Classifier.predict` takes: files, bytes of
    files, arrays, tensors or PIL images; an array [N, H, W] or [N, H, W, 3] works too. `y` are
    labels of any kind.
    Their texts are what the text tower reads: the labels themselves if they are names, or
    `class_names`, a mapping from label to name. Other parameters are those of `ogkd.fit`.

    Several images may share one answer (bags: an exam, a volume). Then either an item of `X` is a
    list of images, and `y` has a label for each item; or `groups` names the bag of each image, in
    `fit`, `predict`, `predict_proba` and `score`, `y` has a label for each image, and answers are
    one for each bag, in the order in which bags first appear; or, with `slices`, an item of `X` is
    a volume.

    Single settings of the method are parameters too: `settings__alpha` for `GridSearchCV`, and
    `settings__train__epochs` for the setting train.epochs.

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

    def fit(self, X: Any, y: Any, groups: Any = None) -> OGKDClassifier:
        """Learn from images X and their labels y; `groups` are the bags of the images."""
        given, labels = _listed(X), np.asarray(y)
        images, bags = _in_bags(given, groups)
        if labels.ndim == 2:
            if bags is not None or self.slices is not None:
                raise DataError("A bag has one class, not several findings: y must be [N].")
            return self._fit_findings(images, labels)
        if labels.ndim != 1 or len(labels) != len(given):
            raise DataError(
                f"There are {len(given)} images, but labels of shape {labels.shape}. Give one "
                "label for each image."
            )
        classes, numbers = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            raise DataError(f"A classifier needs at least 2 classes, but y has {len(classes)}.")
        names = self._names(classes)
        if bags is not None and groups is None:  # a label for each bag
            numbers = numbers[[int(name) for name in bags]]
        with _files(images) as paths:
            items = [
                Item(path, int(numbers[row]), bag=None if bags is None else bags[row])
                for row, path in enumerate(paths)
            ]
            self._learn(items, names, bags=None if bags is None else _COLUMN)
        self.classes_: Any = classes  # of several findings, a list
        return self

    def _fit_findings(self, images: list[Any], labels: NDArray[Any]) -> OGKDClassifier:
        """Labels [N, F]: whether an image shows each finding (1 or 0), -1 or NaN if unknown."""
        if len(labels) != len(images) or not labels.shape[1]:
            raise DataError(
                f"There are {len(images)} images, but labels of shape {labels.shape}. Give one row "
                "for each image, and a column for each finding."
            )
        try:
            said = np.nan_to_num(labels.astype(np.float64), nan=UNKNOWN)
        except (TypeError, ValueError) as error:
            raise DataError(f"Findings are 1, 0 or -1 (unknown), but y has {error}.") from error
        if odd := set(np.unique(said).tolist()) - {PRESENT, ABSENT, UNKNOWN}:
            raise DataError(f"Findings are 1, 0 or -1 (unknown), but y has {min(odd):g}.")
        numbers = np.arange(labels.shape[1])
        names = self._names(numbers)
        with _files(images) as paths:
            items = [
                Item(path, NO_CLASS, findings=tuple(map(int, row)))
                for path, row in zip(paths, said, strict=True)
            ]
            self._learn(items, names)
        if lost := set(names) - set(self.model_.class_names):
            raise DataError(
                f"Nothing can be learned about {', '.join(sorted(lost))}: y needs images with it "
                "(1) and without it (0). Leave the column out."
            )
        self.classes_ = [np.array([0, 1])] * len(names)
        return self

    def _learn(self, items: Sequence[Item], names: tuple[str, ...], **more: Any) -> None:
        options = {name: getattr(self, name) for name in _SHARED} | more
        self.model_ = fit_request(FitRequest(Manifest(tuple(items), names), **options))

    def predict_proba(
        self, X: Any, groups: Any = None
    ) -> NDArray[np.float32] | list[NDArray[np.float32]]:
        """Probabilities [N, C] of the classes, in the order of `classes_`; of bags, [B, C].

        Of several findings, a list with [N, 2] for each: that it is absent, and present.
        """
        p = self._probabilities(X, groups)
        if not self.model_.card.findings:
            return p
        return [np.stack([1 - column, column], axis=1) for column in p.T]

    def _probabilities(self, X: Any, groups: Any) -> NDArray[np.float32]:
        check_is_fitted(self, "model_")
        images, bags = _in_bags(_listed(X), groups)
        rule = None if self.model_.card.bags is None else self.model_.card.bags.rule
        if rule is None and bags is not None:
            raise DataError("This classifier was fitted on single images. Leave the bags out.")
        if rule is not None and bags is None:
            if rule.slices is None:
                raise DataError(
                    "This classifier was fitted on bags of images. Give the groups of the images, "
                    "or a list of images for each bag."
                )
            bags = [str(row) for row in range(len(images))]  # each volume is one
        with _files(images) as paths:
            refs, of = paths, None
            if rule is not None:
                named = grouped(
                    list(zip(paths, bags or (), strict=True)), BagRule(None, rule.slices)
                )
                refs = [ref for _, ref in named]
                number = {name: place for place, name in enumerate(dict.fromkeys(bags or ()))}
                of = torch.tensor([number[name] for name, _ in named])
            store = FeatureStore(self.model_.backbone)
            features = store.get(refs, deep=self.model_.deep).rows[:, 0]
        return self.model_.probabilities(features, of)

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """The accuracy; with `groups`, the share of bags with the right answer."""
        if groups is not None:
            check_is_fitted(self, "model_")
            _, bags = _in_bags(_listed(X), groups)
            y = self._bag_labels(np.asarray(y), bags or [])
        said = self.predict(X, groups) if groups is not None else self.predict(X)
        return float(accuracy_score(y, said, sample_weight=sample_weight))

    def _bag_labels(self, y: NDArray[Any], bags: Sequence[str]) -> NDArray[Any]:
        """The label of each bag by those of its images, as a fit understands them."""
        if y.ndim != 1 or len(y) != len(bags):
            raise DataError(f"There are {len(bags)} images, but labels of shape {y.shape}.")
        values, numbers = np.unique(y, return_inverse=True)
        texts, known = self.class_names or {}, self.model_.card.normal
        normal = [n for n, value in enumerate(values.tolist()) if texts.get(value, value) in known]
        items = tuple(
            Item(ImageRef(Path(f"{row}.png")), int(numbers[row]), bag=bag)
            for row, bag in enumerate(bags)
        )
        found = in_bags(Manifest(items, tuple(map(str, values))), BagRule(_COLUMN), normal=normal)
        return np.asarray(values[[mine[0].label for mine in by_bag(found.items).values()]])

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """The most probable label of each image or bag; of several findings [N, F], 1 from 0.5."""
        p = self._probabilities(X, groups)
        if self.model_.card.findings:
            return (p >= 0.5).astype(np.int64)
        return np.asarray(self.classes_[p.argmax(axis=1)])

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also every setting of the method, as settings__NAME."""
        params: dict[str, Any] = super().get_params(deep=False)
        if deep:
            given = dict(self.settings or {})
            with contextlib.suppress(ConfigError):  # fitting will say what is wrong with them
                preset = self.preset or default_preset(self.method)
                method = make_method(self.method, preset=preset, settings=given)
                given = method.config.model_dump()
            params |= {f"settings__{key}": value for key, value in flatten(given, "__")}
        return params

    def set_params(self, **params: Any) -> OGKDClassifier:
        """Set parameters; settings__NAME is one setting, settings__train__epochs a nested one."""
        plain = {name: value for name, value in params.items() if not name.startswith(_SETTING)}
        super().set_params(**plain)
        if nested := {
            name.removeprefix(_SETTING).replace("__", "."): value
            for name, value in params.items()
            if name not in plain
        }:
            if self.method in METHODS:
                known = dict(flatten(METHODS[self.method].Config().model_dump(), "."))
                for name in nested:
                    if name not in known:
                        raise ConfigError(
                            f"{self.method} has no setting '{name}'.{did_you_mean(name, known)} "
                            f"Settings of {self.method}: {', '.join(known)}.",
                            argument="settings",
                        )
            # A new mapping: clones share the old one.
            self.settings = dict(flatten(self.settings or {}, ".")) | nested
        return self

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
_COLUMN = "bag"  # what `ogkd predict` needs in a table for a model that was fitted here
_SETTING = "settings__"
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


def _in_bags(images: list[Any], groups: Any) -> tuple[list[Any], list[str] | None]:
    """All images one by one, and the bag of each; None if they are not in bags."""
    if groups is not None:
        names = np.asarray(groups, dtype=object).tolist()
        if len(names) != len(images):
            raise DataError(f"There are {len(images)} images, but {len(names)} groups.")
        if any(name is None or name != name for name in names):
            raise DataError("Some images have no group. Name the bag of each image, or drop them.")
        return images, [str(name) for name in names]
    lists = [isinstance(one, list | tuple) for one in images]
    if not any(lists):
        return images, None
    if odd := [n for n, one in enumerate(images) if not lists[n] or not len(one)]:
        raise DataError(
            f"Some items of X are lists of images, so each must be, but item {odd[0]} is not, or "
            "is empty."
        )
    flat = [(image, str(row)) for row, bag in enumerate(images) for image in bag]
    return [image for image, _ in flat], [name for _, name in flat]


@contextlib.contextmanager
def _files(images: Sequence[Any]) -> Iterator[list[ImageRef]]:
    """Image files with the content of the images; those made here are removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="ogkd-") as folder:
        yield [_file(image, Path(folder) / f"{row}.png") for row, image in enumerate(images)]


def _file(image: Any, place: Path) -> ImageRef:
    ref = as_ref(image, f"Image {place.stem} of X")
    if not isinstance(ref, InMemory):
        return ref
    Image.fromarray(read_image(ref)).save(place, compress_level=1)
    return ImageRef(place)
