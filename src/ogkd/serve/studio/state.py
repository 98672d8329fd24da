"""What the page shows, as JSON: the state of the project, the gallery, one image in detail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from ogkd.data.case import Case
from ogkd.serve.models import Model, evidence_json
from ogkd.serve.studio.fitted import COVERAGE, Judged
from ogkd.serve.studio.images import patients
from ogkd.serve.studio.queue import uncertainty
from ogkd.serve.studio.session import Session

_NAMED = 5  # files that cannot be read


def state_json(session: Session) -> dict[str, Any]:
    """All but the images: small enough to ask for every second."""
    project, gallery, fitted = session.project, session.gallery, session.fitted
    rows, bad = gallery.rows, sorted(gallery.errors)
    counts = Counter(label for image, label in project.labels.items() if image in rows)
    marks = Counter(m.state for image, m in list(project.marks.items()) if image in rows)
    body: dict[str, Any] = {
        "version": session.version,
        "name": project.folder.name,
        "folders": len(project.facts.folders),
        "patient": project.facts.patient,
        "patients": _patients(session),
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
        "marks": {state: marks[state] for state in ("unsure", "skip", "unusable")},
        "curve": session.curve,
        "fit": None,
    }
    if fitted is not None:
        body["fit"] = {
            "learned": fitted.learned,
            "complete": not fitted.missing,
            "labels": len(fitted.labels),
            "unlabelled": len(fitted.rest),
            "coverage": COVERAGE,
            "has_sets": fitted.sets is not None,
            "exact": fitted.judged is not None and fitted.judged.exact is not None,
            "judged": None if fitted.judged is None else _judged(fitted.judged),
        }
    return body


def _patients(session: Session) -> int | None:
    """How many patients the images are of; None if nothing says so."""
    names = patients(session.project, session.gallery.addresses)
    known = {name for name in names if name is not None}
    return len(known) + names.count(None) if known else None


def _judged(judged: Judged) -> dict[str, Any]:
    return {
        "labels": judged.of,
        "images": len(judged.rows),
        "counted": judged.counted,
        "fair": judged.fair,
        "accuracy": judged.accuracy,
        "interval": judged.interval,
        "confusion": judged.confusion,
        "suspects": [asdict(suspect) for suspect in judged.suspects[:50]],
    }


def images_json(session: Session) -> dict[str, Any]:
    """The gallery, column by column: a row of each for every image."""
    gallery, fitted = session.gallery, session.fitted
    labels = session.labels()
    marks = session.project.marks
    image_marks = [marks.get(address) for address in gallery.addresses]
    body: dict[str, Any] = {
        "version": session.version,
        "names": gallery.addresses,
        "label": [int(label) if label >= 0 else -1 for label in labels],
        "state": ["" if m is None or m.state == "clear" else m.state for m in image_marks],
        "mark": [0 if m is None else m.number for m in image_marks],
        "known": gallery.known.astype(int).tolist(),
        "errors": {str(row): reason for row, reason in gallery.errors.items()},
        "copies": {str(row): first for row, first in gallery.copies.items()},
    }
    if fitted is not None and len(fitted.probabilities) == len(gallery):
        p = fitted.probabilities
        body["predicted"] = np.where(fitted.known, p.argmax(axis=1), -1).tolist()
        body["probability"] = [round(float(top), 4) for top in p.max(axis=1)]
        body["doubt"] = [round(float(doubt), 4) for doubt in uncertainty(p)]
        if fitted.sets is not None:
            body["plausible"] = fitted.sets.sum(axis=1).tolist()
        if fitted.unfamiliar is not None:
            body["unfamiliar"] = fitted.unfamiliar.astype(int).tolist()
    return body


def detail(
    session: Session, models: Callable[[], Sequence[Model]], row: int, evidence: bool
) -> dict[str, Any]:
    """One image: what the model says of it and why."""
    gallery, fitted = session.gallery, session.fitted
    mark = session.project.marks.get(gallery.addresses[row])
    body: dict[str, Any] = {
        "row": row,
        "name": gallery.addresses[row],
        "state": "" if mark is None or mark.state == "clear" else mark.state,
        "label": mark.label if mark is not None and mark.state == "label" else None,
        "mark": 0 if mark is None else mark.number,
        "error": gallery.errors.get(row, ""),
        "copy_of": gallery.copies.get(row),
    }
    if fitted is None or len(fitted.known) != len(gallery) or not fitted.known[row]:
        return body
    names = session.project.class_names
    p = fitted.probabilities[row]
    order = sorted(range(len(names)), key=lambda c: -p[c])
    body["ranked"] = [[names[c], float(p[c])] for c in order]
    if fitted.sets is not None:
        body["plausible"] = [names[c] for c in order if fitted.sets[row, c]]
    body["unfamiliar"] = bool(fitted.unfamiliar is not None and fitted.unfamiliar[row])
    body["neighbours"] = [
        {"row": near, "label": names[label], "similarity": round(cosine, 3)}
        for near, label, cosine in session.neighbours(row)
    ]
    body["learned"] = fitted.learned
    if evidence and (asked := models()):
        case = Case.single(gallery.refs[row])
        decision = next(asked[0].decider.decide([case], crops=True))
        if (shown := evidence_json(asked[0].classifier, decision)) is not None:
            body["evidence"] = shown
    return body
