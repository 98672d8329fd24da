"""How long a grid takes on this device: a few images and steps are measured, the rest is counted.

Measured once each: an image through the tower, a prompt, a step of each method that trains, a fit
of each that does not, its answer. Decoding is not counted: it happens beside the encoding.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

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
from ogkd.fitting.prepare import ONE_SET
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
    test: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


class _Measured(NamedTuple):
    """Seconds of a fit, of a step more, and of the answer to an image; of how much."""

    fit: float
    step: float
    answer: float
    classes: int
    images: int


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
        self._measured: dict[tuple[str, int], _Measured] = {}

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

        found, count = {}, cache(_judged)
        kept: Counter[tuple[object, ...]] = Counter()  # views of an image, by what they are of
        # The largest first: a method is measured on those, and smaller ones are a part of it.
        ordered = sorted(groups, key=lambda group: -(group.specs[0].shots or _SHOTS))
        learned = {
            group.name: self._learn(group.specs, sources[group.specs[0].dataset])
            for group in ordered
        }
        for group in groups:
            first, method = group.specs[0], method_of(group.specs[0])
            source = sources[first.dataset]
            judged, prompts = count(source, first.judge), 0
            images = judged if new("judged", first.dataset, first.judge) else 0
            if new("texts", first.dataset, first.budget):
                prompts += _prompts(source, first.budget)
            for spec in group.specs if method.needs_images else ():
                classes = _classes(spec, source)
                drawn = (spec.protocol, spec.dataset, spec.shots)
                # Learners with fresh crops encode them while they train; other views are kept.
                views, rival = _views(method), method.as_benchmarked
                whole = not (rival or method.config.views)
                key = (*drawn, spec.seed, rival, whole, method.uses_patches)
                images += classes * (spec.shots or _SHOTS) * max(0, views - kept[key])
                kept[key] = max(kept[key], views)
                seed = ONE_SET if rival else spec.seed
                if method.uses_validation and new(*drawn, seed, "validation"):
                    images += classes * min(spec.shots or _SHOTS, _VALIDATION)
            encode = images * self._image(False) if images else 0.0
            text = prompts * self._prompt(source) if prompts else 0.0
            train, answer = learned[group.name]
            found[group.name] = Phases(encode, text, train, len(group.specs) * judged * answer)
        return found

    def _learn(self, specs: Sequence[RunSpec], source: Source) -> tuple[float, float]:
        """Seconds of fitting a group, and of one answer of its heads."""
        method, classes, runs = method_of(specs[0]), _classes(specs[0], source), len(specs)
        images = classes * (specs[0].shots or _SHOTS)
        config = getattr(method.config, "train", None)
        if not method.needs_training or not isinstance(config, TrainConfig):
            mine = self._measure(method, source, classes, images, 1)
            return runs * mine.fit * images / mine.images, mine.answer * classes / mine.classes
        mine = self._measure(method, source, classes, config.batch_size, runs)
        slices = batch_slices(images, config)
        training = config.epochs * len(slices) * mine.step * classes / mine.classes
        if method.config.views == "online":
            seen = sum(part.stop - part.start for part in slices) * config.epochs
            different = len({spec.seed for spec in specs})  # runs of one seed see the same crops
            training += seen * different * self._image(method.uses_patches)
        return training, mine.answer * classes / mine.classes

    def _measure(
        self, method: Method, source: Source, classes: int, images: int, runs: int
    ) -> _Measured:
        """Fit so many runs with so many images; what has steps also with three such batches."""
        if (key := (method.name, runs)) not in self._measured:
            text, seeds, heads = self._text(source, classes), list(range(1, runs + 1)), []
            _ = text.single, text.bank
            took, small, order = {1: 0.0, _STEPS: 0.0}, method, [1]
            if "train" in (short := method.config.model_dump()):
                short["views"] = 0
                short["train"] |= {"epochs": 1, "tolerance": 0.0}
                small, order = type(method)(method.Config.model_validate(short)), [1, 1, _STEPS]
            for steps in order:  # of three, the first warms up
                supports = [self._support(method, classes, images * steps)] * runs
                fit = partial(small.fit, supports if method.needs_images else [], text, seeds=seeds)
                took[steps] = _timed(lambda: heads.extend(fit()))  # noqa: B023
            rows = self._features(method, _ON_CPU).rows[:, 0]
            ask = partial(heads[0].of_rows, rows)
            answer = min(_timed(ask), _timed(ask)) / len(rows)
            step = max(took[_STEPS] - took[1], 0.0) / (_STEPS - 1)
            self._measured[key] = _Measured(took[1], step, answer, classes, max(1, images))
        return self._measured[key]

    def _features(self, method: Method, images: int) -> ImageFeatures:
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
        return ImageFeatures(rows(images, views, backbone.embed_dim), patches, deep)

    def _support(self, method: Method, classes: int, images: int) -> Support:
        features, labels = self._features(method, images), torch.arange(images) % classes
        validation = None
        if method.uses_validation:
            validation = features.rows[:classes, 0], labels[:classes]
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
    return 0 if method.config.views == "online" else max(1, method.kept_views)


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
