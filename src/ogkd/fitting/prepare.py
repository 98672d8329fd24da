"""From data to what a method learns from: cases drawn, texts, features of the support.

The benchmark prepares its runs with these functions too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.backbones import Backbone
from ogkd.core.pooling import is_pooled
from ogkd.data.case import Case, Dataset, case_numbers, image_targets, images_of, require_files
from ogkd.data.catalog import Benchmark
from ogkd.data.fetch import named_benchmark, resolve_data
from ogkd.data.names import normal_labels
from ogkd.data.splits import contradictory, separate_groups, shortfalls, support_and_val
from ogkd.data.task import Task
from ogkd.errors import ConfigError, DataError, pluralize
from ogkd.features.store import FeatureStore, without_blank
from ogkd.features.unreadable import BadFile, readable_cases, unreadable, unreadable_error
from ogkd.features.views import OnlineViews, cached_views, pixel_views
from ogkd.fitting.cases import CaseSupport
from ogkd.fitting.choose import backbone_for
from ogkd.fitting.pool import Pool, pool_for, read_pool
from ogkd.fitting.request import FitRequest, Prompts
from ogkd.methods import METHODS, Method, Support, Teacher, TextSide, make_method, presets
from ogkd.model.familiarity import SupportFeatures
from ogkd.prompts.bank import (
    OURS,
    absent_bank,
    bank_file,
    bank_for,
    bank_name,
    fallback_note,
    read_bank,
    shipped_banks,
)

log = logging.getLogger("ogkd.fit")
ONE_SET = 1  # the seed that the benchmark drew its adapters' images with


@dataclass(frozen=True)
class Drawn:
    """The cases to learn from, and those that a method may choose its settings by."""

    support: list[Case]
    validation: list[Case]


@dataclass(frozen=True)
class Prepared:
    """All that training needs."""

    request: FitRequest
    method: Method
    preset: str | None
    task: Task
    texts: list[TextSide]  # of each question
    drawn: Drawn
    support: CaseSupport | None = None  # None if the method needs no images
    kept: SupportFeatures | None = None  # of whole images, to compare new ones with
    pool: Pool | None = None  # unlabelled images
    skipped: list[BadFile] = field(default_factory=list)
    bank: str | None = None  # name of the prompt bank

    @property
    def backbone(self) -> Backbone:
        return self.texts[0].backbone


def prepare(request: FitRequest) -> Prepared:
    """Read the data, draw the cases, load the backbone and encode what is missing."""
    named = named_benchmark(request.data) if isinstance(request.data, str | Path) else None
    preset = request.preset or default_preset(request.method, named)
    method = make_method(request.method, preset=preset, settings=request.settings)
    if method.needs_pixels and request.grouping.joins_images:
        raise ConfigError(
            f"{method.name} tunes the image tower on single images, not on cases of several.",
            argument="method",
        )
    if request.unlabelled is not None:
        _require(method, "unlabelled", "learns from labelled images only")
    dataset, judged, skipped = _training_data(request, named)
    for feature in dataset.task.needs:
        _require(method, feature, f"cannot learn {dataset.task.plural}, which this data lists")
    name, bank = bank_of(request, named, dataset.names)
    drawn = draw(
        dataset,
        method,
        shots=request.shots,
        seed=request.seed,
        validation=not request.grouping.joins_images,  # they are kept to be judged on
    )
    if scarce := shortfalls(dataset.task, drawn.support, request.shots):
        each = ", ".join(f"'{name}' {count}" for name, count in scarce.items())
        log.warning(f"Note: fewer than {request.shots} {dataset.unit}s, all used: {each}.")
    require_files(drawn.support)
    backbone = backbone_for(request, list(dict.fromkeys(images_of(drawn.support))))
    backbone = method.tower(backbone, {})
    prepared = Prepared(
        request,
        method,
        preset,
        dataset.task,
        text_sides(backbone, dataset.task, bank),
        drawn,
        skipped=skipped,
        bank=name,
    )
    store = FeatureStore(backbone)
    if method.needs_images or request.grouping.joins_images:
        prepared = _with_features(prepared, store, judged)
    backbone.release()  # the images are encoded
    for shard in sorted(store.damaged):
        log.warning(f"Note: the cached features {shard} were damaged; they were computed again.")
    if store.encoded:
        rate = store.encoded / max(store.seconds, 1e-9)
        log.info(f"Encoded {pluralize(store.encoded, 'image')} ({rate:.1f} images/s).")
    return prepared


def _with_features(prepared: Prepared, store: FeatureStore, judged: Sequence[Case]) -> Prepared:
    request, method, task = prepared.request, prepared.method, prepared.task
    drawn = prepared.drawn
    if request.grouping.joins_images:
        cases, note = without_blank(store, drawn.support)
        drawn = replace(drawn, support=cases)
        if note:
            log.warning(note)
    deep = method.uses_deep(store.backbone)
    pool = None
    try:
        support = make_support(method, store, task, drawn, request.seed)
        few = [replace(case, images=case.few) for case in drawn.support]
        labels = task.labels([case.target for case in few for _ in case.images])
        kept = SupportFeatures(whole_rows(store, few, deep=deep).numpy(), labels)
        if request.unlabelled is not None:
            pool = read_pool(request, store, deep=deep, judged=judged)
            classes, width = len(task.names), store.backbone.embed_dim
            pool = pool_for(request, pool, drawn.support, kept, classes, width)
            support = support if pool is None else _with_pool(support, pool)
        rows = torch.empty(len(support.labels), 0)
        if is_pooled(torch.from_numpy(case_numbers(drawn.support))):
            rows = whole_rows(store, drawn.support, deep=deep)
        given = CaseSupport.of(task, drawn.support, support, rows)
    except DataError:
        # One bad file stops the work: name all of them at once.
        if bad := unreadable(list(dict.fromkeys(images_of(drawn.support)))):
            raise unreadable_error(bad) from None
        raise
    for same in contradictory(drawn.support):
        files = " = ".join(str(case.image) for case in same)
        log.warning(f"Note: the same image has several labels: {files}. Correct them.")
    return replace(prepared, drawn=drawn, support=given, kept=kept, pool=pool)


def _with_pool(support: Support, pool: Pool) -> Support:
    """The support with unlabelled images, seen by the teacher too if there is one."""
    teacher = support.teacher
    if teacher is not None:
        unlabelled = FeatureStore(teacher.backbone).get(pool.images).globals[:, 0].float()
        teacher = replace(teacher, unlabelled=unlabelled)
    return replace(support, unlabelled=pool.rows, teacher=teacher)


def _require(method: Method, feature: str, why: str) -> None:
    """Refuse a method that cannot do what the request or the data asks for."""
    if feature not in method.supports:
        able = ", ".join(
            sorted(name for name, other in METHODS.items() if feature in other.supports)
        )
        raise ConfigError(
            f"{method.name} {why}. Use {able}.",
            argument="unlabelled" if feature == "unlabelled" else "method",
        )


def draw(
    dataset: Dataset,
    method: Method,
    *,
    shots: int | None,
    seed: int,
    classes: Sequence[int] | None = None,
    validation: bool = True,
) -> Drawn:
    """Draw from the training part: shots of all classes, then only `classes`, numbered from 0.

    This is the released order; base-to-novel gives the base labels as `classes`. A method as the
    benchmark ran it has one few-shot set for all seeds (fidelity.md, 52). Without `validation` no
    validation images are drawn: they are kept to be judged on.
    """
    seed = ONE_SET if method.as_benchmarked else seed
    val = [case for case in dataset.cases if case.split == "val"]
    support, held = support_and_val(
        dataset.task,
        dataset.part("train"),
        val if validation and method.uses_validation else [],
        shots,
        seed,
    )
    task = dataset.task
    if classes is not None:
        parts = [dataset.with_cases(cases).restrict(classes) for cases in (support, held)]
        task = parts[0].task
        support, held = (list(part.cases) for part in parts)
    counts = task.support_counts([case.target for case in support])
    empty = [name for name, count in zip(task.names, counts, strict=True) if not count]
    if empty and method.needs_training:
        raise DataError(
            f"There is no image to learn from for: {', '.join(empty)}. Put at least one image of "
            "each class in the training part, or remove the class."
        )
    return Drawn(support, held)


def text_sides(
    backbone: Backbone,
    task: Task,
    bank: Mapping[str, Sequence[str]] | None,
    *,
    budget: int | None = None,
) -> list[TextSide]:
    """The prompts of each question, templates if there is no bank; `budget` keeps the first."""
    texts = bank_for(task.names, bank)
    if budget is not None:
        fewest = min(len(row) for row in texts)
        if budget > fewest:
            raise ConfigError(
                f"A budget of {budget} prompts is more than the {fewest} that the bank has for "
                f"one of the classes. Use budgets up to {fewest}."
            )
        texts = [row[:budget] for row in texts]
    absent = absent_bank(task.names, bank)
    sides = []
    for names, normal in zip(task.question_names(), task.question_normal(), strict=True):
        known = {f"no {name}": row for name, row in zip(task.names, absent, strict=True)}
        known |= dict(zip(task.names, texts, strict=True))
        prompts = tuple(tuple(known[name]) for name in names)
        sides.append(TextSide(backbone, names, prompts, normal))
    return sides


def make_support(
    method: Method, store: FeatureStore, task: Task, drawn: Drawn, seed: int
) -> Support:
    """Features of the drawn cases' images, in the views that the method asks for."""
    require_files([*drawn.support, *drawn.validation])
    deep = method.uses_deep(store.backbone)
    chosen: tuple[Tensor, Tensor] | None = None
    if drawn.validation:
        features = store.get(images_of(drawn.validation), deep=deep).rows[:, 0]
        chosen = features, torch.from_numpy(_image_labels(task, drawn.validation))
    labels = torch.from_numpy(_image_labels(task, drawn.support))
    images = images_of(drawn.support)
    patches = method.uses_patches
    if method.needs_pixels:
        crops = method.config.views == "online"
        return Support(pixel_views(store.backbone, images, crops=crops), labels, chosen)
    if method.config.views == "online":
        return Support(OnlineViews(store.backbone, images, patches=patches), labels, chosen)
    views = cached_views(
        store, images, count=method.kept_views, seed=seed, patches=patches, deep=deep,
        adapter=method.as_benchmarked,
    )  # fmt: skip
    teacher = method.teacher(store.backbone)
    if teacher is not None:
        rows = whole_rows(FeatureStore(teacher), drawn.support, deep=False)
        return Support(views, labels, chosen, teacher=Teacher(teacher, rows))
    return Support(views, labels, chosen)


def _image_labels(task: Task, cases: Sequence[Case]) -> NDArray[np.int64]:
    """The label of every image: its own, or that of its case."""
    targets = image_targets(cases)
    if targets is None:
        targets = [case.target for case in cases for _ in case.images]
    return task.labels(targets)


def _training_data(
    request: FitRequest, named: Benchmark | None
) -> tuple[Dataset, list[Case], list[BadFile]]:
    """What is learned from, patients kept apart; the cases that judge models; bad files."""
    whole = resolve_data(
        request.data,
        root=None if request.root is None else Path(request.root),
        class_names=request.class_names,
        findings=request.findings,
        columns=request.columns,
    )
    for what, advice in whole.ignored:
        log.warning(f"Note: {what} {advice}")
    task = whole.task
    for option in task.no_option:
        if getattr(request, option) is not None:
            raise ConfigError(f"{option} has no meaning for {task.plural}.", argument=option)
    normal = named.normal if request.normal is None and named is not None else request.normal
    if "normal" not in task.no_option and (normal is not None or not task.normal):
        whole = whole.with_normal(normal_labels(task.names, normal))
    grouping = request.grouping
    # All parts, as no case may be in two; before patients are kept apart, as it has one of them.
    merged = grouping.merge(whole.cases, whole.task)
    whole = replace(whole, cases=tuple(merged), unit=grouping.unit)
    dataset, shared = separate_groups(whole)
    if shared:
        log.warning(
            f"Note: {len(shared)} training or validation {whole.unit}(s) are left out: images of "
            "the same patients are in a part that models are judged on."
        )
    judged = [case for case in dataset.cases if case.split not in ("", "train")]
    train = grouping.expand(dataset.part("train"))
    rest = [case for case in dataset.cases if case.split == "val"]
    skipped: list[BadFile] = []
    if request.on_error == "skip":
        before = len(train)
        train, skipped = readable_cases(train, dataset.task)
        if skipped:
            note = f"Skipped {len(skipped)} file(s) that cannot be read; {len(train)} of "
            log.warning(f"{note}{pluralize(before, dataset.unit)} remain.")
    return _learnable(request, dataset.with_cases((*train, *rest))), judged, skipped


def _learnable(request: FitRequest, dataset: Dataset) -> Dataset:
    """The data without names and cases that training can learn nothing about."""
    targets = dataset.targets(dataset.part("train"))
    if summary := dataset.task.summary(targets):
        log.info(f"Note: {summary}")
    numbers, warnings = dataset.task.learnable(targets)
    for warning in warnings:
        log.warning(f"WARNING: {warning}")
    if len(numbers) < len(dataset.names):
        dataset = dataset.restrict(numbers)
    task = dataset.task
    used = [c for c in dataset.cases if task.strata(c.target) or c.split not in ("", "train")]
    if lost := len(dataset.cases) - len(used):
        log.warning(f"Note: {lost} image(s) are not learned from: nothing is known about them.")
    return dataset.with_cases(used)


def bank_of(
    request: FitRequest, named: Benchmark | None, names: Sequence[str]
) -> tuple[str | None, Mapping[str, Sequence[str]] | None]:
    """The name and the texts of the prompt bank that a request asks for."""
    prompts: Prompts | None = request.prompts
    dataset = None if named is None else named.name
    if prompts is None and dataset in shipped_banks():
        prompts = OURS
    name = None if prompts is None else "own texts"
    if isinstance(prompts, str | Path):
        name, prompts = bank_name(prompts), read_bank(bank_file(prompts, dataset))
    if note := fallback_note(names, prompts):
        log.warning(f"Note: {note}")
    return name, prompts


def default_preset(method: str, named: Benchmark | None = None) -> str | None:
    """The paper's settings for its own benchmarks, `auto` for everything else."""
    known = presets(method)
    wanted = [f"paper/few-shot/{named.name}"] if named is not None else []
    return next((preset for preset in [*wanted, "auto"] if preset in known), None)


def whole_rows(store: FeatureStore, cases: Sequence[Case], *, deep: bool) -> Tensor:
    """Features [N, w] of whole images."""
    return store.get(images_of(cases), deep=deep).rows[:, 0].float()
