"""The README.md of a model folder: what the model is, for people and for the hub."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ogkd.errors import pluralize
from ogkd.model.calibration import Calibration
from ogkd.model.card import ModelCard

README = "README.md"


def readme(card: ModelCard, calibration: Calibration | None) -> str:
    """Markdown with the hub's header: data counts, classes, backbone, what was measured, limits."""
    return "\n".join([*_header(card), *_body(card, calibration)]) + "\n"


def _header(card: ModelCard) -> Iterator[str]:
    yield "---"
    yield "library_name: ogkd"
    yield "pipeline_tag: image-classification"
    yield "tags: [medical, few-shot]"
    if "/" in card.backbone.name:
        yield f"base_model: {json.dumps(card.backbone.name)}"
    yield "---"


def _body(card: ModelCard, calibration: Calibration | None) -> Iterator[str]:
    task = card.task
    yield f"\n# {_plain(', '.join(card.class_names[:4]))}{', ...' * (len(card.class_names) > 4)}\n"
    yield f"Made with ogkd {card.versions.get('ogkd', '')}.\n"
    yield "**Not a medical device.** For research, and for people who can judge each answer.\n"
    yield f"| {task.noun} | learned from |"
    yield "|---|---:|"
    counts = card.support_counts or ("",) * len(card.class_names)
    for name, count in zip(card.class_names, counts, strict=True):
        yield f"| {_plain(name)} | {count} |"
    yield f"\n- Images learned from: {card.images or 'none'}"
    if card.learned_cases != card.images:
        yield f"- Cases learned from: {card.learned_cases}"
    if card.unlabelled_images:
        yield "- Learned from unlabelled images, too"
    yield f"- Method: `{card.method}`{f', preset `{card.preset}`' if card.preset else ''}"
    yield f"- Backbone: {_plain(card.backbone.name)}, digest `{card.backbone.digest[:12]}`"
    yield f"- Prompts: {_plain(card.prompts or 'templates')}"
    yield f"- {_calibrated(card, calibration)}\n"
    yield "```console"
    yield "ogkd predict THIS_FOLDER IMAGES... > answers.csv"
    yield "ogkd evaluate THIS_FOLDER LABELLED_IMAGES"
    yield "```\n"
    yield "## Limits\n"
    yield "- It knows these answers only: any other image gets one of them, or none."
    yield "- Other scanners, sites and patients may differ from the images it learned from:"
    yield "  measure it on your own images before relying on it."
    yield "- The folder holds features of the images learned from, but no image and no file name."


def _calibrated(card: ModelCard, calibration: Calibration | None) -> str:
    if calibration is None:
        return "Not calibrated: probabilities were not compared with outcomes"
    unit = card.grouping.unit
    quality = calibration.quality(unit)
    return f"Calibrated on {pluralize(calibration.cases, unit)}{f'. {quality}' * bool(quality)}"


def _plain(text: str) -> str:
    """Text that Markdown does not read as anything else."""
    shown = "".join(letter if letter.isprintable() else " " for letter in text)
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in shown)
