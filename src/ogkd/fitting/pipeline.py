"""The one way from a request to classifiers: prepare, train, keep."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

from ogkd import plugins
from ogkd.datasets.manifest import by_bag
from ogkd.errors import ConfigError
from ogkd.features.unreadable import SKIPPED, write_skipped
from ogkd.files import folder_atomically, not_twice, storage_errors, write_text
from ogkd.fitting.bags import bag_card, few_of_each, learn, with_pooling
from ogkd.fitting.pool import Pool
from ogkd.fitting.prepare import Drawn, Prepared, prepare
from ogkd.fitting.request import FitRequest
from ogkd.methods import Head, TrainingFolder, fit_findings, refuse_diverged
from ogkd.model.calibration import CALIBRATION
from ogkd.model.card import SCHEMA, BackboneCard, ModelCard, versions
from ogkd.model.classifier import CARD, LOG, Classifier, place_for_model
from ogkd.model.load import load

P = ParamSpec("P")


def fit_request(request: FitRequest) -> Classifier:
    """Fit a classifier; with `out` it is saved, and an interrupted fit continues there."""
    return fit_or_find(request)[0]


def fit_or_find(request: FitRequest) -> tuple[Classifier, bool]:
    """Fit a classifier, or find it in `out` (True): the same request is not fitted twice."""
    if request.out is None:
        return fit_seeds(request, [request.seed])[0], False
    place = place_for_model(request.out)
    with not_twice(place):
        return _fit_into(place, request)


def progress_of(place: Path) -> Path:
    """The folder in which a fit into `place` keeps its progress until the model is there."""
    return place.with_name(f".{place.name}.training")


def _fit_into(place: Path, request: FitRequest) -> tuple[Classifier, bool]:
    work = progress_of(place)
    with storage_errors(place):
        work.mkdir(parents=True, exist_ok=True)  # now, not after an hour of encoding
    try:
        prepared = prepare(request, [request.seed])
        if found := _finished(prepared, place):
            shutil.rmtree(work, ignore_errors=True)  # left by a kill just after the end
            return found, True
        fitted = train(prepared, work)[0]
        with folder_atomically(place) as aside:
            fitted.write_into(aside)
            if request.on_error == "skip":
                write_skipped(aside / SKIPPED, prepared.skipped)
            if lines := _log_lines(work / LOG):
                write_text(aside / LOG, lines)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            work.rmdir()  # which fails if there is progress in it
    return fitted, False


def _finished(prepared: Prepared, place: Path) -> Classifier | None:
    """The model in `place` if this fit made it; says what happens to any other model there.

    A calibration costs labelled images, so it is deleted only on request.
    """
    request = prepared.request
    try:
        old = ModelCard.read(place / CARD)
    except ConfigError:
        return None  # nothing there, or damaged
    new = _card(prepared, prepared.drawn[0], prepared.pools[0], request.seed)
    changed = _differences(old, new)
    if request.on_error == "skip" and not (place / SKIPPED).is_file():
        changed.append("handling of unreadable files")  # the list of skipped files is missing
    calibrated = (place / CALIBRATION).exists()
    if not (changed or request.restart):
        with contextlib.suppress(ConfigError):  # damaged: fit it again
            found = load(place, backbone=prepared.text.backbone)
            request.note(f"{request.out} is already fitted with these options: nothing to do.")
            return found
    if calibrated and changed and not request.restart:
        raise ConfigError(
            f"{request.out} contains a calibrated model, fitted with other {', '.join(changed)}. A "
            "new fit would delete it and its calibration. Choose another folder, or ask for a "
            "restart, and calibrate the new model afterwards.",
            argument="restart",
        )
    why = f", which was fitted with other {', '.join(changed)}" if changed else ""
    request.note(
        f"Note: this fit replaces the model in {request.out}{why}."
        + (" Its calibration is deleted with it: calibrate the new model." if calibrated else "")
    )
    return None


# Fields of a card by the words of a fit. Versions are not among them: after an upgrade a model is
# still the one that was asked for.
_WORDS = {
    "method": "method",
    "config": "settings",
    "class_names": "classes",
    "findings": "kind of labels",
    "normal": "normal classes",
    "backbone": "backbone",
    "prompts_sha256": "prompts",
    "data_sha256": "images",
    "support_images": "images",
    "unlabelled_images": "unlabelled images",
    "shots": "shots",
    "seed": "seed",
    "slice": "slice",
    "bags": "bags",
    "imported_sha256": "weights (imported)",
}


def _differences(one: ModelCard, other: ModelCard) -> list[str]:
    """In which words two fits differ; a backbone is its digest, wherever it is."""
    first, second = (card.model_dump(mode="json") for card in (one, other))
    for card in (first, second):
        card["backbone"].pop("name")
        if card["bags"] is not None:  # what makes a bag was asked for, the rest was learned
            card["bags"] = card["bags"]["by"], card["bags"]["slices"]
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


def fit_seeds(
    request: FitRequest, seeds: Sequence[int], *, work: Path | None = None
) -> list[Classifier]:
    """Fit one classifier per seed, all trained together in one batched text pass.

    `work` is a folder for progress: an interrupted training there is continued.
    """
    if not seeds or min(seeds) < 0:
        raise ConfigError(
            f"seeds must be whole numbers from 0 on, at least one, but are {list(seeds)}."
        )
    return train(prepare(request, seeds), work)


def train(prepared: Prepared, work: Path | None = None) -> list[Classifier]:
    """Train all seeds in one pass; progress is kept in `work`."""
    cards = [
        _card(prepared, drawn, pool, seed)
        for drawn, pool, seed in zip(prepared.drawn, prepared.pools, prepared.seeds, strict=True)
    ]
    folder = _training_folder(work, cards, prepared.request)
    method, text = prepared.method, prepared.text
    heads: list[Head]
    if text.findings:
        pairs = zip(prepared.supports, prepared.seeds, strict=True)
        heads = [fit_findings(method, support, text, seed=seed) for support, seed in pairs]
    elif prepared.request.bag_rule is None:
        heads = method.fit(prepared.supports, text, seeds=prepared.seeds, folder=folder)
    else:
        learned = [
            learn(method, given, text, seed=seed, folder=folder)
            for given, seed in zip(prepared.bags, prepared.seeds, strict=True)
        ]
        heads = [head for head, _ in learned]
        cards = [
            card.model_copy(update={"bags": with_pooling(card.bags, pooling)})
            for card, (_, pooling) in zip(cards, learned, strict=True)
        ]
    refuse_diverged(heads, prepared.method.name)
    for note in dict.fromkeys(note for head in heads for note in head.notes):
        prepared.request.note(f"Note: {note}")
    fitted = [
        Classifier(prepared.text.backbone, head, card, support=support)
        for head, card, support in zip(heads, cards, prepared.kept, strict=True)
    ]
    for one in fitted:
        if one.support is not None:
            one.logits(one.support.features)  # which refuses answers that are not numbers
    return fitted


def _card(prepared: Prepared, drawn: Drawn, pool: Pool | None, seed: int) -> ModelCard:
    request, method, text = prepared.request, prepared.method, prepared.text
    # Images that settings were searched on are learned from too.
    rule = request.bag_rule
    used = [*drawn.support, *drawn.validation] if method.needs_images or rule else []
    bags = by_bag(drawn.support).values()
    shown = Counter(label for mine in bags for label in mine[0].present)
    return ModelCard(
        schema_version=SCHEMA if text.findings else 1,
        method=method.name,
        plugin=plugins.name_of(type(method)),
        preset=prepared.preset,
        config=method.config.model_dump(mode="json"),
        class_names=text.class_names,
        normal=tuple(text.class_names[label] for label in text.normal),
        backbone=BackboneCard.of(text.backbone),
        logit_scale=text.backbone.logit_scale,
        prompts=prepared.bank,
        prompts_sha256=_digest([text.prompts, text.absent] if text.findings else text.prompts),
        findings=text.findings,
        data_sha256=_digest(
            sorted(
                (item.image.key, item.answer, *((item.bag, item.shows) if rule else ()))
                for item in drawn.support
            )
        ),
        support_counts=tuple(shown[label] for label in range(len(text.class_names))),
        support_images=tuple(sorted({item.image.fingerprint for item in used})),
        support_pixels=tuple(sorted({i.image.pixel_fingerprint for i in few_of_each(used)})),
        unlabelled_images=() if pool is None else pool.fingerprints,
        shots=request.shots,
        seed=seed,
        slice=None if request.slice_rule is None else str(request.slice_rule),
        bags=None if rule is None else bag_card(rule, len(drawn.support)),
        versions=dict(versions()),
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _training_folder(
    folder: Path | None, cards: Sequence[ModelCard], request: FitRequest
) -> TrainingFolder | None:
    if folder is None:
        return None
    # The texts are in it by content; what their bank is called decides nothing.
    fingerprint = _digest([card.model_dump(mode="json", exclude={"prompts"}) for card in cards])
    if request.restart:
        shutil.rmtree(folder, ignore_errors=True)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / LOG
    if log_path.is_file():
        write_text(log_path, _log_lines(log_path), ours=True)

    def log(entry: Mapping[str, Any]) -> None:
        with storage_errors(log_path), log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    return TrainingFolder(folder, fingerprint, log, request.note)


def _log_lines(log: Path) -> str:
    """The log with one whole line for each epoch: a kill cuts lines, a resume repeats epochs."""
    kept: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept[json.loads(line)["epoch"]] = line
    return "".join(f"{kept[epoch]}\n" for epoch in sorted(kept))
