"""A classifier from class names alone: nothing is learned from images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ogkd.backbones import Backbone
from ogkd.data.case import Dataset
from ogkd.data.names import normal_labels
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.fitting.choose import backbone_for
from ogkd.fitting.pipeline import train
from ogkd.fitting.prepare import Drawn, Prepared, bank_of, text_sides
from ogkd.fitting.request import FitRequest, Prompts
from ogkd.images import ImageRef
from ogkd.methods import make_method
from ogkd.model.classifier import Classifier
from ogkd.prompts.templates import require_classes

METHOD = "zero-shot-ensemble"


def zero_shot(
    classes: Sequence[str],
    *,
    backbone: str | Path | Backbone = FitRequest.backbone,
    prompts: Prompts | None = None,
    images: Sequence[str | Path | ImageRef] = (),
    device: str = FitRequest.device,
    engine: str = FitRequest.engine,
    say: Callable[[str], None] | None = None,
) -> Classifier:
    """Make a classifier of the texts of classes; it learns from no image and is not calibrated.

    Args:
        classes: the names of at least two classes.
        backbone: as for `fit`; "auto" looks at `images`, and without any takes a real backbone.
        prompts: texts of the classes: a mapping, a JSON file or the name of a shipped bank
            (default: templates).
        images: some that the model is meant for.
        device: where to compute: auto, cpu, cuda, cuda:1 or mps.
        engine: how images are encoded: torch, bf16 or fp16.
        say: receives short notes for the user.

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
        method=METHOD,
        prompts=prompts,
        device=device,
        engine=engine,
        say=say,
    )
    name, bank = bank_of(request, None, names)
    loaded = backbone_for(request, [ImageRef.of(image) for image in images])
    texts = text_sides(loaded, task, bank)
    return train(
        Prepared(request, make_method(METHOD), None, task, texts, Drawn([], []), bank=name)
    )
