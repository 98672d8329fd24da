"""From data to what a method learns from: images drawn, text side, features of the support.

The benchmark prepares its runs with these functions too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.datasets.catalog import Benchmark
from ogkd.datasets.fetch import named_benchmark, resolve_data
from ogkd.datasets.groups import separate_groups
from ogkd.datasets.manifest import Item, Manifest
from ogkd.datasets.read import require_files
from ogkd.datasets.splits import Sampling, keep_classes, shortfalls, support_and_val
from ogkd.errors import ConfigError, DataError
from ogkd.features.store import FeatureStore
from ogkd.features.unreadable import BadFile, readable_items, unreadable, unreadable_error
from ogkd.features.views import OnlineViews, cached_views
from ogkd.fitting.request import FitRequest, Prompts
from ogkd.methods import Method, Support, TextSide, make_method, presets
from ogkd.model.familiarity import SupportFeatures
from ogkd.prompts.bank import bank_for, fallback_note, fold, read_bank, shipped_banks

_GIB = 1024**3


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
    skipped: list[BadFile]


def prepare(request: FitRequest, seeds: Sequence[int]) -> Prepared:
    """Read the data, draw the images, load the backbone and encode what is missing."""
    named = None if isinstance(request.data, Manifest) else named_benchmark(request.data)
    preset = request.preset or _default_preset(request.method, named)
    method = make_method(request.method, preset=preset, settings=request.settings)
    manifest, skipped = _training_data(request)
    bank = _bank(request, named)
    if note := fallback_note(manifest.class_names, bank):
        request.note(f"Note: {note}")
    drawn = [
        draw(manifest, method, shots=request.shots, seed=seed, sampling=request.sampling)
        for seed in seeds
    ]
    first = drawn[0].support
    for name, count in shortfalls(manifest.class_names, first, request.shots).items():
        request.note(
            f"Note: '{name}' has only {count} of {request.shots} images; all of them are used."
        )
    require_files([item for one in drawn for item in one.support])
    backbone = _backbone(request)
    normal = named.normal if request.normal is None and named is not None else request.normal
    text = text_side(
        backbone, manifest.class_names, bank, normal_labels(manifest.class_names, normal)
    )
    store = FeatureStore(backbone)
    _refuse_beyond_memory(method, backbone, sum(len(one.support) for one in drawn))
    supports: list[Support] = []
    kept: list[SupportFeatures | None] = [None] * len(drawn)
    if method.needs_images:
        try:
            supports = [
                make_support(method, store, one.support, one.validation, seed)
                for one, seed in zip(drawn, seeds, strict=True)
            ]
            kept = [_support_features(store, one.support) for one in drawn]
        except DataError:
            # One bad file stops the work: name those of all seeds at once.
            images = dict.fromkeys(item.image for one in drawn for item in one.support)
            if bad := unreadable(list(images)):
                raise unreadable_error(bad) from None
            raise
    if store.encoded:
        rate = store.encoded / max(store.seconds, 1e-9)
        request.note(f"Encoded {store.encoded} images or crops ({rate:.1f} images/s).")
    return Prepared(request, tuple(seeds), method, preset, text, drawn, supports, kept, skipped)


def draw(
    manifest: Manifest,
    method: Method,
    *,
    shots: int | None,
    seed: int,
    sampling: Sampling = "released",
    classes: Sequence[int] | None = None,
) -> Drawn:
    """Draw from the training part: shots of all classes, then only `classes`, numbered from 0.

    This is the released order; base-to-novel gives the base labels as `classes`.
    """
    val = [item for item in manifest.items if item.split == "val"]
    support, validation = support_and_val(
        manifest.part("train"),
        val if method.uses_validation else [],
        shots,
        seed,
        sampling=sampling,
    )
    names = manifest.class_names
    if classes is not None:
        support, validation = (
            list(keep_classes(Manifest(tuple(items), names), classes).items)
            for items in (support, validation)
        )
        names = tuple(names[label] for label in sorted(classes))
    if method.needs_training:
        _refuse_classes_without_images(names, support)
    return Drawn(support, validation)


def text_side(
    backbone: Backbone,
    class_names: Sequence[str],
    bank: Mapping[str, Sequence[str]] | None,
    normal: Sequence[int],
    *,
    budget: int | None = None,
) -> TextSide:
    """The classes' prompts, templates if there is no bank; `budget` keeps the first of each."""
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
    return TextSide(backbone, tuple(class_names), prompts, tuple(normal))


def make_support(
    method: Method,
    store: FeatureStore,
    support: Sequence[Item],
    validation: Sequence[Item],
    seed: int,
) -> Support:
    """Features of the images, in the views that the method asks for."""
    require_files([*support, *validation])
    chosen: tuple[Tensor, Tensor] | None = None
    if validation:
        features = store.get([item.image for item in validation]).globals[:, 0]
        chosen = features, torch.tensor([item.label for item in validation])
    labels = torch.tensor([item.label for item in support])
    images = [item.image for item in support]
    patches, views = method.uses_patches, method.config.views
    if views == "online":
        return Support(OnlineViews(store.backbone, images, patches=patches), labels, chosen)
    found = cached_views(store, images, count=views, seed=seed, patches=patches)
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


def _training_data(request: FitRequest) -> tuple[Manifest, list[BadFile]]:
    """The dataset with its slices chosen and groups kept apart, and the files skipped in it."""
    root = None if request.root is None else Path(request.root)
    manifest, shared = separate_groups(
        resolve_data(request.data, root=root, class_names=request.class_names)
    )
    if shared:
        request.note(
            f"Note: {len(shared)} training or validation image(s) are left out: images of the same "
            "patients are in a part that models are judged on."
        )
    train = manifest.part("train")
    rest = [item for item in manifest.items if item.split == "val"]
    used = replace(manifest, items=(*train, *rest)).sliced(request.slice_rule)
    if request.on_error == "stop":
        return used, []
    good, bad = readable_items(used.part("train"), manifest.class_names)
    request.note(f"Skipped {len(bad)} file(s) that cannot be read; {len(good)} remain.")
    rest = [item for item in used.items if item.split == "val"]
    return replace(used, items=(*good, *rest)), bad


def _bank(request: FitRequest, named: Benchmark | None) -> Mapping[str, Sequence[str]] | None:
    prompts: Prompts | None = request.prompts
    if prompts is None and named is not None and named.name in shipped_banks():
        prompts = named.name
    return read_bank(Path(prompts)) if isinstance(prompts, str | Path) else prompts


def _backbone(request: FitRequest) -> Backbone:
    if not isinstance(request.backbone, Backbone):
        return load_backbone(request.backbone, device=request.device, engine=request.engine)
    if request.engine != "torch":
        return with_engine(request.backbone, request.engine)
    return request.backbone


def _default_preset(method: str, named: Benchmark | None) -> str | None:
    """The paper's settings for its own benchmarks, `auto` for everything else."""
    known = presets(method)
    wanted = [f"paper/few-shot/{named.name}"] if named is not None else []
    return next((preset for preset in [*wanted, "auto"] if preset in known), None)


def _support_features(store: FeatureStore, items: Sequence[Item]) -> SupportFeatures | None:
    if not items:
        return None
    rows = store.get([item.image for item in items]).globals[:, 0]
    labels = torch.tensor([item.label for item in items])
    return SupportFeatures(rows.float().numpy(), labels.numpy())


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
