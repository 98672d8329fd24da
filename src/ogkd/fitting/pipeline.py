"""The one way from a request to a classifier: prepare, train, keep; and one from names alone."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

from ogkd.backbones import Backbone
from ogkd.backbones.changes import without_change
from ogkd.data.case import Dataset, images_of
from ogkd.data.names import normal_labels
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import SKIPPED, write_skipped
from ogkd.files import fail_if_locked, folder_atomically, storage_errors, write_text
from ogkd.fitting.cases import learn
from ogkd.fitting.choose import backbone_for
from ogkd.fitting.prepare import Drawn, Prepared, bank_of, prepare, text_sides, whole_rows
from ogkd.fitting.request import FitRequest, Prompts
from ogkd.images import ImageRef
from ogkd.methods import TrainingFolder, make_method, refuse_diverged
from ogkd.model.calibration import CALIBRATION
from ogkd.model.card import BackboneCard, ModelCard, PoolingCard
from ogkd.model.classifier import (
    CARD,
    LOG,
    Classifier,
    history_lines,
    place_for_model,
    read_history,
)
from ogkd.model.load import load
from ogkd.prompts.bank import require_classes

P = ParamSpec("P")
_log = logging.getLogger("ogkd.fit")
_ZERO_SHOT = "zero-shot-ensemble"


def fit_request(request: FitRequest) -> Classifier:
    """Fit a classifier; with `out` it is saved, and an interrupted fit continues there."""
    return fit_or_find(request)[0]


def fit_or_find(request: FitRequest) -> tuple[Classifier, bool]:
    """Fit a classifier, or find it in `out` (True): the same request is not fitted twice."""
    if request.out is None:
        return train(prepare(request)), False
    folder = place_for_model(request.out)
    with fail_if_locked(folder):
        return _fit_into(folder, request)


def progress_of(folder: Path) -> Path:
    """The folder in which a fit into `folder` keeps its progress until the model is there."""
    return folder.with_name(f".{folder.name}.training")


def _fit_into(folder: Path, request: FitRequest) -> tuple[Classifier, bool]:
    work = progress_of(folder)
    with storage_errors(folder):
        work.mkdir(parents=True, exist_ok=True)  # now, not after an hour of encoding
    try:
        prepared = prepare(request)
        if finished := _finished(prepared, folder):
            shutil.rmtree(work, ignore_errors=True)  # left by a kill just after the end
            return finished, True
        fitted = train(prepared, work)
        with folder_atomically(folder) as aside:
            fitted.write_into(aside)
            if request.on_error == "skip":
                write_skipped(aside / SKIPPED, prepared.skipped)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            work.rmdir()  # which fails if there is progress in it
    return fitted, False


def _finished(prepared: Prepared, folder: Path) -> Classifier | None:
    """The model in `folder` if this fit made it; any other is replaced only on request."""
    request = prepared.request
    try:
        changed = _differences(ModelCard.read(folder / CARD), _card(prepared))
    except ConfigError:
        return None  # nothing there, or damaged
    if not (changed or request.restart):
        with contextlib.suppress(ConfigError):  # damaged: fit it again
            model = load(folder, backbone=prepared.backbone)
            _log.info(f"{request.out} is already fitted with these options: nothing to do.")
            return model
    other = f", fitted with other {', '.join(changed)}" if changed else ""
    if changed and not request.restart:
        lost = " and its calibration" if (folder / CALIBRATION).exists() else ""
        raise ConfigError(
            f"{request.out} contains a model{other}. A new fit would replace it{lost}. Choose "
            "another folder, or ask for a restart.",
            argument="restart",
        )
    _log.warning(f"Note: this fit replaces the model in {request.out}{other}.")
    return None


# Fields of a card by the words of a fit. Versions are not among them: after an upgrade a model is
# still the one that was asked for.
_WORDS = {
    "method": "method",
    "config": "settings",
    "asks": "classes",
    "backbone": "backbone",
    "teacher": "teacher",
    "prompts_sha256": "prompts",
    "data_sha256": "images",
    "support_images": "images",
    "unlabelled_images": "unlabelled images",
    "shots": "shots",
    "seed": "seed",
    "cases": "cases",
}


def _differences(old: ModelCard, new: ModelCard) -> list[str]:
    """In which words two fits differ; a backbone is its digest, wherever it is."""
    first, second = (card.model_dump(mode="json") for card in (old, new))
    for card in (first, second):
        for backbone in filter(None, (card["backbone"], card["teacher"])):
            backbone.pop("name")
    words = (word for field, word in _WORDS.items() if first[field] != second[field])
    return list(dict.fromkeys(words))


def _as_function(request: Callable[P, FitRequest]) -> Callable[P, Classifier]:
    """`fit_request` with the request's own options as arguments, for people and type checkers."""

    @functools.wraps(fit_request)
    def call(*args: P.args, **options: P.kwargs) -> Classifier:
        return fit_request(request(*args, **options))

    call.__doc__ = (FitRequest.__doc__ or "").replace("A fit:", "Fit a classifier:", 1)
    call.__name__ = call.__qualname__ = "fit"
    signature = inspect.signature(FitRequest).replace(return_annotation="Classifier")
    call.__signature__ = signature  # type: ignore[attr-defined]  # what `help` shows
    return call


fit = _as_function(FitRequest)


def train(prepared: Prepared, work: Path | None = None) -> Classifier:
    """Train and give the classifier; progress is kept in `work`."""
    request, method, card = prepared.request, prepared.method, _card(prepared)
    history: list[Mapping[str, Any]] = []
    folder = _training_folder(work, card, request, history)
    head, poolings = learn(
        method,
        prepared.support,
        prepared.task,
        prepared.texts,
        seed=request.seed,
        folder=folder,
    )
    refuse_diverged([head], method.name)
    for note in head.notes:
        _log.warning(f"Note: {note}")
    card = card.model_copy(update={"poolings": tuple(map(PoolingCard.of, poolings))})
    backbone, kept = method.tower(prepared.backbone, head.tensors()), prepared.kept
    if kept is not None and backbone is not prepared.backbone:  # tuned: it sees other features
        few = [replace(case, images=case.few) for case in prepared.drawn.support]
        rows = whole_rows(FeatureStore(backbone), few, deep=False)
        kept = replace(kept, features=rows.numpy())
    history = history if work is None else read_history(work / LOG)
    fitted = Classifier(backbone, head, card, support=kept, history=history)
    if fitted.support is not None:
        fitted.logits(fitted.support.features)  # which refuses answers that are not numbers
    return fitted


def _card(prepared: Prepared) -> ModelCard:
    request, method, task = prepared.request, prepared.method, prepared.task
    drawn, grouping = prepared.drawn, prepared.request.grouping
    # Images that settings were searched on are learned from too.
    joined = grouping.joins_images
    used = [*drawn.support, *drawn.validation] if method.needs_images or joined else []
    content = [
        (case.fingerprint, case.target, case.name if joined else "", case.image_targets)
        for case in drawn.support
    ]
    pixels = {image.pixel_fingerprint for case in used for image in case.few}
    card = ModelCard.of(
        method,
        task,
        without_change(prepared.backbone),
        preset=prepared.preset,
        prompts=prepared.bank,
        prompts_sha256=_digest([text.prompts for text in prepared.texts]),
        data_sha256=_digest(sorted(content, key=repr)),
        support_counts=task.support_counts([case.target for case in drawn.support]),
        support_images=tuple(sorted({image.fingerprint for image in images_of(used)})),
        support_pixels=tuple(sorted(pixels)),
        unlabelled_images=() if prepared.pool is None else prepared.pool.fingerprints,
        shots=request.shots,
        seed=request.seed,
        cases=grouping.as_json(),
        images=len(images_of(drawn.support)),
        learned_cases=len(drawn.support),
    )
    teacher = prepared.support and prepared.support.support.teacher
    if not teacher:
        return card
    known = BackboneCard.of(teacher.backbone)  # by name, as no path belongs in a card
    config = {**card.config, "teacher": known.name}
    return card.model_copy(update={"teacher": known, "config": config})


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _training_folder(
    folder: Path | None,
    card: ModelCard,
    request: FitRequest,
    history: list[Mapping[str, Any]],
) -> TrainingFolder:
    """Where epochs are written; without a folder, in `history`."""
    if folder is None:
        return TrainingFolder(None, "", history.append)
    # The texts are in it by content; what their bank is called decides nothing.
    fingerprint = _digest(card.model_dump(mode="json", exclude={"prompts"}))
    if request.restart:
        shutil.rmtree(folder, ignore_errors=True)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / LOG
    if log_path.is_file():
        write_text(log_path, history_lines(read_history(log_path)), ours=True)

    def log(entry: Mapping[str, Any]) -> None:
        with storage_errors(log_path), log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    return TrainingFolder(folder, fingerprint, log)


def zero_shot(
    classes: Sequence[str],
    *,
    backbone: str | Path | Backbone = FitRequest.backbone,
    prompts: Prompts | None = None,
    images: Sequence[str | Path | ImageRef] = (),
    device: str = FitRequest.device,
    engine: str = FitRequest.engine,
) -> Classifier:
    """Make a classifier of the texts of classes; it learns from no image and is not calibrated.

    Args:
        classes: the names of at least two classes.
        backbone: as for `fit`; "auto" looks at `images`, and without any takes a real backbone.
        prompts: texts of the classes: a mapping, a JSON file or the name of a shipped bank
            (default: templates).
        images: some that the model is meant for.
        device: where to compute: auto, cpu, cuda, cuda:1 or mps.
        engine: how images are encoded: torch, bf16, fp16 or auto.

    Example:
        >>> model = zero_shot(["benign mass", "malignant mass"], backbone="builtin")
        >>> model.class_names
        ('benign mass', 'malignant mass')
    """
    names = tuple(require_classes(classes))
    if len(names) < 2:
        raise ConfigError("Give at least two classes to choose between.", argument="classes")
    task = OneOf(names, normal_labels(names, None))
    request = FitRequest(
        Dataset((), task),
        backbone=backbone,
        method=_ZERO_SHOT,
        prompts=prompts,
        device=device,
        engine=engine,
    )
    name, bank = bank_of(request, None, names)
    loaded = backbone_for(request, [ImageRef.of(image) for image in images])
    texts = text_sides(loaded, task, bank)
    return train(
        Prepared(request, make_method(_ZERO_SHOT), None, task, texts, Drawn([], []), bank=name)
    )
