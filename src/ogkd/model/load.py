"""A model folder becomes a `Classifier`: every file is checked before it is used."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
from ogkd.model.classifier import CARD, WEIGHTS, Classifier
from ogkd.model.familiarity import SUPPORT, SupportFeatures

_MOST = 1 << 32  # bytes of weights


def load(
    folder: str | Path,
    *,
    backbone: str | Path | Backbone | None = None,
    device: str = "auto",
    engine: str | None = None,
    calibrated: bool = True,
) -> Classifier:
    """Load a model folder; `backbone` says where its backbone is now, if it moved.

    `engine` encodes images in another way than the fit did (ogkd.backbones.engines): faster,
    but the probabilities are then not quite the same. With `calibrated=False` the probabilities
    are those of the fit, whatever a calibration has found since.
    """
    folder = Path(folder)
    recover(folder)
    card = ModelCard.read(folder / CARD)
    tensors, sha256 = _read_weights(folder / WEIGHTS, card)
    if backbone is None:
        backbone = _recorded_backbone(folder, card, device, engine)
    elif not isinstance(backbone, Backbone):
        backbone = load_backbone(backbone, device=device, engine=engine or card.backbone.engine)
    elif engine is not None:
        backbone = with_engine(backbone, engine)
    _refuse_another_backbone(folder, card, backbone, engine)
    head = _head(folder / WEIGHTS, tensors, card, backbone)
    calibration = None
    if calibrated:
        calibration = Calibration.read(folder / CALIBRATION, card.task, weights_sha256=sha256)
    support = SupportFeatures.read(
        folder / SUPPORT, card.task, width=head.shape[1], sha256=card.support_sha256
    )
    return Classifier(backbone, head, card, calibration=calibration, support=support)


def _refuse_another_backbone(
    folder: Path, card: ModelCard, backbone: Backbone, engine: str | None
) -> None:
    digest = backbone.digest
    if engine is not None:  # the user asked for it: only the weights must be the same
        digest = digest_with(without_engine(backbone).digest, card.backbone.engine)
    if digest != card.backbone.digest:
        raise BackboneError(
            f"{folder} was fitted with another backbone: digest {card.backbone.digest[:12]}, but "
            f"'{backbone.name}' has {digest[:12]}. Pass the one it was fitted with "
            f"('{card.backbone.name}'), or fit again.",
            argument="backbone",
        )


def _recorded_backbone(folder: Path, card: ModelCard, device: str, engine: str | None) -> Backbone:
    try:
        return load_backbone(
            card.backbone.name, device=device, engine=engine or card.backbone.engine
        )
    except BackboneError as error:
        raise BackboneError(
            f"{error}\n{folder} was fitted with the backbone '{card.backbone.name}'. If it has "
            "moved, pass its folder.",
            argument="backbone",
        ) from error


def _read_weights(path: Path, card: ModelCard) -> tuple[dict[str, Tensor], str]:
    """The tensors, and the digest of their file."""
    try:
        content = read_bytes(path, most=_MOST)
        tensors: dict[str, Tensor] = read_tensors(content)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path} is missing or damaged ({error}). Copy the model folder again, or fit again."
        ) from error
    digest = hashlib.sha256(content).hexdigest()
    if card.weights_sha256 not in (None, digest):
        raise ConfigError(
            f"{path} is not the file that {CARD} describes (sha256 {digest[:12]}, expected "
            f"{card.weights_sha256[:12]}). Copy the model folder again, or fit again."
        )
    return tensors, digest


def _head(path: Path, tensors: dict[str, Tensor], card: ModelCard, backbone: Backbone) -> Head:
    method = method_of(card)
    try:
        head = read_head(method, tensors, card.task, backbone, card.logit_scale)
        _refuse_other_tensors(tensors, head.tensors())
    except (KeyError, ValueError, IndexError, TypeError, RuntimeError) as error:
        raise ConfigError(
            f"{path} does not contain what {card.method} saves ({error}). The folder was edited by "
            "hand: copy it again, or fit again."
        ) from error
    if names := head.not_finite():
        raise ConfigError(
            f"{path} contains values that are not numbers ({', '.join(names)}). Fit again."
        )
    width, more = card.backbone.embed_dim, sum(backbone.deep_parts)
    if head.shape not in ((len(card.class_names), width), (len(card.class_names), width + more)):
        raise ConfigError(
            f"{path} contains class features of shape {head.shape}, but {CARD} describes "
            f"{len(card.class_names)} classes of {width} numbers (or {width + more} with deeper "
            "features). The folder was edited by hand: copy it again, or fit again."
        )
    return head


def _refuse_other_tensors(saved: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a ValueError unless the file has what the head made from it would save."""
    for name, tensor in saved.items():
        same = name in expected and tensor.shape == expected[name].shape
        if not same or tensor.is_floating_point() != expected[name].is_floating_point():
            raise ValueError(f"{name} of shape {tuple(tensor.shape)} and type {tensor.dtype}")
