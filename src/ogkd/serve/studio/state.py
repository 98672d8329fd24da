"""What the page shows, as JSON: the state of the project, the gallery, one image in detail."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import torch

from ogkd.data.case import Case
from ogkd.errors import DataError
from ogkd.features.store import given_batches
from ogkd.model.support_sets import SupportSets
from ogkd.model.table import decision_json
from ogkd.serve.models import evidence_json
from ogkd.serve.studio.fit import Fitted
from ogkd.serve.studio.queue import uncertainty
from ogkd.serve.studio.session import Session

_NAMED = 5  # files that cannot be read
_SUSPECTS = 50  # labels to look at again


def state_json(session: Session) -> dict[str, Any]:
    """All but the images: small enough to ask for every second."""
    project, gallery, fitted = session.project, session.gallery, session.fitted
    rows, bad = gallery.rows, sorted(gallery.errors)
    marks = [m for image, m in list(project.marks.items()) if image in rows]
    counts = Counter(mark.label for mark in marks if mark.state == "label")
    states = Counter(mark.state for mark in marks)
    names = project.patients(gallery.addresses)
    known = {name for name in names if name is not None}
    return {
        "version": session.version,
        "name": project.folder.name,
        "folders": len(project.facts.folders),
        "patient": project.facts.patient,
        "patients": len(known) + names.count(None) if known else None,
        "stage": session.stage,
        "problem": session.problem,
        "images": len(gallery),
        "encoded": gallery.done,
        "rate": round(gallery.rate, 1),
        "unreadable": len(bad),
        "unreadable_names": [gallery.addresses[row] for row in bad[:_NAMED]],
        "copies": len(gallery.copies),
        "volumes": gallery.volumes,
        "backbone": "" if session.backbone is None else session.backbone.name.rsplit("/", 1)[-1],
        "classes": [
            {**info.model_dump(mode="json"), "labels": counts[info.name]}
            for info in project.facts.classes
        ],
        "labelled": sum(counts.values()),
        "marks": {state: states[state] for state in ("unsure", "skip", "unusable")},
        "fit": None if fitted is None else _fit_json(fitted),
    }


def _fit_json(fitted: Fitted) -> dict[str, Any]:
    body: dict[str, Any] = {
        "learned": fitted.learned,
        "complete": not fitted.missing,
        "labels": len(fitted.labels),
        "unlabelled": len(fitted.rest),
        "coverage": fitted.decider.coverage,
        "has_sets": fitted.sets is not None,
        "exact": isinstance(fitted.decider.sets, SupportSets),
        "judged": None,
    }
    if (judged := fitted.judged) is not None:
        body["judged"] = {
            "labels": judged.of,
            "images": len(judged.rows),
            "fair": judged.fair,
            "basis": judged.basis,
            "accuracy": judged.accuracy,
            "interval": judged.interval,
            "weakest": judged.weakest,
            "confusion": judged.confusion().tolist(),
            "suspects": [asdict(suspect) for suspect in judged.suspects[:_SUSPECTS]],
        }
    return body


def images_json(session: Session) -> dict[str, Any]:
    """The gallery, column by column: a row of each for every image."""
    gallery, fitted = session.gallery, session.fitted
    marks = [_mark_json(session, address) for address in gallery.addresses]
    body: dict[str, Any] = {
        "version": session.version,
        "names": gallery.addresses,
        "label": [int(label) if label >= 0 else -1 for label in session.labels()],
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


def _mark_json(session: Session, address: str) -> dict[str, Any]:
    """What was last said of an image."""
    mark = session.project.marks.get(address)
    if mark is None:
        return {"state": "", "label": None, "mark": 0}
    state = "" if mark.state == "clear" else mark.state
    return {"state": state, "label": mark.label, "mark": mark.number}


def row_of(session: Session, number: str | int) -> int:
    """A row that a request names, checked."""
    text = str(number)
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= len(session.gallery):
        raise DataError("There is no such image. Load the page again.")
    return int(text)


def detail(session: Session, row: int, evidence: bool) -> dict[str, Any]:
    """One image: what the model says of it, as `predict` writes it, and why."""
    gallery, fitted = session.gallery, session.fitted
    body: dict[str, Any] = {
        "row": row,
        "name": gallery.addresses[row],
        **_mark_json(session, gallery.addresses[row]),
        "error": gallery.errors.get(row, ""),
        "copy_of": gallery.copies.get(row),
    }
    if fitted is None or gallery.features is None or len(fitted.known) != len(gallery):
        return body
    if not fitted.known[row]:
        return body
    decider, task = fitted.decider, fitted.decider.task
    case, feature = Case.single(gallery.refs[row]), gallery.features[[row]]
    drawn = evidence and not fitted.missing
    [decision] = decider.decide(
        [case],
        None if drawn else lambda images: given_batches(torch.from_numpy(feature), images),
        crops=drawn,
    )
    body["decision"] = decision_json(task, decision, joined=False)
    body["learned"] = fitted.learned
    if drawn and (shown := evidence_json(decider.classifier, decision)) is not None:
        body["evidence"] = shown
    return body
