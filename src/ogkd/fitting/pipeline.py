"""From labelled images to classifiers: sampling, features, prompts, training, in one place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from ogkd import plugins
from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.datasets.catalog import Benchmark
from ogkd.datasets.fetch import named_benchmark, resolve_data
from ogkd.datasets.groups import separate_groups
from ogkd.datasets.manifest import Item, Manifest
from ogkd.datasets.read import require_files
from ogkd.datasets.splits import Sampling, shortfalls, support_and_val
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import ADVICE, BadFile, unreadable, unreadable_error
from ogkd.features.store import FeatureStore
from ogkd.features.usable import SKIPPED, check_on_error, leave_out, sliced, write_skipped
from ogkd.features.views import OnlineViews, cached_views
from ogkd.files import folder_atomically, storage_errors, write_text
from ogkd.images.address import content_key, parse_rule
from ogkd.methods import (
    DEFAULT,
    Method,
    Support,
    TextSide,
    TrainingFolder,
    make_method,
    presets,
)
from ogkd.model.card import BackboneCard, ModelCard
from ogkd.model.classifier import LOG, Classifier, place_for_model, versions
from ogkd.model.support import SupportFeatures, image_keys
from ogkd.prompts.bank import bank_for, fallback_note, fold, read_bank, shipped_banks

__all__ = [
    "fit",
    "fit_seeds",
    "make_support",
    "normal_labels",
    "refuse_classes_without_images",
    "validation_features",
]

_GIB = 1024**3


def fit(
    data: str | Path | Manifest,
    *,
    backbone: str | Path | Backbone = "builtin",
    method: str = DEFAULT,
    shots: int | None = None,
    sampling: Sampling = "released",
    seed: int = 1,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    normal: Sequence[str] | None = None,
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    slice: str | None = None,
    on_error: str = "stop",
    say: Callable[[str], None] | None = None,
    out: str | Path | None = None,
    restart: bool = False,
    device: str = "auto",
    engine: str = "torch",
) -> Classifier:
    """Fit a classifier on a folder or table of labelled images.

    `normal` names the classes that stand for "nothing found" (default: the benchmark's, or
    those with "normal" or "healthy" in their name). `engine` says how images are encoded.
    `root` is the folder that the paths of a split JSON count from; `class_names` name the labels
    of a MedMNIST file. `slice` ("axis=2,index=middle") is taken of volumes that name none
    themselves. Unreadable files stop the fit, all of them named; with `on_error="skip"` they are
    found among all training images, left out before the shots are drawn, and listed in
    `skipped.csv` of the model. `say` is given short notes for the user. With `out` the model is
    saved there, and an interrupted fit continues when called again.
    """
    options: dict[str, Any] = {
        "backbone": backbone,
        "method": method,
        "shots": shots,
        "sampling": sampling,
        "seeds": [seed],
        "preset": preset,
        "settings": settings,
        "prompts": prompts,
        "normal": normal,
        "root": root,
        "class_names": class_names,
        "slice": slice,
        "on_error": on_error,
        "say": say,
        "device": device,
        "engine": engine,
    }
    if out is None:
        return fit_seeds(data, **options)[0]
    place = place_for_model(out)
    work = place.with_name(f".{place.name}.training")
    with storage_errors(place):
        work.mkdir(parents=True, exist_ok=True)  # now, not after an hour of encoding
    try:
        skipped: list[BadFile] = []
        fitted = fit_seeds(data, **options, skipped=skipped, work=work, restart=restart)[0]
        with folder_atomically(place) as aside:
            fitted.write_into(aside)
            if on_error == "skip":
                write_skipped(aside / SKIPPED, skipped)
            if lines := _log_lines(work / LOG):
                write_text(aside / LOG, lines)
        shutil.rmtree(work, ignore_errors=True)
    finally:
        with contextlib.suppress(OSError):
            work.rmdir()  # goes only where there is no progress in it
    return fitted


def fit_seeds(
    data: str | Path | Manifest,
    *,
    seeds: Sequence[int],
    backbone: str | Path | Backbone = "builtin",
    method: str = DEFAULT,
    shots: int | None = None,
    sampling: Sampling = "released",
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    normal: Sequence[str] | None = None,
    root: Path | None = None,
    class_names: Sequence[str] | None = None,
    slice: str | None = None,
    on_error: str = "stop",
    say: Callable[[str], None] | None = None,
    skipped: list[BadFile] | None = None,
    work: Path | None = None,
    restart: bool = False,
    device: str = "auto",
    engine: str = "torch",
) -> list[Classifier]:
    """Fit one classifier per seed, all trained together in one batched text pass.

    `work` is a folder for progress: an interrupted training there is continued, unless
    `restart` discards it. `skipped` is a list that receives the files left out. The other
    options are those of `fit`.
    """
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"Seeds are whole numbers from 0 on, at least one, but got {seeds}.")
    say = say or _silence
    slice = None if slice is None else str(parse_rule(slice))
    skip = check_on_error(on_error) == "skip"
    named = None if isinstance(data, Manifest) else named_benchmark(data)
    preset = preset or _default_preset(method, named)
    chosen = make_method(method, preset=preset, settings=settings)
    manifest, shared = separate_groups(resolve_data(data, root=root, class_names=class_names))
    if shared:
        say(
            f"Note: {len(shared)} training or validation image(s) are left out: images of the same "
            "patients are in a part that models are judged on."
        )
    if prompts is None and named is not None and named.name in shipped_banks():
        prompts = named.name
    bank = read_bank(Path(prompts)) if isinstance(prompts, str | Path) else prompts
    if note := fallback_note(manifest.class_names, bank):
        say(f"Note: {note}")
    texts = tuple(tuple(row) for row in bank_for(manifest.class_names, bank))
    pool = sliced(manifest.part("train"), slice)
    if skip:
        pool, bad = leave_out(pool, manifest.class_names)
        say(f"Left out {len(bad)} file(s) that cannot be read; {len(pool)} remain.")
        if skipped is not None:
            skipped += bad
    judged = []
    if chosen.uses_validation:
        judged = sliced([item for item in manifest.items if item.split == "val"], slice)
    pairs = [support_and_val(pool, judged, shots, seed, sampling=sampling) for seed in seeds]
    drawn = [support for support, _ in pairs]
    for name, count in shortfalls(manifest.class_names, drawn[0], shots).items():
        say(f"Note: '{name}' has only {count} of {shots} images; all of them are used.")
    if chosen.needs_training:
        refuse_classes_without_images(manifest, drawn[0])
    require_files([item for items in drawn for item in items])
    if not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=device, engine=engine)
    elif engine != "torch":
        backbone = with_engine(backbone, engine)
    if normal is None and named is not None:
        normal = named.normal
    text = TextSide(
        backbone, manifest.class_names, texts, normal_labels(manifest.class_names, normal)
    )
    store = FeatureStore(backbone)
    _refuse_beyond_memory(chosen, backbone, drawn)
    try:
        supports = [
            make_support(chosen, store, items, seed, validation_features(store, others))
            for (items, others), seed in zip(pairs, seeds, strict=True)
            if chosen.needs_images
        ]
        kept = [_support_features(chosen, store, items) for items in drawn]
    except DataError:
        # One bad file stops the work: name those of all seeds at once.
        paths = dict.fromkeys(item.path for items in drawn for item in items)
        if bad := unreadable(list(paths)):
            raise unreadable_error(bad, ADVICE) from None
        raise
    if store.encoded:
        rate = store.encoded / max(store.seconds, 1e-9)
        say(f"Encoded {store.encoded} images or crops ({rate:.1f} images/s).")
    cards = [
        _card(chosen, preset, text, pair, shots, seed, slice)
        for pair, seed in zip(pairs, seeds, strict=True)
    ]
    folder = _training_folder(work, cards, restart=restart)
    heads = chosen.fit(supports, text, seeds=seeds, folder=folder)
    return [
        Classifier(backbone, head, card, support=support)
        for head, card, support in zip(heads, cards, kept, strict=True)
    ]


def _silence(note: str) -> None:
    """What happens to notes that nobody wants."""


def _default_preset(method: str, named: Benchmark | None) -> str | None:
    """The paper's settings for its own benchmarks, `auto` for everything else."""
    known = presets(method)
    wanted = [f"paper/few-shot/{named.name}"] if named is not None else []
    return next((preset for preset in [*wanted, "auto"] if preset in known), None)


def normal_labels(class_names: Sequence[str], normal: Sequence[str] | None) -> tuple[int, ...]:
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
            f"{', '.join(class_names)}."
        )
    return tuple(sorted({known[fold(name)] for name in normal}))


def validation_features(store: FeatureStore, items: Sequence[Item]) -> tuple[Tensor, Tensor] | None:
    """Features and labels of validation images; None if there are none."""
    if not items:
        return None
    require_files(items)
    features = store.get([item.path for item in items]).globals[:, 0]
    return features, torch.tensor([item.label for item in items])


def make_support(
    method: Method,
    store: FeatureStore,
    items: Sequence[Item],
    seed: int,
    validation: tuple[Tensor, Tensor] | None,
) -> Support:
    labels = torch.tensor([item.label for item in items])
    paths = [item.path for item in items]
    patches = method.uses_patches
    views = method.config.views
    if views == "online":
        if bad := unreadable(paths):
            raise unreadable_error(bad, ADVICE)
        online = OnlineViews(store.backbone, paths, patches=patches)
        return Support(online, labels, validation)
    found = cached_views(store, paths, count=views, seed=seed, patches=patches)
    return Support(found, labels, validation)


def _support_features(
    method: Method, store: FeatureStore, items: Sequence[Item]
) -> SupportFeatures | None:
    """The whole images that were learned from, for comparison with new ones."""
    if not method.needs_images or not items:
        return None
    rows = store.get([item.path for item in items]).globals[:, 0]
    labels = torch.tensor([item.label for item in items])
    return SupportFeatures(rows.float().numpy(), labels.numpy())


def _card(
    method: Method,
    preset: str | None,
    text: TextSide,
    pair: tuple[Sequence[Item], Sequence[Item]],
    shots: int | None,
    seed: int,
    slice: str | None,
) -> ModelCard:
    items, others = pair
    # Images that settings were searched on are learned from too.
    used = [item.path for item in (*items, *others)] if method.needs_images else []
    counts = [sum(item.label == label for item in items) for label in range(len(text.class_names))]
    images = sorted((content_key(item.path), item.label) for item in items)
    return ModelCard(
        method=method.name,
        plugin=plugins.name_of(type(method)),
        preset=preset,
        config=method.config.model_dump(mode="json"),
        class_names=text.class_names,
        normal=tuple(text.class_names[label] for label in text.normal),
        backbone=BackboneCard.of(text.backbone),
        logit_scale=text.backbone.logit_scale,
        prompts_sha256=_digest(text.prompts),
        data_sha256=_digest(images),
        support_counts=tuple(counts),
        support_images=tuple(sorted(set(image_keys(used)))),
        shots=shots,
        seed=seed,
        slice=slice,
        versions=dict(versions()),
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _training_folder(
    folder: Path | None, cards: Sequence[ModelCard], *, restart: bool
) -> TrainingFolder | None:
    if folder is None:
        return None
    fingerprint = _digest([card.model_dump(mode="json") for card in cards])
    if restart:
        shutil.rmtree(folder, ignore_errors=True)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    log_path = folder / LOG
    if log_path.is_file():
        write_text(log_path, _log_lines(log_path))

    def log(entry: Mapping[str, Any]) -> None:
        with storage_errors(log_path), log_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    return TrainingFolder(folder, fingerprint, log)


def _log_lines(log: Path) -> str:
    """The log with one whole line for each epoch: a kill cuts lines, a resume repeats epochs."""
    kept: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept[json.loads(line)["epoch"]] = line
    return "".join(f"{kept[epoch]}\n" for epoch in sorted(kept))


def refuse_classes_without_images(manifest: Manifest, items: Sequence[Item]) -> None:
    """A trained context needs an image of every class."""
    present = {item.label for item in items}
    names = [name for label, name in enumerate(manifest.class_names) if label not in present]
    if names:
        raise DataError(
            f"There is no image to learn from for: {', '.join(names)}. Put at least one image of "
            "each class in the training part, or remove the class."
        )


def _refuse_beyond_memory(
    method: Method, backbone: Backbone, drawn: Sequence[Sequence[Item]]
) -> None:
    views = method.config.views
    if not method.uses_patches or views == "online":
        return
    images = sum(len(items) for items in drawn)
    grid = backbone.patch_grid[0] * backbone.patch_grid[1]
    needed = images * max(1, views) * grid * backbone.embed_dim * 2
    free = psutil.virtual_memory().available
    if needed > 0.8 * free:
        raise ConfigError(
            f"Patch features of {images} images with {max(1, views)} views need "
            f"{needed / _GIB:.1f} GiB, but {free / _GIB:.1f} GiB are free. Lower --shots or "
            "views (--set views=4), or leave the patch loss out (--set lambda_lgd=0)."
        )
