"""A project at work: images are encoded and models fitted in the background while people label.

What the page shows of it is here too, as JSON: the state, the gallery, one image in detail.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones import Backbone, load_backbone
from ogkd.data.case import Case
from ogkd.data.names import fold_name
from ogkd.errors import OgkdError
from ogkd.features.store import FeatureStore, given_batches
from ogkd.fitting.choose import AUTO, choose_backbone
from ogkd.fitting.prepare import text_sides
from ogkd.methods import TextSide
from ogkd.model.table import decision_json
from ogkd.prompts.bank import read_bank, shipped_banks, template_bank
from ogkd.serve.models import evidence_json
from ogkd.serve.studio.fit import Fitted, Snapshot, fit_labels, judge
from ogkd.serve.studio.images import Gallery, find_project_images
from ogkd.serve.studio.project import Project
from ogkd.serve.studio.queue import (
    ASSIGNED,
    EXCLUDED,
    UNLABELLED,
    next_images,
    uncertainty,
    with_checks,
)

_AHEAD = 12  # images of the queue that are given at once
_SAMPLE = 24  # images by which a backbone is chosen
_LENT, _WINDOWS = 4, 4  # images that a window has to itself, and how many windows have some
_NAMED = 5  # files that cannot be read
_STALE = 4  # labels after which a head is judged again even if more labels are coming in
log = logging.getLogger("ogkd.serve.studio")


class Session:
    """Owns the threads. What others read of it is replaced whole, never changed in place."""

    def __init__(self, project: Project, *, device: str = "auto") -> None:
        self.project, self.device = project, device
        self.gallery = Gallery([], [])
        self.backbone: Backbone | None = None
        self.fitted: Fitted | None = None
        self.version = 0  # grows with everything that the page may want to show
        self.stage = "idle"  # or loading, encoding, ready, error
        self.problem = ""
        self._text: tuple[Any, TextSide] | None = None
        self._lent: dict[str, list[int]] = {}  # the rows that each window was given last
        self._stop = threading.Event()
        self._asked = 0  # how often something has changed
        self._encoder, self._fitter = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.encoding: Future[None] | None = None
        self.rescan()

    def close(self) -> None:
        self._stop.set()
        for pool in (self._encoder, self._fitter):
            pool.shutdown(cancel_futures=True)
        self.project.write_table()

    def rescan(self) -> None:
        """Look for images again, and encode those that are new."""
        refs = find_project_images(self.project)
        self._stop.set()
        self._stop = threading.Event()
        self.fitted = None
        self.gallery = Gallery(refs, [self.project.address(ref) for ref in refs])
        self.version += 1
        if refs:
            self.encoding = self._encoder.submit(self._encode, self.gallery, self._stop)

    def changed(self) -> None:
        """Labels or classes have changed: fit again soon."""
        self.version += 1
        self._asked += 1
        self._fitter.submit(self._fit, self._asked)

    def settle(self, seconds: float = 120.0) -> None:
        """Wait until everything said so far has been learned from and judged."""
        self._fitter.submit(lambda: None).result(seconds)

    def labels(self) -> NDArray[np.int64]:
        """The class of each image, UNLABELLED or EXCLUDED."""
        names = {name: number for number, name in enumerate(self.project.class_names)}
        labels = np.full(len(self.gallery), UNLABELLED, np.int64)
        for address, mark in list(self.project.marks.items()):
            row = self.gallery.rows.get(address)
            if row is not None and mark.state != "clear":
                label = names.get(mark.label or "", EXCLUDED)
                labels[row] = label if mark.state == "label" else EXCLUDED
        for row in (*self.gallery.errors, *self.gallery.copies):
            if labels[row] == UNLABELLED:
                labels[row] = EXCLUDED
        return labels

    def queue(self, n: int = _AHEAD, *, by: str = "") -> list[int]:
        """Rows of the images to label next; what another window was just given is left out.

        `by` is the window that asks. What only others have left is given to all.
        """
        others = [row for who, rows in list(self._lent.items()) if who != by for row in rows]
        rows = self._queue(n, others) or self._queue(n, ())
        self._lent = dict([*self._lent.items(), (by, rows[:_LENT])][-_WINDOWS:])
        return rows

    def _queue(self, n: int, lent: Sequence[int]) -> list[int]:
        gallery, fitted = self.gallery, self.fitted
        if gallery.features is None or not gallery.known.any():
            return []
        labels = self.labels()
        labels[~gallery.known & (labels == UNLABELLED)] = EXCLUDED
        labels[[row for row in lent if row < len(labels) and labels[row] == UNLABELLED]] = ASSIGNED
        classes = max(2, len(self.project.class_names))
        p = None
        if fitted is not None and fitted.probabilities.shape == (len(gallery), classes):
            p = fitted.probabilities
        groups = self.project.patients(gallery.addresses)
        # The queue's constants are for global features, the first numbers of a row.
        width = None if self.backbone is None else self.backbone.embed_dim
        queue = next_images(
            gallery.features[:, :width],
            labels,
            classes=classes,
            probabilities=p,
            groups=groups if any(name is not None for name in groups) else None,
            n=n,
        )
        return with_checks(queue, gallery.order, labels)

    def state_json(self) -> dict[str, Any]:
        """All but the images: small enough to ask for every second."""
        project, gallery, fitted = self.project, self.gallery, self.fitted
        bad = sorted(gallery.errors)
        marks = [mark for image, mark in list(project.marks.items()) if image in gallery.rows]
        counts = Counter(mark.label for mark in marks if mark.state == "label")
        names = project.patients(gallery.addresses)
        known = {name for name in names if name is not None}
        return {
            "version": self.version,
            "name": project.folder.name,
            "patient": project.facts.patient,
            "patients": len(known) + names.count(None) if known else None,
            "stage": self.stage,
            "problem": self.problem,
            "images": len(gallery),
            "encoded": gallery.done,
            "rate": round(gallery.rate, 1),
            "unreadable": len(bad),
            "unreadable_names": [gallery.addresses[row] for row in bad[:_NAMED]],
            "copies": len(gallery.copies),
            "volumes": gallery.volumes,
            "backbone": "" if self.backbone is None else self.backbone.name.rsplit("/", 1)[-1],
            "classes": [
                {**info.model_dump(mode="json"), "labels": counts[info.name]}
                for info in project.facts.classes
            ],
            "labelled": sum(counts.values()),
            "fit": None if fitted is None else fitted.as_json(),
        }

    def images_json(self) -> dict[str, Any]:
        """The gallery, column by column: a row of each for every image."""
        gallery, fitted = self.gallery, self.fitted
        marks = [self._mark_json(address) for address in gallery.addresses]
        body: dict[str, Any] = {
            "version": self.version,
            "names": gallery.addresses,
            "label": [int(label) if label >= 0 else -1 for label in self.labels()],
            "state": [mark["state"] for mark in marks],
            "mark": [mark["mark"] for mark in marks],
            "known": gallery.known.astype(int).tolist(),
            "errors": {str(row): reason for row, reason in gallery.errors.items()},
            "copies": {str(row): first for row, first in gallery.copies.items()},
        }
        if fitted is not None and len(fitted.known) == len(gallery):
            p = fitted.probabilities
            body["predicted"] = np.where(fitted.known, p.argmax(axis=1), -1).tolist()
            body["probability"] = [round(float(top), 4) for top in p.max(axis=1)]
            body["doubt"] = [round(float(doubt), 4) for doubt in uncertainty(p)]
            if fitted.sets is not None:
                body["plausible"] = fitted.sets.sum(axis=1).tolist()
            if fitted.unfamiliar is not None:
                body["unfamiliar"] = fitted.unfamiliar.astype(int).tolist()
        return body

    def _mark_json(self, address: str) -> dict[str, Any]:
        """What was last said of an image."""
        mark = self.project.marks.get(address)
        if mark is None:
            return {"state": "", "label": None, "mark": 0}
        state = "" if mark.state == "clear" else mark.state
        return {"state": state, "label": mark.label, "mark": mark.number}

    def image_json(self, row: int, *, evidence: bool) -> dict[str, Any]:
        """One image: what the model says of it, as `predict` writes it, and why."""
        gallery, fitted = self.gallery, self.fitted
        body: dict[str, Any] = {
            "name": gallery.addresses[row],
            **self._mark_json(gallery.addresses[row]),
            "error": gallery.errors.get(row, ""),
            "copy_of": gallery.copies.get(row),
        }
        if fitted is None or gallery.features is None or len(fitted.known) != len(gallery):
            return body
        if not fitted.known[row]:
            return body
        decider, drawn = fitted.decider, evidence and not fitted.missing
        feature = torch.from_numpy(gallery.features[[row]])
        [decision] = decider.decide(
            [Case.single(gallery.refs[row])],
            None if drawn else lambda images: given_batches(feature, images),
            crops=drawn,
        )
        body["decision"] = decision_json(decider.task, decision, joined=False)
        body["learned"] = fitted.learned
        if drawn and (shown := evidence_json(decider.classifier, decision)) is not None:
            body["evidence"] = shown
        return body

    def text(self) -> TextSide | None:
        """The texts of the classes through the backbone's text tower; None without classes."""
        classes = self.project.facts.classes
        if self.backbone is None or len(classes) < 2:
            return None
        if self._text is None or self._text[0] != classes:
            bank = {info.name: list(info.texts or texts_for(info.name)) for info in classes}
            [text] = text_sides(self.backbone, self.project.task, bank)
            self._text = (classes, text)
        return self._text[1]

    def _encode(self, gallery: Gallery, stop: threading.Event) -> None:
        self.stage, self.problem = "loading", ""
        self.version += 1
        try:
            if self.backbone is None:
                self.backbone = self._load()
            self.stage = "encoding"
            gallery.encode(FeatureStore(self.backbone), stop, self.changed)
            self.stage = "ready"
        except Exception as error:
            self._report("Images could not be encoded", error)
            self.stage = "error"
        self.changed()

    def _report(self, what: str, error: Exception) -> None:
        """Show an error on the page; one that is not ours also in the terminal."""
        if not isinstance(error, OgkdError):
            log.exception(what)
        self.problem = f"{what}: {error}"
        self.version += 1

    def _load(self) -> Backbone:
        name = self.project.backbone
        if name == AUTO:
            step = max(1, len(self.gallery) // _SAMPLE)
            name = choose_backbone(self.gallery.refs[::step][:_SAMPLE])
        return load_backbone(name, device=self.device)

    def _fit(self, turn: int) -> None:
        if turn < self._asked:
            return  # more has been said meanwhile, and its turn comes
        try:
            self._fit_and_judge(turn)
        except Exception as error:
            self._report("The labels could not be learned from", error)

    def _fit_and_judge(self, turn: int) -> None:
        gallery, text, before = self.gallery, self.text(), self.fitted
        labels = self.labels()
        if text is None or gallery.features is None or not gallery.known.any():
            self.fitted = None
            return
        if len(labels) != len(gallery):
            return  # other images meanwhile, whose turn comes
        known = gallery.known.copy()
        keys = [ref.fingerprint if known[row] else "" for row, ref in enumerate(gallery.refs)]
        groups = self.project.patients(gallery.addresses)
        images = Snapshot(gallery.features, known, labels, gallery.order, keys, groups)
        fitted = fit_labels(images, text)
        old = None
        if before is not None and before.probabilities.shape == fitted.probabilities.shape:
            old = before.judged
        if fitted.learned and old is not None:
            fitted = fitted.trusting(old, images.features)
        if not self._publish(gallery, fitted):
            return
        self.project.write_table()
        if not fitted.learned:
            return
        if self._asked > turn and old is not None and len(fitted.labels) - old.of < _STALE:
            return  # more has been said meanwhile: that comes first
        judged = judge(fitted, images, text)
        self._publish(gallery, fitted.trusting(judged, images.features))

    def _publish(self, gallery: Gallery, fitted: Fitted) -> bool:
        """Show a fit, unless there are other images or classes by now."""
        classes = fitted.probabilities.shape[1]
        if gallery is not self.gallery or classes != len(self.project.class_names):
            return False
        self.fitted = fitted
        self.version += 1
        return True


def texts_for(name: str) -> list[str]:
    """The texts of a shipped bank that has this class, else templates."""
    for path in shipped_banks().values():
        bank = {fold_name(known): texts for known, texts in read_bank(path).items()}
        if texts_of_class := bank.get(fold_name(name)):
            return texts_of_class
    return template_bank([name])[0]
