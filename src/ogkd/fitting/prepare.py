"""From data to what a method learns from: images drawn, text side, features of the support.

The benchmark prepares its runs with these functions too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor

from ogkd.backbones import Backbone
from ogkd.datasets.bags import BagRule, in_bags, with_bags
from ogkd.datasets.catalog import Benchmark
from ogkd.datasets.fetch import named_benchmark, resolve_data
from ogkd.datasets.groups import contradictory, separate_groups
from ogkd.datasets.manifest import Item, Manifest, first_lines
from ogkd.datasets.read import require_files
from ogkd.datasets.splits import Sampling, keep_classes, shortfalls, support_and_val
from ogkd.errors import ConfigError, DataError, counted
from ogkd.features.store import FeatureStore, blank_pictures
from ogkd.features.unreadable import BadFile, readable_items, unreadable, unreadable_error
from ogkd.features.views import OnlineViews, cached_views
from ogkd.fitting.bags import BagSupport, few_of_each
from ogkd.fitting.choose import backbone_for
from ogkd.fitting.findings import learnable, require_findings
from ogkd.fitting.pool import Pool, pool_for, read_pool, require_unlabelled
from ogkd.fitting.request import FitRequest, Prompts
from ogkd.images.ref import advice_once
from ogkd.methods import Method, Support, TextSide, make_method, presets
from ogkd.model.familiarity import SupportFeatures
from ogkd.prompts.bank import (
    OURS,
    absent_bank,
    bank_file,
    bank_for,
    bank_name,
    fallback_note,
    fold,
    read_bank,
    shipped_banks,
)

_GIB = 1024**3
ONE_SET = 1  # the seed that the benchmark drew its adapters' images with


@dataclass(frozen=True)
class Drawn:
    """The images to learn from, and those that a method may choose its settings by."""

    support: list[Item]
    validation: list[Item]


@dataclass(frozen=True)
class Prepared:
    """All that training needs, for one run per seed."""

    request: FitRequest
    seeds: tuple[int, ...]
    method: Method
    preset: str | None
    text: TextSide
    drawn: list[Drawn]
    supports: list[Support]  # empty if the method needs no images
    kept: list[SupportFeatures | None]  # the whole images, to compare new ones with
    pools: list[Pool | None]  # unlabelled images
    skipped: list[BadFile]
    bank: str | None = None  # name of the prompt bank
    bags: list[BagSupport] = field(default_factory=list)  # of each seed; empty without bags


def prepare(request: FitRequest, seeds: Sequence[int]) -> Prepared:
    """Read the data, draw the images, load the backbone and encode what is missing."""
    named = None if isinstance(request.data, Manifest) else named_benchmark(request.data)
    preset = request.preset or default_preset(request.method, named)
    method = make_method(request.method, preset=preset, settings=request.settings)
    if request.unlabelled is not None:
        require_unlabelled(method)
    normal = named.normal if request.normal is None and named is not None else request.normal
    manifest, judged, skipped = _training_data(request, normal)
    if manifest.has_findings:
        require_findings(request, method)
        manifest = learnable(request, manifest)
    name, bank = bank_of(request, named)
    if note := fallback_note(manifest.class_names, bank):
        request.note(f"Note: {note}")
    drawn = [
        draw(
            manifest,
            method,
            shots=request.shots,
            seed=seed,
            sampling=request.sampling,
            validation=request.bag_rule is None,
        )
        for seed in seeds
    ]
    first = drawn[0].support
    if scarce := shortfalls(manifest.class_names, first, request.shots):
        each = ", ".join(f"'{name}' {count}" for name, count in scarce.items())
        request.note(
            f"Note: fewer than {request.shots} {request.unit}s, all of which are used: {each}."
        )
    everything = [item for one in drawn for item in one.support]
    require_files(everything)
    images = list(dict.fromkeys(item.image for item in everything))
    backbone = backbone_for(request, images)
    text = text_side(
        backbone,
        manifest.class_names,
        bank,
        () if manifest.has_findings else normal_labels(manifest.class_names, normal),
        findings=manifest.has_findings,
    )
    store = FeatureStore(backbone)
    if request.bag_rule is not None:
        blank, said = blank_pictures(store, everything)
        images = [image for image in images if image not in blank]
        drawn = [
            replace(one, support=[item for item in one.support if item.image not in blank])
            for one in drawn
        ]
        if said:
            request.note(said)
    supports: list[Support] = []
    bags: list[BagSupport] = []
    kept: list[SupportFeatures | None] = [None] * len(drawn)
    pools: list[Pool | None] = [None] * len(drawn)
    if method.needs_images or request.bag_rule is not None:
        try:
            supports = [
                make_support(method, store, one.support, one.validation, seed)
                for one, seed in zip(drawn, seeds, strict=True)
            ]
            deep = method.uses_deep(backbone)
            kept = [_support_features(store, few_of_each(one.support), deep=deep) for one in drawn]
            if request.unlabelled is not None:
                pool = read_pool(request, store, deep=deep, judged=judged)
                classes, width = len(manifest.class_names), backbone.embed_dim
                pools = [
                    pool_for(request, pool, one.support, known, classes, width)
                    for one, known in zip(drawn, kept, strict=True)
                ]
                supports = [
                    support if found is None else replace(support, unlabelled=found.rows)
                    for support, found in zip(supports, pools, strict=True)
                ]
            if request.bag_rule is not None:
                bags = [
                    BagSupport.of(support, whole_rows(store, one.support, deep=deep), one.support)
                    for support, one in zip(supports, drawn, strict=True)
                ]
        except DataError:
            # One bad file stops the work: name those of all seeds at once.
            if bad := unreadable(images):
                raise unreadable_error(bad) from None
            raise
        if request.bag_rule is None:
            for same in contradictory(first):
                files = " = ".join(str(item.image) for item in same)
                request.note(f"Note: the same image has several labels: {files}. Correct them.")
    backbone.release()  # the images are encoded
    for shard in sorted(store.damaged):
        request.note(f"Note: the cached features {shard} were damaged; they were computed again.")
    if store.encoded:
        rate = store.encoded / max(store.seconds, 1e-9)
        request.note(f"Encoded {counted(store.encoded, 'image')} ({rate:.1f} images/s).")
    return Prepared(
        request, tuple(seeds), method, preset, text, drawn, supports, kept, pools, skipped, name,
        bags,
    )  # fmt: skip


def draw(
    manifest: Manifest,
    method: Method,
    *,
    shots: int | None,
    seed: int,
    sampling: Sampling = "released",
    classes: Sequence[int] | None = None,
    validation: bool = True,
) -> Drawn:
    """Draw from the training part: shots of all classes, then only `classes`, numbered from 0.

    This is the released order; base-to-novel gives the base labels as `classes`. A method as the
    benchmark ran it has one few-shot set for all seeds (fidelity.md, 52). Without `validation` no
    validation images are drawn: they are kept to be judged on.
    """
    seed = ONE_SET if method.as_benchmarked else seed
    val = [item for item in manifest.items if item.split == "val"]
    support, held = support_and_val(
        manifest.part("train"),
        val if validation and method.uses_validation else [],
        shots,
        seed,
        sampling=sampling,
    )
    names = manifest.class_names
    if classes is not None:
        support, held = (
            list(keep_classes(Manifest(tuple(items), names), classes).items)
            for items in (support, held)
        )
        names = tuple(names[label] for label in sorted(classes))
    if method.needs_training:
        _refuse_classes_without_images(names, support)
    return Drawn(support, held)


def text_side(
    backbone: Backbone,
    class_names: Sequence[str],
    bank: Mapping[str, Sequence[str]] | None,
    normal: Sequence[int],
    *,
    budget: int | None = None,
    findings: bool = False,
) -> TextSide:
    """The classes' prompts, templates if there is no bank; `budget` keeps the first of each.

    With `findings`, the texts that say that a finding is absent are added.
    """
    texts = bank_for(class_names, bank)
    if budget is not None:
        fewest = min(len(row) for row in texts)
        if budget > fewest:
            raise ConfigError(
                f"A budget of {budget} prompts is more than the {fewest} that the bank has for "
                f"one of the classes. Use budgets up to {fewest}."
            )
        texts = [row[:budget] for row in texts]
    prompts = tuple(tuple(row) for row in texts)
    absent = tuple(tuple(row) for row in absent_bank(class_names, bank)) if findings else None
    return TextSide(backbone, tuple(class_names), prompts, tuple(normal), absent)


def make_support(
    method: Method,
    store: FeatureStore,
    support: Sequence[Item],
    validation: Sequence[Item],
    seed: int,
) -> Support:
    """Features of the images, in the views that the method asks for."""
    require_files([*support, *validation])
    deep = method.uses_deep(store.backbone)
    chosen: tuple[Tensor, Tensor] | None = None
    if validation:
        features = store.get([item.image for item in validation], deep=deep).rows[:, 0]
        chosen = features, torch.tensor([item.answer for item in validation])
    labels = torch.tensor([item.answer for item in support])
    images = [item.image for item in support]
    patches = method.uses_patches
    if method.config.views == "online":
        return Support(OnlineViews(store.backbone, images, patches=patches), labels, chosen)
    _refuse_beyond_memory(method, store.backbone, len(images))
    found = cached_views(
        store, images, count=method.kept_views, seed=seed, patches=patches, deep=deep,
        adapter=method.as_benchmarked,
    )  # fmt: skip
    return Support(found, labels, chosen)


def normal_labels(class_names: Sequence[str], normal: Sequence[str] | None) -> tuple[int, ...]:
    """Labels of the classes that mean "nothing found", by `normal` or by their own name."""
    if normal is None:
        marks = {"normal", "healthy"}
        return tuple(
            label
            for label, name in enumerate(class_names)
            if marks & set(name.lower().replace("-", " ").split())
        )
    known = {fold(name): label for label, name in enumerate(class_names)}
    strange = [name for name in normal if fold(name) not in known]
    if strange:
        raise ConfigError(
            f"There is no class '{strange[0]}' to be the normal one. The classes are: "
            f"{', '.join(class_names)}.",
            argument="normal",
        )
    return tuple(sorted({known[fold(name)] for name in normal}))


def _training_data(
    request: FitRequest, normal: Sequence[str] | None
) -> tuple[Manifest, list[Item], list[BadFile]]:
    """The dataset with its slices chosen and groups kept apart; what judges models; bad files."""
    root, rule = None if request.root is None else Path(request.root), request.bag_rule
    whole = resolve_data(
        request.data,
        root=root,
        class_names=request.class_names,
        findings=request.findings,
        bags=None if rule is None else rule.by,
    )
    for what, advice in whole.ignored:
        request.note(f"Note: {what} {advice}")
    manifest, shared = separate_groups(whole)
    if shared:
        request.note(
            f"Note: {len(shared)} training or validation image(s) are left out: images of the same "
            "patients are in a part that models are judged on."
        )
    known = normal_labels(manifest.class_names, normal)
    if rule is not None:  # all parts at once: no bag may be in two of them
        manifest = with_bags(manifest, rule, normal=known)
    train = manifest.part("train")
    rest = [item for item in manifest.items if item.split == "val"]
    if rule is None:
        used = replace(manifest, items=(*train, *rest)).sliced(request.slice_rule)
    else:  # nothing is chosen on validation bags
        part = replace(manifest, items=tuple(train))
        used = in_bags(part, BagRule(None, rule.slices), normal=known)
    judged = [item for item in manifest.items if item.split not in ("", "train")]
    if request.on_error == "stop":
        return used, judged, []
    good, bad = readable_items(used.part("train"), manifest.class_names)
    _, install = advice_once([file.reason for file in bad])
    if bad:
        said = f"Skipped {len(bad)} file(s) that cannot be read; {len(good)} remain. {install}"
        request.note(said.rstrip())
    if lost := {str(item.bag) for item in used.part("train")} - {str(item.bag) for item in good}:
        names = first_lines(sorted(lost))
        request.note(f"No picture remains of {counted(len(lost), 'bag')}:\n{names}")
    rest = [item for item in used.items if item.split == "val"]
    return replace(used, items=(*good, *rest)), judged, bad


def bank_of(
    request: FitRequest, named: Benchmark | None
) -> tuple[str | None, Mapping[str, Sequence[str]] | None]:
    """The name and the texts of the prompt bank that a request asks for."""
    prompts: Prompts | None = request.prompts
    dataset = None if named is None else named.name
    if prompts is None and dataset in shipped_banks():
        prompts = OURS
    if not isinstance(prompts, str | Path):
        return (None if prompts is None else "own texts"), prompts
    return bank_name(prompts), read_bank(bank_file(prompts, dataset))


def default_preset(method: str, named: Benchmark | None = None) -> str | None:
    """The paper's settings for its own benchmarks, `auto` for everything else."""
    known = presets(method)
    wanted = [f"paper/few-shot/{named.name}"] if named is not None else []
    return next((preset for preset in [*wanted, "auto"] if preset in known), None)


def _support_features(
    store: FeatureStore, items: Sequence[Item], *, deep: bool
) -> SupportFeatures | None:
    if not items:
        return None
    labels = torch.tensor([item.answer for item in items])
    return SupportFeatures(whole_rows(store, items, deep=deep).numpy(), labels.numpy())


def whole_rows(store: FeatureStore, items: Sequence[Item], *, deep: bool) -> Tensor:
    """Features [N, w] of whole images."""
    return store.get([item.image for item in items], deep=deep).rows[:, 0].float()


def _refuse_classes_without_images(class_names: Sequence[str], items: Sequence[Item]) -> None:
    """A trained context needs an image of every class."""
    present = {item.label for item in items}
    names = [name for label, name in enumerate(class_names) if label not in present]
    if names:
        raise DataError(
            f"There is no image to learn from for: {', '.join(names)}. Put at least one image of "
            "each class in the training part, or remove the class."
        )


def _refuse_beyond_memory(method: Method, backbone: Backbone, images: int) -> None:
    """Patches of all views of a support are held at once; those of fresh crops are not."""
    views = method.config.views
    if not method.uses_patches or views == "online":
        return
    grid = backbone.patch_grid[0] * backbone.patch_grid[1]
    needed = images * max(1, views) * grid * backbone.embed_dim * 2
    free = psutil.virtual_memory().available
    if needed > 0.8 * free:
        raise ConfigError(
            f"Patch features of {images} images with {max(1, views)} views need "
            f"{needed / _GIB:.1f} GiB, but {free / _GIB:.1f} GiB are free. Use fewer shots, set "
            "views to a smaller number, or set lambda_lgd to 0, which leaves the patch loss out."
        )
