"""From the specifications of a group of runs to their results; shared work is done once.

Before that, a folder is made ready for the runs of a plan.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from filelock import FileLock
from torch import Tensor

from ogkd.backbones import Backbone
from ogkd.bench.runs import FinishedRun, Plan, Predictions, Result, RunsFolder, RunSpec
from ogkd.bench.sources import OpenSource, Source, benchmark_of, open_source, paper, texts_of
from ogkd.core.geometry import class_graph, prototypes
from ogkd.core.training import one_thread
from ogkd.data.case import images_of, require_files
from ogkd.data.splits import base_and_novel, flip_labels
from ogkd.errors import ConfigError, DataError, OgkdError, TrainingError
from ogkd.evaluation.evaluate import grade_order
from ogkd.evaluation.metrics import plain, screening_masks, summary_metrics
from ogkd.features.encode import encode_now
from ogkd.features.store import FeatureStore
from ogkd.files import holds_files, storage_errors
from ogkd.fitting.prepare import Drawn, draw, make_support, text_sides
from ogkd.images import ImageRef
from ogkd.methods import (
    Head,
    Method,
    Support,
    TextSide,
    make_method,
    presets,
    refuse_diverged,
)
from ogkd.model.card import versions

_SMALL = 100_000_000  # multiplications, about 10 ms
MOST_TOGETHER = 12  # runs in one pass: more would gain little, and a kill loses them all


RunGroup = tuple[RunSpec, ...]
"""Runs that are trained in one pass; they differ only in seed, labels or free settings."""


@dataclass(frozen=True)
class RunResult:
    spec: RunSpec
    result: Result
    predictions: Mapping[str, Predictions]


def group_runs(specs: Sequence[RunSpec]) -> list[RunGroup]:
    """Group runs that can share one pass; it depends only on the runs that were asked for.

    Which runs are finished is ignored: a run beside others has the same numbers only up to
    rounding, so a rerun after a kill repeats the whole group and ends with the same bits. Runs that
    tune towers share nothing, so each is a group.
    """
    groups: dict[str, list[RunSpec]] = {}
    for spec in {spec.hash: spec for spec in specs}.values():
        groups.setdefault(_shape(spec), []).append(spec)
    return [
        tuple(members[start : start + MOST_TOGETHER])
        for members in groups.values()
        for start in range(0, len(members), MOST_TOGETHER)
    ]


def _shape(spec: RunSpec) -> str:
    method = method_of(spec)
    config = method.config.model_dump(mode="json", exclude=set(method.free))
    shared = () if method.needs_pixels else ("seed", "flips", "settings", "preset")
    rest = spec.without(*shared)
    return f"{rest} {json.dumps(config, sort_keys=True)} {method.uses_patches}"


def method_of(spec: RunSpec) -> Method:
    return make_method(spec.method, preset=spec.preset, settings=spec.settings)


def prepare(folder: RunsFolder, plan: Plan, sources: Mapping[str, Source]) -> list[str]:
    """Make the folder ready: store the plan, move damaged runs away, forget old failures.

    Runs on other images or prompts than those of `sources` are refused. Returns notes for the
    user.
    """
    root = folder.root
    for source in sources.values():
        texts_of(source)  # fails now, not in the first run, if a bank cannot be read
    if root.exists() and not (root / "plans").is_dir() and (root.is_file() or holds_files(root)):
        raise ConfigError(f"{root} exists and is not a folder of runs.", argument="out")
    notes = []
    made_with: dict[str, FinishedRun] = {}
    with storage_errors(root):
        for spec in plan.specs.values():
            folder.forget_failure(spec)
            if not folder.folder_of(spec).exists():
                continue
            try:
                run = folder.read(spec)
                if names := _changed_settings(run):
                    raise DataError(f"{run.folder} was made with other defaults: {names}.")
                made_with[spec.dataset] = run
            except DataError as error:
                notes.append(f"{error} It was moved to {folder.move_away(spec)}; it is run again.")
        for name in made_with.keys() & sources.keys():
            _refuse_other_data(folder, made_with[name], sources)
        folder.write_plan(plan)
    return notes


def _refuse_other_data(folder: RunsFolder, run: FinishedRun, sources: Mapping[str, Source]) -> None:
    """Results on other images or prompts must not be in one table."""
    source = sources[run.spec.dataset]
    if source.phantom:
        return
    try:
        now = _digests(run.spec, lambda name: open_source(sources[name]))
    except OgkdError:
        return  # no longer there: tables can still be made
    for key, digest in now.items():
        if getattr(run.result, key) not in (None, digest):
            word = {"data_sha256": "images", "bank_sha256": "prompts"}[key]
            raise ConfigError(
                f"{folder.root} contains runs on other {word} of '{source.name}' (they changed).",
                argument="out",
            )


def _digests(spec: RunSpec, opened: Callable[[str], OpenSource]) -> dict[str, str]:
    """Of images and prompts, to compare with those of earlier runs."""
    digests = opened(spec.dataset).digests
    if spec.test_on is not None:
        digests["data_sha256"] += f" {opened(spec.test_on).digests['data_sha256']}"
    return digests


def _changed_settings(run: FinishedRun) -> str:
    """The settings of a run whose defaults or presets have changed since: ogkd may be newer."""
    method = method_of(run.spec)
    now = method.config.model_dump(mode="json")
    # A setting that is newer than the run had its default's effect.
    then = method.Config().model_dump(mode="json") | (run.result.config or now)
    return ", ".join(name for name in {**now, **then} if then.get(name) != now.get(name))


@dataclass(frozen=True)
class _Part:
    """Test images of some classes, with their labels and the text side of those classes."""

    images: list[ImageRef]
    labels: Tensor
    text: TextSide
    features: Tensor | None  # None: each head changes the tower that encodes them


class Runner:
    """Runs groups with one backbone; keeps datasets, texts and features in memory between them."""

    def __init__(self, load: Callable[[], Backbone], sources: Mapping[str, Source]) -> None:
        self._load = load
        self._sources = sources
        self._stores: dict[str, FeatureStore] = {}
        self._open = cache(lambda name: open_source(self._sources[name]))
        self._judged = cache(self._read_judged)
        self._text = cache(self._make_text)

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone, loaded when first needed."""
        return self._load()

    def store_of(self, method: Method) -> FeatureStore:
        """The features of the backbone as the method sees it before a fit."""
        backbone = method.tower(self.backbone, {})
        if backbone.digest not in self._stores:
            self._stores[backbone.digest] = FeatureStore(backbone)
        return self._stores[backbone.digest]

    def run(self, group: RunGroup) -> list[RunResult]:
        """Train the group in one pass and test every run on its test images."""
        first = group[0]
        clock = _Clock()
        backbone = self.backbone
        clock.lap("load")
        source = self._open(first.dataset)
        methods = [method_of(spec) for spec in group]
        store = self.store_of(methods[0])
        with _encoding(store, first.dataset):
            parts = self._parts(first, methods[0], store)
        clock.lap("encode")
        trained = next(iter(parts.values())).text
        for part in parts.values():
            _ = part.text.bank  # encode now, so that it is not counted as training or testing
        clock.lap("text")
        with _encoding(store, first.dataset):
            drawn = [
                _support(method, store, spec, source) if method.needs_images else (None, None)
                for method, spec in zip(methods, group, strict=True)
            ]
        supports, counts = zip(*drawn, strict=True)
        clock.lap("encode")
        seeds = [spec.seed for spec in group]
        images = max(len(support.labels) if support else 0 for support in supports)
        # A head's largest product is images x width^2. Training of a context has its own rule.
        small = not methods[0].needs_training and images * backbone.embed_dim**2 < _SMALL
        with one_thread(small):
            heads = type(methods[0]).fit_many(methods, supports, trained, seeds=seeds)
        refuse_diverged(heads, methods[0].name)
        clock.lap("train")
        alpha = _graph_sharpness(first)
        predicted = [
            _predict(method, head, parts, alpha, clock)
            for method, head in zip(methods, heads, strict=True)
        ]
        common: dict[str, Any] = {
            "class_names": {name: list(part.text.class_names) for name, part in parts.items()},
            "normal": {name: list(part.text.normal) for name, part in parts.items()},
            "seconds": {phase: seconds / len(group) for phase, seconds in clock.items()},
            "together": len(group),
            "device": backbone.device.type,
            "versions": dict(versions()),
            "engine": backbone.engine,
            "backbone_digest": backbone.digest,
            **_digests(first, self._open),
        }
        return [
            RunResult(
                spec,
                Result(
                    metrics=_metrics(predictions, parts),
                    config=method.config.model_dump(mode="json"),
                    images_per_class=count,
                    **common,
                ),
                predictions,
            )
            for spec, method, count, predictions in zip(
                group, methods, counts, predicted, strict=True
            )
        ]

    def _parts(self, spec: RunSpec, method: Method, store: FeatureStore) -> dict[str, _Part]:
        """What is tested: "test", or "base" (the classes learned from) and "novel"."""
        names = self._open(spec.dataset).dataset.names
        chosen: dict[str, Sequence[int]] = {"test": range(len(names))}
        if spec.protocol == "base-to-novel":
            chosen = dict(zip(spec.parts, base_and_novel(names), strict=True))
        digest = store.backbone.digest
        deep = None if method.needs_pixels else method.uses_deep(store.backbone)
        key = (spec.dataset, spec.test_on, spec.judge, deep, digest)
        images, labels, features = self._judged(*key)
        parts = {}
        for name, classes in chosen.items():
            (kept,) = torch.isin(labels, torch.tensor(classes)).nonzero(as_tuple=True)
            if not len(kept):
                raise DataError(f"{spec.dataset} has no {spec.judge} images of its {name} classes.")
            parts[name] = _Part(
                [images[number] for number in kept.tolist()],
                labels[kept] - classes[0],  # the classes of a part are consecutive
                self._text(spec.dataset, spec.budget, tuple(classes), digest),
                None if features is None else features[kept],
            )
        return parts

    def _read_judged(
        self, name: str, test_on: str | None, split: str, deep: bool | None, digest: str
    ) -> tuple[list[ImageRef], Tensor, Tensor | None]:
        """Images to judge on, labels by the names learned from; features unless `deep` is None."""
        dataset = self._open(test_on or name).dataset
        if not dataset.has_splits and split != "test":
            raise DataError(f"{test_on or name} has no validation images to judge on.")
        task, cases = self._open(name).dataset.task, dataset.part(split)
        require_files(cases)
        targets, _ = task.translate(dataset.task, dataset.targets(cases))
        images, labels = images_of(cases), torch.from_numpy(task.labels(targets))
        if deep is None:
            return images, labels, None
        return images, labels, self._stores[digest].get(images, deep=deep).rows[:, 0]

    def _make_text(
        self, name: str, budget: int | None, classes: Sequence[int], digest: str
    ) -> TextSide:
        source = self._open(name)
        task, _ = source.dataset.task.restrict(classes)
        return text_sides(self._stores[digest].backbone, task, source.bank, budget=budget)[0]


def _encoding(store: FeatureStore, dataset: str) -> FileLock:
    """A lock: one process encodes a dataset, others wait and find it encoded."""
    store.folder.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(dataset.encode()).hexdigest()[:16]
    return FileLock(store.folder / f".{name}.lock")


def _support(
    method: Method, store: FeatureStore, spec: RunSpec, source: OpenSource
) -> tuple[Support, list[int]]:
    """Features of drawn images, and how many of each class were drawn: K, or all if fewer.

    Labels are flipped after the draw, as in released code.
    """
    task = source.dataset.task
    base = base_and_novel(task.names)[0] if spec.protocol == "base-to-novel" else None
    drawn = draw(
        source.dataset, method, shots=spec.shots, seed=spec.seed,
        classes=base, validation=spec.judge != "val",
    )  # fmt: skip
    if base is not None:
        task, _ = task.restrict(base)
    counts = task.support_counts([case.target for case in drawn.support])
    allowed = [label for label, count in enumerate(counts) if count]
    flipped = flip_labels(drawn.support, spec.flips, spec.seed, allowed=allowed)
    drawn = Drawn(flipped, drawn.validation)
    return make_support(method, store, task, drawn, spec.seed), list(counts)


def _predict(
    method: Method, head: Head, parts: Mapping[str, _Part], alpha: float, clock: _Clock
) -> dict[str, Predictions]:
    by_part = {}
    for name, part in parts.items():
        part_head = method.head_for(head, part.text) if name == "novel" else head
        features = part.features
        if features is None:  # not kept on the disk: no other run has this tower
            clock.lap("test")
            tower = method.tower(part.text.backbone, part_head.tensors())
            features = encode_now(tower, part.images)
            clock.lap("encode")
        p = part_head.of_rows(features).softmax(dim=-1)
        W = class_graph(prototypes(part.text.bank), alpha)
        if not bool(p.isfinite().all()):  # a finite head can overflow
            raise TrainingError(f"{method.name} gave values that are not numbers on {name} images.")
        arrays = (part.labels.numpy(), p.float().numpy(), W.float().numpy())
        by_part[name] = Predictions(*arrays)
    clock.lap("test")
    return by_part


def _graph_sharpness(spec: RunSpec) -> float:
    """The alpha of the dataset's class graph W, which is stored beside every method's predictions.

    It is the paper's for this benchmark, whatever the settings of the run.
    """
    name, preset = paper().method, f"paper/{spec.protocol}/{benchmark_of(spec)}"
    method = make_method(name, preset=preset if preset in presets(name) else "auto")
    return float(getattr(method.config, paper().graph_setting))


def _metrics(
    predicted: Mapping[str, Predictions], parts: Mapping[str, _Part]
) -> dict[str, dict[str, float | None]]:
    by_part = {}
    for name, predictions in predicted.items():
        graded = grade_order(parts[name].text.class_names)
        metrics = summary_metrics(predictions.labels, predictions.probabilities, graded=graded)
        by_part[name] = {key: plain(value) for key, value in metrics.items()}
        if normal := parts[name].text.normal:
            ill, flagged = screening_masks(predictions.labels, predictions.probabilities, normal)
            for key, which in (("false_alarms", flagged[~ill]), ("sensitivity", flagged[ill])):
                by_part[name][key] = float(which.mean()) if len(which) else None
    return by_part


class _Clock(dict[str, float]):
    """Seconds by phase; a phase may occur several times."""

    def __init__(self) -> None:
        self._then = time.perf_counter()

    def lap(self, phase: str) -> None:
        now = time.perf_counter()
        self[phase] = self.get(phase, 0.0) + now - self._then
        self._then = now
