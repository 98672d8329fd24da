"""From labelled images to classifiers: sampling, features, prompts, training, in one place."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from ogkd.backbones import Backbone, load_backbone
from ogkd.classifier import LOG, Classifier, place_for_model, versions
from ogkd.datasets.manifest import Item, Manifest, read_manifest, require_files
from ogkd.datasets.splits import few_shot
from ogkd.errors import ConfigError, DataError
from ogkd.features.extract import unreadable, unreadable_error
from ogkd.features.store import FeatureStore
from ogkd.features.views import OnlineViews, cached_views
from ogkd.files import folder_atomically, sha256_file, storage_errors, write_text
from ogkd.methods import Method, Support, TextSide, Workplace, make_method, presets
from ogkd.modelcard import BackboneCard, ModelCard
from ogkd.prompts.bank import bank_for, read_bank

__all__ = ["fit", "fit_seeds"]

_GIB = 1024**3


def fit(
    data: str | Path | Manifest,
    *,
    backbone: str | Path | Backbone = "builtin",
    method: str = "ogkd",
    shots: int | None = None,
    seed: int = 1,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    out: str | Path | None = None,
    restart: bool = False,
    device: str = "auto",
) -> Classifier:
    """Fit a classifier on a folder or table of labelled images.

    With `out` the model is saved there, and an interrupted fit continues when called again.
    """
    options: dict[str, Any] = {
        "backbone": backbone,
        "method": method,
        "shots": shots,
        "seeds": [seed],
        "preset": preset,
        "settings": settings,
        "prompts": prompts,
        "device": device,
    }
    if out is None:
        return fit_seeds(data, **options)[0]
    place = place_for_model(out)
    work = place.with_name(f".{place.name}.training")
    with storage_errors(place):
        work.mkdir(parents=True, exist_ok=True)  # now, not after an hour of encoding
    try:
        fitted = fit_seeds(data, **options, work=work, restart=restart)[0]
        with folder_atomically(place) as aside:
            fitted.write_into(aside)
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
    method: str = "ogkd",
    shots: int | None = None,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    work: Path | None = None,
    restart: bool = False,
    device: str = "auto",
) -> list[Classifier]:
    """Fit one classifier per seed, all trained together in one batched text pass.

    `work` is a folder for progress: an interrupted training there is continued, unless
    `restart` discards it.
    """
    if not seeds or min(seeds) < 0:
        raise ConfigError(f"Seeds are whole numbers from 0 on, at least one, but got {seeds}.")
    known = presets(method)
    preset = preset or ("auto" if "auto" in known else None)
    chosen = make_method(method, preset=preset, settings=settings)
    manifest = data if isinstance(data, Manifest) else read_manifest(data)
    bank = read_bank(Path(prompts)) if isinstance(prompts, str | Path) else prompts
    texts = tuple(tuple(row) for row in bank_for(manifest.class_names, bank))
    drawn = [few_shot(manifest.part("train"), shots, seed) for seed in seeds]
    if chosen.needs_training:
        _refuse_classes_without_images(manifest, drawn[0])
    require_files([item for items in drawn for item in items])
    if not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=device)
    text = TextSide(backbone, manifest.class_names, texts)
    store = FeatureStore(backbone)
    _refuse_beyond_memory(chosen, backbone, drawn)
    pairs = zip(drawn, seeds, strict=True) if chosen.needs_images else ()
    supports = [_support(chosen, store, items, seed) for items, seed in pairs]
    cards = [
        _card(chosen, preset, text, items, shots, seed)
        for items, seed in zip(drawn, seeds, strict=True)
    ]
    workplace = _workplace(work, cards, restart=restart)
    heads = chosen.fit(supports, text, seeds=seeds, workplace=workplace)
    return [Classifier(backbone, head, card) for head, card in zip(heads, cards, strict=True)]


def _support(method: Method, store: FeatureStore, items: Sequence[Item], seed: int) -> Support:
    labels = torch.tensor([item.label for item in items])
    paths = [item.path for item in items]
    patches = method.uses_patches
    views = method.config.views
    if not method.needs_training:
        views = 0
    if views == "online":
        if bad := unreadable(paths):
            raise unreadable_error(bad, "Mend them or take them out of the data.")
        return Support(OnlineViews(store.backbone, paths, patches=patches), labels)
    found = cached_views(store, paths, count=views, seed=seed, patches=patches)
    return Support(found, labels)


def _card(
    method: Method,
    preset: str | None,
    text: TextSide,
    items: Sequence[Item],
    shots: int | None,
    seed: int,
) -> ModelCard:
    counts = [sum(item.label == label for item in items) for label in range(len(text.class_names))]
    images = sorted((sha256_file(item.path), item.label) for item in items)
    return ModelCard(
        method=method.name,
        preset=preset,
        config=method.config.model_dump(mode="json"),
        class_names=text.class_names,
        backbone=BackboneCard.of(text.backbone),
        logit_scale=text.backbone.logit_scale,
        prompts_sha256=_digest(text.prompts),
        data_sha256=_digest(images),
        support_counts=tuple(counts),
        shots=shots,
        seed=seed,
        versions=dict(versions()),
    )


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, ensure_ascii=True).encode()).hexdigest()


def _workplace(folder: Path | None, cards: Sequence[ModelCard], *, restart: bool) -> Workplace:
    if folder is None:
        return Workplace()
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

    return Workplace(folder, fingerprint, log)


def _log_lines(log: Path) -> str:
    """The log with one whole line for each epoch: a kill cuts lines, a resume repeats epochs."""
    kept: dict[int, str] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError):
            kept[json.loads(line)["epoch"]] = line
    return "".join(f"{kept[epoch]}\n" for epoch in sorted(kept))


def _refuse_classes_without_images(manifest: Manifest, items: Sequence[Item]) -> None:
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
