"""A model folder becomes a `Classifier`: every file is checked before it is used."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import digest_with, with_engine, without_engine
from ogkd.errors import BackboneError, ConfigError
from ogkd.files import read_bytes, recover
from ogkd.methods import Head, read_head
from ogkd.model.calibration import CALIBRATION, Calibration
from ogkd.model.card import ModelCard, method_of
from ogkd.model.classifier import CARD, LOG, WEIGHTS, Classifier, read_history
from ogkd.model.familiarity import SUPPORT, SupportFeatures
from ogkd.model.share import is_hub_id, pull

log = logging.getLogger("ogkd.load")
_MOST = 1 << 32  # bytes of weights


def load(
    folder: str | Path,
    *,
    backbone: str | Path | Backbone | None = None,
    device: str = "auto",
    engine: str | None = None,
    calibrated: bool = True,
) -> Classifier:
    """Load a model folder, or a model on the hub, "org/name".

    `backbone` says where its backbone is now, if it moved.

    `engine` encodes images in another way than the fit did (ogkd.backbones.engines): faster,
    but the probabilities are then not quite the same. With `calibrated=False` the probabilities
    are those of the fit, whatever a calibration has found since.
    """
    folder = pull(str(folder)) if is_hub_id(folder) else Path(folder)
    recover(folder)
    card = ModelCard.read(folder / CARD)
    tensors, sha256 = _read_weights(folder / WEIGHTS, card)
    backbone = _backbone(folder, card, backbone, device, engine)
    head = _head(folder / WEIGHTS, tensors, card, backbone)
    backbone = method_of(card).tower(backbone, tensors)
    calibration = None
    if calibrated:
        calibration = Calibration.read(folder / CALIBRATION, card.task, weights_sha256=sha256)
    support = SupportFeatures.read(
        folder / SUPPORT, card.task, width=head.shape[1], sha256=card.support_sha256
    )
    model = Classifier(backbone, head, card, calibration=calibration, support=support)
    model.history = read_history(folder / LOG) or None
    return model


def _backbone(
    folder: Path,
    card: ModelCard,
    given: str | Path | Backbone | None,
    device: str,
    engine: str | None,
) -> Backbone:
    """The backbone that the model was fitted with; any other is refused."""
    if isinstance(given, Backbone):
        backbone = given if engine is None else with_engine(given, engine)
    else:
        source = card.backbone.source(folder) if given is None else given
        if source is None:
            raise BackboneError(
                f"{folder} was fitted with the backbone in a folder '{card.backbone.name}', which "
                "is not known on this machine: say where it is.",
                argument="backbone",
            )
        backbone = load_backbone(source, device=device)
        try:
            backbone = with_engine(backbone, engine or card.backbone.engine)
        except ConfigError:  # this machine cannot: the reference always can
            if engine is not None:
                raise
    # Another engine is allowed, with a note; the weights must be the same.
    digest = digest_with(without_engine(backbone).digest, card.backbone.engine)
    if digest != card.backbone.digest:
        raise BackboneError(
            f"{folder} was fitted with another backbone ('{card.backbone.name}', digest "
            f"{card.backbone.digest[:12]}) than '{backbone.name}' ({digest[:12]}).",
            argument="backbone",
        )
    if engine is None and backbone.engine != card.backbone.engine:
        log.warning(
            f"Note: {folder} was fitted with the engine {card.backbone.engine}, but "
            f"{backbone.engine} encodes the images here: probabilities differ a little."
        )
    return backbone


def _read_weights(path: Path, card: ModelCard) -> tuple[dict[str, Tensor], str]:
    """The tensors, and the digest of their file."""
    try:
        content = read_bytes(path, most=_MOST)
        tensors: dict[str, Tensor] = read_tensors(content)
        digest = hashlib.sha256(content).hexdigest()
        if card.weights_sha256 not in (None, digest):
            raise ValueError(f"it is not the file that {CARD} describes")
    except (OSError, SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
    return tensors, digest


def _head(path: Path, tensors: dict[str, Tensor], card: ModelCard, backbone: Backbone) -> Head:
    try:
        head = read_head(method_of(card), tensors, card.task, backbone, card.logit_scale)
        saved = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
        expected = {name: (tensor.shape, tensor.dtype) for name, tensor in head.tensors().items()}
        if saved != expected:
            raise ValueError(f"it is not what {card.method} saves")
        if names := head.not_finite():
            raise ValueError(f"values that are not numbers: {', '.join(names)}")
        classes, width = len(card.class_names), card.backbone.embed_dim
        if head.shape not in ((classes, width), (classes, width + sum(backbone.deep_parts))):
            raise ValueError(f"class features of shape {head.shape}")
    except (KeyError, ValueError, IndexError, TypeError, RuntimeError) as error:
        raise _damaged(path, error) from error
    return head


def _damaged(path: Path, why: Exception) -> ConfigError:
    return ConfigError(
        f"{path} is missing or damaged ({why}). Copy the model folder again, or fit again."
    )
