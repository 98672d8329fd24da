"""The user's object: fitted from labelled images, asked for decisions, kept in a folder."""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save as tensor_bytes
from torch import Tensor

from ogkd.backbones import Backbone
from ogkd.backbones.builtin import domain_warning
from ogkd.backbones.changes import write_backbone
from ogkd.core.pooling import Pooling
from ogkd.data.case import Case, Dataset
from ogkd.data.grouping import Grouping
from ogkd.data.tables import Row, data_frame
from ogkd.data.task import Task
from ogkd.errors import ConfigError, DataError, OgkdWarning, pluralize
from ogkd.features.unreadable import SKIPPED, BadFile, unreadable_error
from ogkd.files import folder_atomically, resolved, write_text
from ogkd.images import Images, image_refs
from ogkd.methods import METHODS, Head
from ogkd.model.calibration import CALIBRATION, Calibration
from ogkd.model.card import ModelCard
from ogkd.model.decide import Decider, Decision, case_logits
from ogkd.model.familiarity import SUPPORT, SupportFeatures
from ogkd.model.policy import Policy
from ogkd.model.share import README, push, readme
from ogkd.model.table import row_writer
from ogkd.records import sealed

Cases = Images | Dataset | Mapping[str, Images] | Sequence[Case]
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
        calibration: Calibration | None = None,
        support: SupportFeatures | None = None,
        history: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.backbone = backbone
        self.head = head
        self.card = card
        self.calibration = calibration
        self.support = support
        self.history = history or None  # a record of each epoch; None where nothing was trained
        self.task: Task = card.task
        self.poolings: tuple[Pooling, ...] = card.question_poolings

    def __repr__(self) -> str:
        card, made = self.card, self.calibration
        state = "not calibrated" if made is None else f"calibrated on {made.cases} images"
        method = METHODS.get(card.method)
        counts = card.support_counts if method is None or method.needs_images else ()
        pairs = list(zip_longest(self.class_names, counts, fillvalue=0))
        shown = [f"{name} ({count})" for name, count in pairs[:_SHOWN]]
        more = f" and {len(pairs) - _SHOWN} more" if len(pairs) > _SHOWN else ""
        names = f"{pluralize(len(pairs), self.task.noun)} (images learned from)"
        return (
            f"<Classifier: {card.method} on {card.backbone.short_name}, {state}. "
            f"{names}: {', '.join(shown)}{more}>"
        )

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
    def digest(self) -> str:
        """Twelve hexadecimal digits of what answers depend on: card, weights and calibration."""
        parts = {"card": self.card, "calibration": self.calibration}
        known_later = {"weights_sha256", "support_sha256"}  # once they are written
        content: dict[str, object] = {
            name: part and part.model_dump(mode="json", exclude=known_later)
            for name, part in parts.items()
        }
        return str(sealed({**content, "weights": self.weights_sha256})["sha256"])[:12]

    def logits(self, features: Tensor | NDArray[np.float32]) -> NDArray[np.float32]:
        """Logits [N, C] of features [N, d] before any calibration; of findings, log-odds."""
        if features.shape[-1] < self.head.shape[1]:
            raise ConfigError(
                f"The model takes {self.head.shape[1]} numbers for each image, but got "
                f"{features.shape[-1]}. Encode images with deeper features: "
                "encode_images(pixels, deep=True).rows."
            )
        # Heads are on the CPU: their products are small, and features may come from any device.
        logits: NDArray[np.float32] = self.head.of_rows(torch.as_tensor(features).cpu()).numpy()
        if bad := int((~np.isfinite(logits)).any(axis=1).sum()):
            raise ConfigError(
                f"The model has no answer for {bad} of {len(logits)} images: its logits are not "
                "numbers. Its weights or the backbone's features are broken; fit again."
            )
        return logits

    def probabilities(
        self, features: Tensor | NDArray[np.float32], case: Tensor | None = None
    ) -> NDArray[np.float32]:
        """Probabilities [B, C] of classes or findings, calibrated if the model is.

        `case` [N] numbers the cases of the images from 0; without it each image is one.
        """
        return self.pooled(torch.from_numpy(self.logits(features)), case)

    def pooled(self, logits: Tensor, case: Tensor | None = None) -> NDArray[np.float32]:
        """The same of the logits [N, C] of images."""
        numbers = torch.arange(len(logits)) if case is None else case
        pooled = case_logits(self.task, self.poolings, logits, numbers)
        return self.task.probabilities(pooled.numpy(), self.calibration)

    def decide(
        self,
        images: Cases,
        *,
        policy: Policy | None = None,
        crops: bool = False,
        batch_size: int = 32,
    ) -> Iterator[Decision]:
        """Decide for cases one after the other, in order, with bounded memory.

        `images` are those of `predict`. A case none of whose images can be read gives a decision
        with `error`. `crops` keeps what the tower saw, which evidence maps need.
        """
        cases = cases_of(images, self.card.grouping)
        return Decider(self, policy).decide(cases, crops=crops, batch_size=batch_size)

    def predict_proba(self, images: Cases) -> NDArray[np.float32]:
        """Class probabilities [N, C] of images; `images` are those of `predict`."""
        rows = [decision.probabilities for decision in self._decided(images)]
        return np.array(rows, dtype=np.float32)

    def _decided(self, images: Cases) -> list[Decision]:
        """The decisions about cases, all of whose images must be readable."""
        decisions, bad = [], []
        for decision in self.decide(images):
            bad += [BadFile(image, reason) for image, reason in decision.errors]
            if decision.error is not None and not bad:  # it has no image
                raise DataError(decision.error)
            # Features are not kept: there may be very many.
            decisions.append(replace(decision, features=None, images=()))
        if bad:
            raise unreadable_error(bad, "Fix or remove them, or use `decide`, which goes on.")
        if not decisions:
            raise DataError("No image was given to predict.")
        foreign = sum(decision.out_of_domain is True for decision in decisions)
        if warning := domain_warning(foreign, len(decisions)):
            warnings.warn(warning, OgkdWarning, stacklevel=3)
        return decisions

    def predict(self, images: Cases) -> list[str]:
        """The most probable class name of each case; of several findings, `yes` ones as a|b.

        A case is an image, unless the model was fitted on cases of several.

        Images are files, the bytes of files, PIL images, arrays [H, W] or [H, W, 3] (uint8, or
        floats from 0 to 1), tensors, which may also be [3, H, W]: one, several, or a batch. A
        torch Dataset or a generator gives images or (image, label), and is never held in memory.
        Normalising is the model's work. Cases of several images are volumes, or a mapping of names
        to their images.
        """
        return [str(decision.prediction) for decision in self._decided(images)]

    def predict_frame(self, images: Cases, *, policy: Policy | None = None) -> Any:
        """What `ogkd predict` writes, a row for each case, as a pandas DataFrame."""
        rows: list[Row] = []
        write = row_writer(rows, self.task, "csv", joined=self.card.grouping.joins_images)
        for decision in self.decide(images, policy=policy):
            write(decision)
        return data_frame(rows)

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
        if self.history is not None:
            write_text(folder / LOG, history_lines(self.history), ours=True)
        if self.calibration is not None:
            calibration = self.calibration.model_copy(update={"weights_sha256": digest})
            write_calibration(folder, self.card, calibration)
        else:
            write_text(folder / README, readme(self.card, None), ours=True)

    def export_backbone(self, folder: str | Path) -> Path:
        """Write the towers that the fit has tuned as a backbone of its own, if weights suffice."""
        return write_backbone(self.backbone, folder)

    def push_to_hub(self, hub_id: str, *, private: bool = True, message: str = "ogkd") -> str:
        """Write the model to the hub as "org/name" and return its address; `ogkd.load` reads it.

        It holds features of the images learned from: keep it private unless these may be shared.
        """
        return push(self, hub_id, private=private, message=message)


def write_calibration(folder: Path, card: ModelCard, calibration: Calibration) -> None:
    """Write a calibration into a model's folder, whose README then says so."""
    calibration.write(folder / CALIBRATION)
    write_text(folder / README, readme(card, calibration), ours=True)


def cases_of(images: Cases, grouping: Grouping) -> Iterable[Case]:
    """The cases of a dataset or of what `predict` takes, in order.

    A stream stays one where each image is a case.
    """
    if isinstance(images, Dataset):
        return grouping.expand(grouping.merge(images.cases))
    if isinstance(images, Mapping):
        named = [Case(name, tuple(image_refs(members))) for name, members in images.items()]
        return grouping.expand(named)
    if isinstance(images, list | tuple) and images and isinstance(images[0], Case):
        return list(images)
    rule = grouping.slice
    refs = (image.sliced(rule) for image in image_refs(images))
    cases = (Case(str(ref), (ref,)) for ref in refs)
    return grouping.expand(grouping.merge(list(cases))) if grouping.joins_images else cases


def read_history(log: Path) -> list[Mapping[str, Any]]:
    """One record for each epoch of a log: a kill cuts lines, a resume repeats epochs."""
    kept: dict[int, Mapping[str, Any]] = {}
    for line in log.read_bytes().splitlines() if log.is_file() else ():
        with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
            entry = json.loads(line)
            kept[entry["epoch"]] = entry
    return [kept[epoch] for epoch in sorted(kept)]


def history_lines(history: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f"{json.dumps(entry)}\n" for entry in history)


def place_for_model(folder: str | Path) -> Path:
    """Where a model may be written: a new folder, an empty one, or a model to replace."""
    path = resolved(folder)
    names = set()
    if path.is_dir():
        names = {file.name for file in path.iterdir() if not file.name.startswith(".")}
    others = sorted(names - {CARD, WEIGHTS, LOG, SKIPPED, SUPPORT, CALIBRATION, README})
    problem = ""
    if path.exists() and not path.is_dir():
        problem = "is a file, not a model folder"
    elif others or (names and CARD not in names):
        problem = f"exists and is not a model folder: it contains {', '.join(others[:5])}"
    elif path.is_dir() and Path.cwd().is_relative_to(path):
        problem = "is the current folder"
    if problem:
        raise ConfigError(f"{folder} {problem}. Choose another folder.", argument="out")
    return path
