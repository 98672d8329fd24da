"""How long a grid takes on this device: a few images and steps are measured, the rest is counted.

Measured once each: an image through the tower, a prompt, a step of each method that trains, a fit
of each that does not. Decoding is not counted: it happens beside the encoding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from torch.nn.functional import normalize

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.backbones.catalog import Record
from ogkd.backbones.hub import present
from ogkd.backbones.loading import resolve
from ogkd.bench.runner import RunGroup, method_of
from ogkd.bench.runs import RunSpec
from ogkd.bench.sources import Source, open_dataset, texts_of
from ogkd.core.batches import batch_slices
from ogkd.core.optimisers import TrainConfig
from ogkd.datasets.catalog import benchmarks
from ogkd.datasets.splits import base_and_novel
from ogkd.errors import OgkdError
from ogkd.features.encode import encode_crops
from ogkd.features.views import FixedViews
from ogkd.methods import Method, Support, TextSide
from ogkd.prompts.bank import bank_for

_ON_CPU, _ELSEWHERE = 8, 64  # images of a measured pass: a GPU needs many to be busy
_PROMPTS = 3  # of each class, where their number hardly matters
_STEPS = 3
_VALIDATION = 4  # images of each class at most (fidelity.md, 31)
_SHOTS = 16  # where a grid asks for all images


@dataclass(frozen=True)
class Phases:
    """Seconds of one group of runs, by phase; the shares of its runs are equal."""

    encode: float
    text: float
    train: float

    @property
    def total(self) -> float:
        return self.encode + self.text + self.train


def probe_of(place: str, device: str, engine: str, say: Callable[[str], None]) -> Probe | None:
    """A probe with the backbone of a grid; None if that would have to be downloaded."""
    found = resolve(place)
    if isinstance(found, Record) and found.hub_id is not None and present(found) is None:
        say(f"Note: times are guesses: the backbone {found.name} is not on this machine.")
        return None
    probe = Probe(load_backbone(place, device=device, engine=engine))
    say(f"Measuring on {probe.where}...")
    return probe


class Probe:
    """Measures what it is asked about, each thing once."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self._image = cache(self._measure_image)
        self._prompt = cache(self._measure_prompt)
        self._steps: dict[tuple[str, int], tuple[float, int]] = {}
        self._fits: dict[str, tuple[float, int]] = {}

    @property
    def where(self) -> str:
        """The device, and which GPU it is."""
        device = self.backbone.device
        return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type

    def phases(
        self, groups: Sequence[RunGroup], sources: Mapping[str, Source]
    ) -> dict[str, Phases]:
        """Seconds of each group by its name; what groups share is counted in the first of them."""
        seen: set[tuple[object, ...]] = set()

        def new(*what: object) -> bool:
            before = len(seen)
            seen.add(what)
            return len(seen) > before

        found = {}
        # The largest first: a method is measured on those, and smaller ones are a part of it.
        ordered = sorted(groups, key=lambda group: -(group.specs[0].shots or _SHOTS))
        trained = {
            group.name: self._train(group.specs, sources[group.specs[0].dataset])
            for group in ordered
        }
        for group in groups:
            first, method = group.specs[0], method_of(group.specs[0])
            source = sources[first.dataset]
            images, prompts = 0, 0
            if new("judged", first.dataset, first.judge):
                images += _judged(source, first.judge)
            if new("texts", first.dataset, first.budget):
                prompts += _prompts(source, first.budget)
            for spec in group.specs if method.needs_images else ():
                classes = _classes(spec, source)
                drawn = (spec.protocol, spec.dataset, spec.shots, spec.seed)
                each = _views(method) * (spec.shots or _SHOTS)
                # Learners with fresh crops encode them while they train; other views are kept.
                if each and new(drawn, each, method.as_benchmarked, method.uses_patches):
                    images += classes * each
                if method.uses_validation and new(drawn, "validation"):
                    images += classes * min(spec.shots or _SHOTS, _VALIDATION)
            encode = images * self._image(False) if images else 0.0
            text = prompts * self._prompt(source) if prompts else 0.0
            found[group.name] = Phases(encode, text, trained[group.name])
        return found

    def _train(self, specs: Sequence[RunSpec], source: Source) -> float:
        """Seconds of fitting a group."""
        method = method_of(specs[0])
        classes = _classes(specs[0], source)
        images = classes * (specs[0].shots or _SHOTS)
        config = getattr(method.config, "train", None)
        if not method.needs_training or not isinstance(config, TrainConfig):
            seconds, most = self._fit(method, source, classes, images)
            return len(specs) * seconds * images / most
        slices = batch_slices(images, config)
        seen = sum(part.stop - part.start for part in slices) * config.epochs
        seconds, texts = self._step(method, source, classes, len(specs))
        training = config.epochs * len(slices) * seconds * classes / texts
        if method.config.views != "online":
            return training
        # Runs of one seed see the same crops.
        different = len({spec.seed for spec in specs})
        return float(training + seen * different * self._image(method.uses_patches))

    def _step(self, method: Method, source: Source, classes: int, runs: int) -> tuple[float, int]:
        """Seconds of one step of `runs` runs without its images, and for how many classes."""
        key = (method.name, runs)
        if key not in self._steps:
            size = method.config.train.batch_size  # type: ignore[attr-defined]
            text = self._text(source, classes)
            took = {}
            for steps in (1, 1, _STEPS):  # the first warms up
                short = method.config.model_dump() | {"views": 0}
                short["train"] |= {"epochs": 1, "batch_size": size, "tolerance": 0.0}
                small = type(method)(method.Config.model_validate(short))
                supports = [self._support(method, classes, size * steps)] * runs
                seeds = list(range(1, runs + 1))
                took[steps] = _timed(partial(small.fit, supports, text, seeds=seeds))
            self._steps[key] = max(took[_STEPS] - took[1], 0.0) / (_STEPS - 1), classes
        return self._steps[key]

    def _fit(self, method: Method, source: Source, classes: int, images: int) -> tuple[float, int]:
        """Seconds of one fit on features, and of how many images."""
        if method.name not in self._fits:
            text = self._text(source, classes)
            supports = [self._support(method, classes, images)] if method.needs_images else []
            _ = text.single, text.bank
            seconds = _timed(partial(method.fit, supports, text, seeds=[1]))
            self._fits[method.name] = seconds, max(1, images)
        return self._fits[method.name]

    def _support(self, method: Method, classes: int, images: int) -> Support:
        """Random features in the shapes that the method asks for."""
        rng = torch.Generator().manual_seed(0)

        def rows(*shape: int) -> torch.Tensor:
            return normalize(torch.randn(*shape, generator=rng), dim=-1)

        backbone, views = self.backbone, max(1, _views(method))
        patches = deep = None
        if method.uses_patches:
            grid = backbone.patch_grid[0] * backbone.patch_grid[1]
            patches = rows(images, views, grid, backbone.embed_dim).half()
        if method.uses_deep(backbone):
            deep = rows(images, views, sum(backbone.deep_parts))
        features = ImageFeatures(rows(images, views, backbone.embed_dim), patches, deep)
        labels = torch.arange(images) % classes
        validation = None
        if method.uses_validation:
            seen = ImageFeatures(
                features.globals[:classes, 0], None, None if deep is None else deep[:classes, 0]
            )
            validation = seen.rows, labels[:classes]
        return Support(FixedViews(features), labels, validation)

    def _text(self, source: Source, classes: int) -> TextSide:
        names = source.class_names[:classes]
        texts = bank_for(names, _bank(source))
        return TextSide(self.backbone, names, tuple(tuple(row[:_PROMPTS]) for row in texts))

    def _measure_image(self, patches: bool) -> float:
        """Seconds of one image through the tower."""
        backbone = self.backbone
        count = _ON_CPU if backbone.device.type == "cpu" else _ELSEWHERE
        size = backbone.preprocessing.size
        rng = np.random.default_rng(0)
        crops = list(rng.integers(0, 255, (count, size, size, 3), dtype=np.uint8))

        def encode() -> None:
            encode_crops(backbone, crops, patches=patches)  # looks at the numbers, so it is done

        encode()  # warms up
        return min(_timed(encode), _timed(encode)) / count

    def _measure_prompt(self, source: Source) -> float:
        texts = [row[0] for row in bank_for(source.class_names, _bank(source))]
        self.backbone.encode_texts(texts)
        return _timed(lambda: self.backbone.encode_texts(texts)) / len(texts)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _views(method: Method) -> int:
    """Views of each image that are encoded before the training."""
    views = method.config.views
    if views == "online":
        return 0
    return max(1, views or (method.augmented if method.as_benchmarked else 1))


def _classes(spec: RunSpec, source: Source) -> int:
    """How many classes a run learns from."""
    names = source.class_names
    return len(base_and_novel(names)[0] if spec.protocol == "base-to-novel" else names)


def _judged(source: Source, split: str) -> int:
    """How many images a dataset is judged on."""
    if source.phantom:
        return dict(source.phantom)[split] * len(source.class_names)
    if source.folder is None and source.name in benchmarks():
        counts: Mapping[str, int] = benchmarks()[source.name].counts.model_dump()
        return counts[split]
    try:
        return len(open_dataset(source).manifest.part(split))
    except OgkdError:
        return 0  # its runs will say what is wrong


def _bank(source: Source) -> Mapping[str, Sequence[str]] | None:
    try:
        return texts_of(source)
    except OgkdError:
        return None  # the plan says how to get it


def _prompts(source: Source, budget: int | None) -> int:
    counts = Counter(len(row) for row in bank_for(source.class_names, _bank(source)))
    return sum(min(size, budget or size) * classes for size, classes in counts.items())
