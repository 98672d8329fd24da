"""What a model is handed on with: the README.md of its folder, and the hub.

The README says for people and for the hub what the model is.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ogkd.download import HUB, mirrored
from ogkd.errors import BackboneError, ConfigError, pluralize
from ogkd.model.calibration import CALIBRATION, Calibration
from ogkd.model.card import ModelCard
from ogkd.model.familiarity import SUPPORT

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

README = "README.md"
FILES = ("model.json", "weights.safetensors", SUPPORT, CALIBRATION, README)


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


def push(model: Classifier, hub_id: str, *, private: bool, message: str) -> str:
    """Write the model to a repository on the hub, made if it is absent; its address."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=mirrored(HUB))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        try:
            api.create_repo(hub_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=hub_id,
                folder_path=Path(folder) / "model",
                allow_patterns=list(FILES),
                commit_message=message,
            )
        except Exception as error:  # from HTTP, a token, or the name
            raise ConfigError(f"{hub_id} cannot be written: {error}", argument="hub_id") from error
    return str(commit.commit_url)


def is_hub_id(name: str | Path) -> bool:
    """Whether a name that is no folder can be one on the hub, "org/name".

    A `Path` is never one: no path of this machine, however misspelt, is sent to the hub.
    """
    parts = str(name).split("/")
    if isinstance(name, Path) or len(parts) != 2 or not all(parts) or parts[0] in ".~":
        return False
    return not Path(name).exists()


def pull(hub_id: str) -> Path:
    """The folder of a model on the hub, in the hub's cache; only files of a model are fetched."""
    from ogkd.backbones.hub import hub_files  # slow to import

    try:
        files = hub_files(hub_id, *FILES)
    except BackboneError as error:
        raise ConfigError(str(error), argument="model") from error
    if FILES[0] not in files:
        raise ConfigError(
            f"{hub_id} is not a folder here, and no model on the hub, or the hub is not reached.",
            argument="model",
        )
    return files[FILES[0]].parent
