"""The user's object: fitted from labelled images, asked for decisions, kept in a folder."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from ogkd.backbones import Backbone
from ogkd.backbones.builtin import builtin_warning
from ogkd.core.pooling import Pooling
from ogkd.datasets.manifest import Manifest
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.features.encode import encode_files
from ogkd.features.unreadable import SKIPPED, BadFile, unreadable_error
from ogkd.files import folder_atomically, resolved
from ogkd.images import ImageRef, Images, image_refs
from ogkd.methods import METHODS, Head, TextSide
from ogkd.model.answers import probabilities_of
from ogkd.model.bags import Bags, decide_bags, named_pictures
from ogkd.model.calibration import CALIBRATION, Calibration
from ogkd.model.calibration_file import CalibrationFile
from ogkd.model.card import ModelCard, method_of
from ogkd.model.decide import Decider, Decision
from ogkd.model.familiarity import SUPPORT, SupportFeatures
from ogkd.model.findings import FindingsCalibration
from ogkd.model.policy import Policy

WEIGHTS = "weights.safetensors"
CARD = "model.json"
LOG = "training.jsonl"
_SHOWN = 12  # classes in one line of text


class Classifier:
    """A frozen backbone and a fitted head, and what calibration and support say about it."""

    def __init__(
        self,
        backbone: Backbone,
        head: Head,
        card: ModelCard,
        *,
        calibration: CalibrationFile | None = None,
        support: SupportFeatures | None = None,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.card = card
        self.calibration = calibration
        self.support = support
        self.pooling = card.pooling or Pooling()  # of the pictures of a bag

    def __repr__(self) -> str:
        shown = [f"{name} ({count})" for name, count in self._learned_from]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        what = "findings" if self.card.findings else "classes"
        classes = f"{len(shown)} {what} (images learned from): {', '.join(shown[:_SHOWN])}{more}"
        return f"<Classifier: {self._made}. {classes}>"

    @property
    def _made(self) -> str:
        """Method, backbone and calibration, in words."""
        found = self.calibration
        state = "not calibrated" if found is None else f"calibrated on {found.images} images"
        return f"{self.card.method} on {self.card.backbone.short_name}, {state}"

    @property
    def _learned_from(self) -> list[tuple[str, int]]:
        """Each class, and the number of its images that were learned from."""
        method = METHODS.get(self.card.method)
        counts = self.card.support_counts if method is None or method.needs_images else ()
        return list(zip_longest(self.class_names, counts, fillvalue=0))  # type: ignore[arg-type]

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names in label order."""
        return self.card.class_names

    @property
    def deep(self) -> bool:
        """Whether it answers by deeper features too, so that images are encoded with them."""
        return self.head.shape[1] > self.backbone.embed_dim

    @property
    def weights_sha256(self) -> str:
        """The digest of the weights file, whether it is written or not."""
        return hashlib.sha256(tensor_bytes(self.head.tensors())).hexdigest()

    @property
    def class_calibration(self) -> Calibration | None:
        """The calibration of a model of classes."""
        return self.calibration if isinstance(self.calibration, Calibration) else None

    @property
    def finding_calibration(self) -> FindingsCalibration | None:
        """The calibration of a model of several findings."""
        return self.calibration if isinstance(self.calibration, FindingsCalibration) else None

    def logits(self, features: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [N, C] of features [N, d] before any calibration; of findings, log-odds."""
        if features.shape[-1] < self.head.shape[1]:
            raise ConfigError(
                f"The model takes {self.head.shape[1]} numbers for each image, but got "
                f"{features.shape[-1]}. Encode images with deeper features: "
                "encode_images(pixels, deep=True).rows."
            )
        # Heads are on the CPU: their products are small, and features may come from any device.
        found = self.head.of_rows(torch.as_tensor(features).cpu()).numpy()
        if bad := int((~np.isfinite(found)).any(axis=1).sum()):
            raise ConfigError(
                f"The model has no answer for {bad} of {len(found)} images: its logits are not "
                "numbers. Its weights or the backbone's features are broken; fit again."
            )
        return found

    def probabilities(
        self, features: Tensor | NDArray[np.float32], bags: Tensor | None = None
    ) -> NDArray[np.float32]:
        """Probabilities [N, C] of classes or findings, calibrated if the model is.

        Of a model of bags, `bags` [N] numbers those of the images from 0 on, and each bag has a
        row; without it each image is a bag by itself.
        """
        logits = self.logits(features)
        if self.card.bags is not None:
            of = torch.arange(len(logits)) if bags is None else bags
            logits = self.pooling.logits(torch.from_numpy(logits), of).float().numpy()
        return probabilities_of(logits, self.calibration, findings=self.card.findings)

    def decide(
        self,
        images: Bags,
        *,
        policy: Policy | None = None,
        patches: bool = False,
        batch_size: int = 32,
    ) -> Iterator[Decision]:
        """Decide for images one after the other, in order, with bounded memory.

        `images` are those of `predict`. A model that was fitted on bags gives one decision for
        each bag; with `patches`, one for each picture, as if it were a bag by itself.

        An image that cannot be read gives a decision with `error`. `patches` keeps what evidence
        maps need (see `ogkd.model.explain.evidence_of`).
        """
        decider = Decider(self, policy)
        if self.card.bags is not None and not patches:
            named = named_pictures(images, self.card.bags.rule)
            found = encode_files(
                self.backbone, [ref for _, ref in named], deep=self.deep, batch_size=batch_size
            )
            return decide_bags(decider, found, [name for name, _ in named])
        if isinstance(images, Mapping):
            raise ConfigError("This model answers single images: give a list, not named bags.")
        rule = self.card.slice_rule
        refs = (image.sliced(rule) for image in refs_of(images))
        batches = encode_files(
            self.backbone, refs, patches=patches, deep=self.deep, batch_size=batch_size
        )
        return decider.decide_batches(batches)

    def refs(self, images: Sequence[str | Path | ImageRef]) -> list[ImageRef]:
        """The images; a volume that names no slice gives the one that the model learned from."""
        return [ImageRef.of(image).sliced(self.card.slice_rule) for image in images]

    def predict_proba(self, images: Bags) -> NDArray[np.float32]:
        """Class probabilities [N, C] of images; `images` are those of `predict`."""
        rows = [said.probabilities for said in self._decided(images)]
        return np.array(rows, dtype=np.float32)

    def _decided(self, images: Images | Manifest) -> list[Decision]:
        """The decisions about images, all of which must be readable."""
        rows, bad, real = [], [], 0
        for said in self.decide(images):  # features are not kept: there may be very many images
            rows.append(replace(said, features=None))
            real += said.not_phantom is True
            if said.error:
                bad.append(BadFile(said.image, said.error))
        if bad:
            raise unreadable_error(bad, "Fix or remove them, or use `decide`, which goes on.")
        if not rows:
            raise DataError("No image was given to predict.")
        if warning := builtin_warning(real, len(rows)):
            warnings.warn(warning, OgkdWarning, stacklevel=3)
        return rows

    def predict(self, images: Bags) -> list[str]:
        """The most probable class name of each image; of several findings, `yes` ones as a|b.

        A model of bags gives one for each bag.

        Images are files, the bytes of files, PIL images, arrays [H, W] or [H, W, 3] (uint8, or
        floats from 0 to 1), tensors, which may also be [3, H, W]: one, several, or a batch. A
        torch Dataset or DataLoader gives images or (image, label), and is never held in memory.
        Normalising is the model's work. Bags are volumes, or a mapping of names to their images.
        """
        return [str(said.prediction) for said in self._decided(images)]

    def for_classes(
        self, class_names: Sequence[str], prompts: Sequence[Sequence[str]] | None = None
    ) -> Classifier:
        """The same learned context for other classes, as base-to-novel asks."""
        method = method_of(self.card)
        if self.card.findings:
            raise ConfigError("A model of several findings only knows those it was fitted on.")
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
        support = None if self.support is None else self.support.to_bytes()
        known = None if support is None else hashlib.sha256(support).hexdigest()
        self.card.model_copy(update={"weights_sha256": digest, "support_sha256": known}).write(
            folder / CARD
        )
        if support is not None:
            (folder / SUPPORT).write_bytes(support)
        if self.calibration is not None:
            own = self.calibration.model_copy(update={"weights_sha256": digest})
            own.write(folder / CALIBRATION)


def refs_of(images: Images | Manifest) -> Iterator[ImageRef]:
    """Every image of a dataset or of what `predict` takes, in order."""
    return image_refs([i.image for i in images.items] if isinstance(images, Manifest) else images)


def place_for_model(folder: str | Path) -> Path:
    """Where a model may be written: a new folder, an empty one, or a model to replace."""
    path = resolved(folder)
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
