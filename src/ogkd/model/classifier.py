"""The user's object: fitted from labelled images, asked for decisions, kept in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import digest_with, with_engine, without_engine
from ogkd.errors import BackboneError, ConfigError, DataError
from ogkd.features.encode import encode_files
from ogkd.features.unreadable import SKIPPED, BadFile, unreadable_error
from ogkd.files import folder_atomically, write_json
from ogkd.images import ImageRef
from ogkd.methods import METHODS, Head, Method, TextSide, make_method
from ogkd.model.calibration import CALIBRATION, Calibration, softmax
from ogkd.model.card import ModelCard
from ogkd.model.decide import Decider, Decision, Policy
from ogkd.model.familiarity import SUPPORT, SupportFeatures

WEIGHTS = "weights.safetensors"
CARD = "model.json"
LOG = "training.jsonl"


class Classifier:
    """A frozen backbone and a fitted head, and what calibration and support say about it."""

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        card: ModelCard,
        *,
        calibration: Calibration | None = None,
        support: SupportFeatures | None = None,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.card = card
        self.calibration = calibration
        self.support = support

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        return self.card.class_names

    @property
    def weights_sha256(self) -> str:
        """The digest of the weights file, whether it is written or not."""
        return hashlib.sha256(tensor_bytes(self.head.tensors())).hexdigest()

    def logits(self, features: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [N, C] of global features [N, d], before any calibration."""
        rows = torch.as_tensor(features)
        return self.head.logits(rows).numpy()

    def probabilities(self, features: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
        """Class probabilities [N, C] of global features [N, d], calibrated if the model is."""
        logits = self.logits(features)
        return softmax(logits, 1.0 if self.calibration is None else self.calibration.temperature)

    def decide(
        self,
        images: Sequence[str | Path | ImageRef],
        *,
        policy: Policy | None = None,
        patches: bool = False,
        batch_size: int = 32,
    ) -> Iterator[Decision]:
        """Decide for images one after the other, in order, with bounded memory.

        An image that cannot be read gives a decision with `error`. `patches` keeps what evidence
        maps need (see `ogkd.model.explain.evidence_of`).
        """
        decider = Decider(self, policy)
        batches = encode_files(
            self.backbone, self.refs(images), patches=patches, batch_size=batch_size
        )
        return decider.decide_batches(batches)

    def refs(self, images: Sequence[str | Path | ImageRef]) -> list[ImageRef]:
        """The images; a volume that names no slice gives the one that the model learned from."""
        return [ImageRef.of(image).sliced(self.card.slice_rule) for image in images]

    def predict_proba(self, images: Sequence[str | Path | ImageRef]) -> NDArray[np.float32]:
        """Class probabilities [N, C] of image files."""
        if isinstance(images, str | Path | ImageRef):
            images = [images]  # else a string would be taken for a list of letters
        if not images:
            raise DataError("No image was given to predict.")
        found = list(self.decide(images))
        bad = [BadFile(said.image, said.error) for said in found if said.image and said.error]
        if bad:
            raise unreadable_error(bad, "Fix or remove them, or use `decide`, which goes on.")
        return np.array([said.probabilities for said in found], dtype=np.float32)

    def predict(self, images: Sequence[str | Path | ImageRef]) -> list[str]:
        """The most probable class name of each image file."""
        return [self.class_names[row] for row in self.predict_proba(images).argmax(axis=1)]

    def for_classes(
        self, class_names: Sequence[str], prompts: Sequence[Sequence[str]] | None = None
    ) -> Classifier:
        """The same learned context for other classes, as base-to-novel asks."""
        method = method_of(self.card)
        texts = prompts if prompts is not None else [[name] for name in class_names]
        names = tuple(class_names)
        text = TextSide(self.backbone, names, tuple(tuple(row) for row in texts))
        none = (0,) * len(names)
        card = self.card.model_copy(
            update={
                "class_names": names,
                "normal": tuple(name for name in self.card.normal if name in names),
                "support_counts": none,
            }
        )
        return Classifier(self.backbone, method.head_for(self.head, text), card)

    def save(self, folder: str | Path) -> None:
        """Write the model folder, whole or not at all; only a model is ever replaced."""
        with folder_atomically(place_for_model(folder)) as aside:
            self.write_into(aside)

    def write_into(self, folder: Path) -> None:
        """Write the model's files into an existing folder."""
        # Python writes the bytes, so that a full disk is reported as one.
        weights = tensor_bytes(self.head.tensors())
        (folder / WEIGHTS).write_bytes(weights)
        digest = hashlib.sha256(weights).hexdigest()
        card = self.card.model_copy(update={"weights_sha256": digest})
        write_json(folder / CARD, card.model_dump(mode="json"))
        if self.support is not None:
            (folder / SUPPORT).write_bytes(self.support.to_bytes())
        if self.calibration is not None:
            own = self.calibration.model_copy(update={"weights_sha256": digest})
            own.write(folder / CALIBRATION)


def place_for_model(folder: str | Path) -> Path:
    """Where a model may be written: a new folder, an empty one, or a model to replace."""
    path = Path(folder).resolve()
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"{folder} is a file, not a model folder. Choose another folder.", argument="out"
        )
    if not path.is_dir():
        return path
    found = {file.name for file in path.iterdir() if not file.name.startswith(".")}
    others = sorted(found - {CARD, WEIGHTS, LOG, SKIPPED, SUPPORT, CALIBRATION})
    if others or (found and CARD not in found):
        raise ConfigError(
            f"{folder} exists and is not a model folder: it contains {', '.join(others[:5])}"
            f"{', ...' if len(others) > 5 else ''}. Nothing was written. Choose another folder.",
            argument="out",
        )
    if Path.cwd().is_relative_to(path):
        raise ConfigError(
            f"{folder} is the current folder. Name a folder inside it.", argument="out"
        )
    return path


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
    classes, width = head.shape
    return Classifier(
        backbone,
        head,
        card,
        calibration=_calibration(folder / CALIBRATION, sha256, classes) if calibrated else None,
        support=SupportFeatures.read(folder / SUPPORT, classes=classes, width=width),
    )


def _calibration(path: Path, weights_sha256: str, classes: int) -> Calibration | None:
    found = Calibration.read(path, weights_sha256=weights_sha256)
    if found is not None and len(found.counts) != classes:
        raise ConfigError(
            f"{path} is for {len(found.counts)} classes, but the model has {classes}. "
            "Calibrate again, or delete this file."
        )
    return found


def _refuse_another_backbone(
    folder: Path, card: ModelCard, backbone: Backbone, engine: str | None
) -> None:
    found = backbone.digest
    if engine is not None:  # the user asked for it: only the weights must be the same
        found = digest_with(without_engine(backbone).digest, card.backbone.engine)
    if found != card.backbone.digest:
        raise BackboneError(
            f"{folder} was fitted with another backbone: digest {card.backbone.digest[:12]}, but "
            f"'{backbone.name}' has {found[:12]}. Pass the one it was fitted with "
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
        content = path.read_bytes()
        tensors: dict[str, Tensor] = read_tensors(content)
    except (OSError, SafetensorError) as error:
        raise ConfigError(
            f"{path} is missing or damaged ({error}). Copy the model folder again, or fit again."
        ) from error
    found = hashlib.sha256(content).hexdigest()
    if card.weights_sha256 not in (None, found):
        raise ConfigError(
            f"{path} is not the file that {CARD} describes (sha256 {found[:12]}, expected "
            f"{card.weights_sha256[:12]}). Copy the model folder again, or fit again."
        )
    return tensors, found


def _head(path: Path, tensors: dict[str, Tensor], card: ModelCard, backbone: Backbone) -> Head:
    method = method_of(card)
    text = TextSide(backbone, card.class_names, ())
    try:
        head = method.read_head(tensors, text, card.logit_scale)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"{path} does not contain what {card.method} saves ({error}). The folder was edited by "
            "hand: copy it again, or fit again."
        ) from error
    if head.shape != (len(card.class_names), card.backbone.embed_dim):
        raise ConfigError(
            f"{path} contains class features of shape {head.shape}, but {CARD} describes "
            f"{len(card.class_names)} classes of {card.backbone.embed_dim} numbers. The folder "
            "was edited by hand: copy it again, or fit again."
        )
    return head


def method_of(card: ModelCard) -> Method:
    """The method of a model, with its settings; a missing plugin is named, never imported."""
    if card.method not in METHODS:
        source = f"the plugin '{card.plugin}'" if card.plugin else "code outside ogkd"
        raise ConfigError(
            f"The model was fitted with the method '{card.method}' from {source}, which is not "
            "loaded. If you trust it, install the package, or load its file or module first: "
            "ogkd.plugins.load(...).",
            argument="plugin",
        )
    return make_method(card.method, settings=card.config)
