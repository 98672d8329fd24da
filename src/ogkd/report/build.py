"""The report: everything known of a model on labelled images, as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ogkd.audit.style import STYLE
from ogkd.evaluation import describe
from ogkd.files import write_text
from ogkd.model.calibration import softmax
from ogkd.model.card import CAUTION
from ogkd.model.decide import engine_note
from ogkd.report import facts, pictures, sections
from ogkd.report.tables import confusion_heat, graph_heat
from ogkd.report.words import Outcome, frequent_confusions, percent, sentences, warnings

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.datasets.manifest import Manifest
    from ogkd.evaluation import Judged
    from ogkd.model.classifier import Classifier

__all__ = ["report_page", "write_report"]

_REFERRED = 0.8  # of the images that are kept, in the summary
_CASES = 8  # files listed under a finding
_CONTENTS = {
    "summary": "Summary",
    "metrics": "Metrics",
    "confusion": "Confusions",
    "screening": "Screening",
    "selective": "Referring",
    "calibration": "Calibration",
    "conformal": "Sets",
    "errors": "Mistakes",
    "examples": "Where it looks",
    "graph": "Class graph",
    "data": "Data",
    "making": "Settings",
    "caution": "Caution",
}


def write_report(
    path: str | Path,
    classifier: Classifier,
    manifest: Manifest,
    judged: Judged,
    *,
    command: str = "",
    show_names: bool = False,
    audit: Audit | None = None,
    images: bool = True,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Write the page about `judged`, what `judge` says of a part of `manifest`.

    File names stay out unless `show_names`; `images=False` leaves the pictures out. `result` is
    what `describe` gave, where that was computed already. `command` is the command line.
    """
    now = datetime.now().astimezone()
    page = report_page(
        classifier,
        manifest,
        judged,
        command=command,
        show_names=show_names,
        audit=audit,
        images=images,
        result=result,
        made=f"Made on {now:%Y-%m-%d} at {now:%H:%M %Z}",
    )
    write_text(Path(path), page)


def report_page(
    classifier: Classifier,
    manifest: Manifest,
    judged: Judged,
    *,
    command: str = "",
    show_names: bool = False,
    audit: Audit | None = None,
    images: bool = True,
    result: Mapping[str, Any] | None = None,
    made: str = "",
) -> str:
    """The page's text; the same input gives the same text."""
    card, calibration = classifier.card, classifier.calibration
    if result is None:
        result = describe(judged, calibration, learned=card.support_images)
    p = softmax(judged.logits, 1.0 if calibration is None else calibration.temperature)
    outcome = _outcome(result, judged, p, calibrated=calibration is not None)
    wrong = pictures.confident_mistakes(judged.labels, p)
    right = pictures.right_examples(judged.labels, p)
    shown = {"show_names": show_names}
    mistakes = pictures.cards(classifier, judged, p, wrong, **shown) if images else []
    examples = pictures.cards(classifier, judged, p, right, **shown) if images else []
    screening, conformal = sections.screening(result, outcome), sections.conformal(result)
    present = {"screening": screening, "conformal": conformal, "examples": examples}
    return (
        _environment()
        .get_template("report.html")
        .render(
            title="Model report",
            subtitle=f"{card.method} on {card.backbone.short_name}: {', '.join(card.class_names)}",
            caution=CAUTION,
            made=made,
            style=_style(),
            has_pictures=bool(mistakes or examples),
            contents=[(key, name) for key, name in _CONTENTS.items() if present.get(key, True)],
            tiles=_tiles(outcome, result),
            sentences=sentences(outcome),
            warnings=[
                *filter(None, [engine_note(classifier)]),
                *warnings(outcome),
                *_unchecked(audit),
            ],
            interval_words=sections.interval_words(result),
            metrics=sections.metrics(result),
            classes=sections.classes(result),
            confusion=confusion_heat(outcome.counts, outcome.names),
            confusions=frequent_confusions(outcome),
            screening=screening,
            risk=sections.risk(result),
            calibration=sections.calibration(result),
            conformal=conformal,
            mistakes=mistakes,
            mistake_rows=_mistake_rows(judged, p, wrong, show_names=show_names),
            mistake_words=_mistake_words(outcome, len(wrong)),
            show_names=show_names,
            examples=examples,
            graph=_graph(classifier),
            data=_data(manifest, judged, classifier, audit),
            findings=None if audit is None else _findings(audit, show_names=show_names),
            model=facts.model_facts(classifier, show_names=show_names),
            settings=facts.settings_rows(card.config),
            versions=facts.version_rows(card),
            hashes=facts.fingerprints(classifier, judged),
            command=facts.plain_command(command, show_names=show_names),
        )
    )


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("ogkd.report"),
        autoescape=True,
        undefined=StrictUndefined,  # a slip of the pen in the template is an error, not a gap
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _style() -> Markup:
    own = Path(__file__).with_name("templates") / "style.css"
    return Markup(STYLE + own.read_text(encoding="utf-8"))  # both are ours


def _outcome(result: Mapping[str, Any], judged: Judged, p: Any, *, calibrated: bool) -> Outcome:
    return Outcome(
        names=tuple(judged.class_names),
        counts=np.asarray(result["confusion"], np.int64),
        interval=_pair(result["intervals"]["accuracy"]),
        mean_confidence=float(p.max(axis=1).mean()),
        kept=_REFERRED,
        risk=result["selective"]["risk_at_coverage"][f"{_REFERRED:g}"],
        normal=judged.normal,
        calibrated=calibrated,
        learned=result["learned_from"] + result["calibrated_on"],
    )


def _pair(between: list[float] | None) -> tuple[float, float] | None:
    return None if between is None else (between[0], between[1])


def _tiles(outcome: Outcome, result: Mapping[str, Any]) -> list[dict[str, str]]:
    between = outcome.interval
    tiles = [
        _tile(str(outcome.images), "images judged", f"{len(outcome.names)} classes"),
        _tile(
            percent(outcome.accuracy),
            "named correctly",
            f"95 %: {100 * between[0]:.0f} to {100 * between[1]:.0f} %" if between else "",
        ),
        _tile(
            percent(outcome.risk),
            "errors",
            f"when the least certain {percent(1 - outcome.kept)} are referred",
        ),
        _tile(
            f"{100 * result['ece']:.1f} points",
            "calibration error",
            "calibrated" if outcome.calibrated else "not calibrated",
        ),
    ]
    found = result["screening"]
    if found and found["sensitivity"] is not None and found["specificity"] is not None:
        note = f"specificity {percent(found['specificity'])}"
        tiles.insert(2, _tile(percent(found["sensitivity"]), "of findings noticed", note))
    return tiles


def _tile(value: str, name: str, note: str) -> dict[str, str]:
    return {"value": value, "name": name, "note": note}


def _unchecked(audit: Audit | None) -> list[str]:
    errors = 0 if audit is None else audit.count("error")
    return [f"The data check found {errors} error(s): see Data below."] if errors else []


def _mistake_words(outcome: Outcome, shown: int) -> str:
    wrong = outcome.images - outcome.right
    some = f"{shown} of the {wrong} wrongly named images" if shown < wrong else "All wrong answers"
    return (
        f"{some}, those the model is surest of first. They are the ones to look at: a wrong "
        "label in the data, an unusual image, or something that the model has not learned."
    )


def _mistake_rows(judged: Judged, p: Any, wrong: Any, *, show_names: bool) -> list[dict[str, str]]:
    names = judged.class_names
    return [
        {
            "truth": names[judged.labels[row]],
            "said": names[p[row].argmax()],
            "sure": percent(float(p[row].max())),
            "file": judged.images[row].name if show_names else "",
        }
        for row in wrong
    ]


def _graph(classifier: Classifier) -> dict[str, Any]:
    W, alpha, learned = facts.graph(classifier)
    texts = "texts of the classes as the model learned them" if learned else "class names"
    return {
        "words": f"The class graph W compares the {texts}: the nearer two of them lie, the larger "
        "the number. Neighbours in words may be hard to tell apart in images, too. With "
        f"{len(W)} classes, {percent(1 / len(W))} everywhere would mean that none is nearer than "
        "another.",
        "table": graph_heat(
            W,
            classifier.class_names,
            caption=f"W in percent: each row sums to 100. Sharpness alpha = {alpha:g}.",
        ),
    }


def _data(
    manifest: Manifest, judged: Judged, classifier: Classifier, audit: Audit | None
) -> dict[str, Any]:
    counts = facts.part_counts(manifest, classifier.card)
    return {
        "words": "Images of each class in each part of the data, and how many of them the "
        "model learned from.",
        "columns": counts.columns,
        "rows": [{"name": name, "counts": row} for name, row in counts.rows],
        "facts": facts.data_facts(judged, audit),
    }


def _findings(audit: Audit, *, show_names: bool) -> list[dict[str, Any]]:
    return [
        {
            "severity": finding.severity,
            "what": finding.what,
            "next": finding.next,
            "files": [" = ".join(case.files) for case in finding.where[:_CASES]]
            if show_names
            else [],
        }
        for finding in audit.findings
    ]
