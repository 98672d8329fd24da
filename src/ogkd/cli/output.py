"""What commands print or write: notes, JSON, tables, CSV, and the lines of `ogkd evaluate`."""

from __future__ import annotations

import contextlib
import json
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from ogkd.cells import text_table
from ogkd.errors import pluralize
from ogkd.files import write_atomically

if TYPE_CHECKING:
    from ogkd.model.calibration import Calibration
    from ogkd.model.classifier import Classifier

_MOST_CLASSES = 12  # a larger confusion matrix is only written to --out
_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")
_PREDICTIVE = {"ppv": "right if finding", "npv": "right if normal", "accuracy": "right in all"}


def say(note: str) -> None:
    """Print a line on standard error, so that it is kept out of results."""
    typer.echo(note, err=True)


def print_json(value: Any, *, ascii: bool = False) -> None:
    """Print JSON; in ASCII if it may have file names, which need not be valid text."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=ascii))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[Any]], *, numbers: Sequence[str] = ()
) -> None:
    """Print a table without borders; the columns `numbers` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        right = heading in numbers
        table.add_column(heading, overflow="fold", justify="right" if right else "left")
    for row in rows:
        table.add_row(*map(str, row))
    Console(markup=False, emoji=False).print(table)  # names of classes are not markup


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print a line for each name with a value; values are aligned."""
    width = max(map(len, facts))
    for name, value in facts.items():
        if value:
            typer.echo(f"{name:{width}}  {value}")


@contextlib.contextmanager
def write_csv(path: Path) -> Iterator[TextIO]:
    """Open a text file that appears at `path` once everything is written."""
    with (
        write_atomically(path, suffixes=(".csv", ".tsv", ".jsonl", ".txt")) as aside,
        # A file name that is not valid text is written as the bytes it consists of.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


def evaluation_lines(result: dict[str, Any], *, everything: bool = False) -> Iterator[str]:
    """Yield the lines that `ogkd evaluate` prints: the verdict, the classes, and all the rest."""
    from ogkd.evaluation.names import in_units

    lines = _EVALUATED[result.get("asks", "classes")](result, everything=everything)
    return (in_units(line, result) for line in lines)


def _class_lines(result: dict[str, Any], *, everything: bool = False) -> Iterator[str]:
    yield from textwrap.wrap(result["verdict"]["text"], width(), break_on_hyphens=False)
    if found := result["calibration"]:
        yield from textwrap.wrap(found["text"], width(), break_on_hyphens=False)
    yield ""
    yield from _found(result)
    if not everything:
        yield "\nMore: --all (every table), --report FILE.html (a page), --json (all numbers)."
        return
    from ogkd.evaluation.names import METRICS

    groups, how = result["groups"], result["bootstrap"]
    yield "\nFor statisticians"
    yield pluralize(result["images"], "image") + (
        f" of {groups} patients or groups" if groups else ""
    )
    if how["resamples"]:
        by = "patients or groups" if how["by"] == "group" else "images"
        yield f"in brackets: {100 * how['level']:g} % intervals by {by}"
    yield ""
    for key in _SUMMARY:
        if key in result:
            yield f"{METRICS[key].words:20} {_share(result, key, ' %  ', 7)}"
    for part in (_classes, _confusion, _screening, _selective, _calibration, _abstain, _sets):
        yield from part(result)


def _units(result: dict[str, Any]) -> str:
    return f"{result.get('unit', 'image')}s"


def _found(result: dict[str, Any]) -> Iterator[str]:
    """For each class: how many images, how many of them are found, how often it is right."""
    rows = []
    for label, (name, row) in enumerate(result["per_class"].items()):
        said = sum(counts[label] for counts in result["confusion"])
        hits = result["confusion"][label][label]
        rows.append(
            [
                name,
                row["images"],
                f"{hits} ({100 * row['recall']:.0f} %)" if row["images"] else "-",
                f"{hits} of {said} ({100 * row['precision']:.0f} %)" if said else "-",
            ]
        )
    yield from text_table(["class", _units(result), "found", "right when predicted"], rows)


def _classes(result: dict[str, Any]) -> Iterator[str]:
    yield "\nEach class against all others (%)"
    head = ["class", _units(result), "recall", "specificity", "precision", "F1", "AUROC"]
    yield from text_table(
        head,
        [
            [name, row["images"], *(_share(row, column.lower()) for column in head[2:])]
            for name, row in result["per_class"].items()
        ],
    )


def _confusion(result: dict[str, Any]) -> Iterator[str]:
    names = result["class_names"]
    if len(names) > _MOST_CLASSES:
        return
    yield "\nConfusion matrix (rows: true class, columns: predicted class)"
    letters = [chr(ord("A") + number) for number in range(len(names))]
    rows = zip(letters, names, result["confusion"], strict=True)
    yield from text_table(
        ["", *letters], [[f"{letter} {name}", *counts] for letter, name, counts in rows]
    )


def _screening(result: dict[str, Any]) -> Iterator[str]:
    found = result["screening"]
    if found is None:
        return
    yield f"\nDisease against normal ({', '.join(found['normal'])})"
    ill, well = found["diseased_images"], found["normal_images"]
    missed, alarms = found["missed"], found["false_positives"]
    notes = {
        "sensitivity": f"{missed} of {ill} diseased images are predicted as normal",
        "specificity": f"{alarms} of {well} normal images are predicted as diseased",
        "AUROC": "with 1 - p(normal) as the score",
    }
    for name, note in notes.items():
        yield f"{name:12} {_share(found, name.lower(), ' % ')}  {note}"
    yield "\nIf findings were as frequent as this (%)"
    yield from text_table(
        ["findings", *_PREDICTIVE.values()],
        [
            [f"{100 * row['prevalence']:g}", *(_share(row, key) for key in _PREDICTIVE)]
            for row in found["at_prevalence"]
        ],
    )


def _selective(result: dict[str, Any]) -> Iterator[str]:
    found = result["selective"]
    kept = found["risk_at_coverage"]
    yield "\nIf the least certain images were referred to a specialist"
    yield "images kept      " + "".join(f"{100 * float(share):7.0f} %" for share in kept)
    yield "wrong among kept " + "".join(f"{100 * risk:7.1f} %" for risk in kept.values())
    areas = {"AURC": "aurc", "E-AURC": "e_aurc", "AUGRC": "augrc"}
    shown = ", ".join(f"{name} {found[key]:.4f}" for name, key in areas.items())
    yield f"{shown} (0 is best)"


def _calibration(result: dict[str, Any]) -> Iterator[str]:
    found = result["calibration"]
    if found is None:
        how, scores = "not calibrated: see `ogkd calibrate`", {"uncalibrated": result}
    elif not found["applied"]:
        how, scores = f"calibrated on {found['images']} images, not rescaled", {"": result}
    else:
        images, temperature = found["images"], f"temperature {found['temperature']:.3f}"
        how = f"calibrated on {images} images, {temperature}"
        scores = {"before": found["before"], "after": found["after"]}
    yield f"\nProbabilities ({how})"
    rows = [
        [name, f"{100 * row['ece']:.1f}", f"{row['brier']:.4f}", f"{row['nll']:.4f}"]
        for name, row in scores.items()
    ]
    yield from text_table(["", "ECE (%)", "Brier", "NLL"], rows)


def _abstain(result: dict[str, Any]) -> Iterator[str]:
    if not result["abstain"]:
        return
    yield "\nThresholds that limit the errors among kept images (90 % confidence)"
    rows = [
        [
            f"{100 * row['max_risk']:g} %",
            f"{row['threshold']:.4f}",
            _share(row, "coverage"),
            _share(row, "risk"),
        ]
        for row in result["abstain"]
        if "threshold" in row
    ]
    if rows:
        yield from text_table(
            ["at most", "threshold", "kept here (%)", "wrong among them (%)"], rows
        )
    if notes := [row for row in result["abstain"] if "note" in row]:
        limits = ", ".join(f"{100 * row['max_risk']:g} %" for row in notes)
        yield from textwrap.wrap(f"None for at most {limits}. {notes[-1]['note']}", width())


def _sets(result: dict[str, Any]) -> Iterator[str]:
    if not result["sets"]:
        return
    yield "\nConformal sets that contain the true class (empty: no class fits)"
    rows = []
    for row in result["sets"]:
        if "coverage" in row:
            held = _share({**row, "intervals": {"coverage": row["interval"]}}, "coverage")
            texts = [held, f"{row['mean_size']:.2f}", _share(row, "single"), _share(row, "empty")]
            kind = "by class" if row["kind"] == "support" else row["kind"].upper()
            rows.append([kind, f"{100 * row['wanted']:g} %", *texts])
    if rows:
        head = ["kind", "guaranteed", "contain it (%)", "mean size", "single (%)", "empty (%)"]
        yield from text_table(head, rows)
    few = dict.fromkeys(f"{100 * row['wanted']:g} %" for row in result["sets"] if "note" in row)
    if few:
        of = "images per class" if row["kind"] == "support" else "calibration images"
        yield f"None with {' or '.join(few)}: too few {of}."


def _finding_lines(result: dict[str, Any], *, everything: bool = False) -> Iterator[str]:
    """The lines that `ogkd evaluate` prints: the verdict, and what is known of each finding."""
    from ogkd.evaluation.show import answer_rows, finding_rows, limit_rows

    yield from textwrap.wrap(result["verdict"]["text"], width(), break_on_hyphens=False)
    yield ""
    how = result["bootstrap"]
    by = "patients or groups" if how["by"] == "group" else "images"
    sure = f", in brackets {100 * how['level']:g} % intervals by {by}"
    yield f"In percent{sure if how['resamples'] else ''}"
    yield from text_table(*finding_rows(result))
    yield ""
    kept = "as guaranteed by the calibration" if result["calibrated"] else "yes from 50 % on"
    yield f"Answers for images with a finding and without it ({kept})"
    yield from text_table(*answer_rows(result))
    if not everything:
        yield "\nMore: --all (limits), --report FILE.html (a page), --json (all numbers)."
        return
    yield "\nLimits between which the answer is unsure"
    yield from text_table(*limit_rows(result))


def calibration_lines(classifier: Classifier, calibration: Calibration) -> Iterator[str]:
    """The lines that `ogkd calibrate` prints."""
    yield from _CALIBRATED[classifier.task.kind](classifier, calibration)


def _temperature_lines(classifier: Classifier, calibration: Calibration) -> Iterator[str]:
    [question] = calibration.questions
    held_out = len(question.confidences)
    yield (
        f"Calibrated on {pluralize(calibration.cases, classifier.card.grouping.unit)}: "
        f"{calibration.cases - held_out} for the temperature, {held_out} for the sets and "
        "thresholds."
    )
    change = "less" if question.temperature > 1 else "more"
    yield (
        f"temperature {question.temperature:.3f}: the model is now {change} confident than before."
        if question.applied
        else f"temperature 1: {question.reason}"
    )
    yield f"accuracy on those {held_out}: {100 * sum(question.correct) / held_out:.1f} %"


def _limit_lines(classifier: Classifier, calibration: Calibration) -> Iterator[str]:
    """Images of each finding, and the limits of its answers."""
    task = classifier.task
    yield f"Calibrated on {calibration.cases} images; two thirds of them give the limits."
    rows = []
    limits = calibration.limits()
    for name, question, limit in zip(task.names, calibration.questions, limits, strict=True):
        absent, present = question.scores
        shown = [f"{100 * limit[1]:.1f}", f"{100 * (1 - limit[0]):.1f}"]
        rows.append([name, len(present), len(absent), *shown])
    yield from text_table(["finding", "with it", "without", "no below (%)", "yes above (%)"], rows)
    if calibration.sensitivity is not None:
        yield (
            f"With {100 * calibration.confidence:g} % confidence, at most "
            f"{100 * (1 - calibration.sensitivity):g} % of the images with a finding are answered "
            "no."
        )


_EVALUATED = {"classes": _class_lines, "findings": _finding_lines}
_CALIBRATED = {"classes": _temperature_lines, "findings": _limit_lines}


def width() -> int:
    """Columns of the terminal; 80 where there is none."""
    return max(40, shutil.get_terminal_size((80, 24)).columns)


def _share(values: Mapping[str, Any], key: str, between: str = " ", width: int = 0) -> str:
    """A share in percent, with its interval if there is one."""
    value, bounds = values[key], values.get("intervals", {}).get(key)
    text = "-" if value is None else f"{100 * value:.1f}"
    limits = ""
    if bounds is not None:
        low, high = (100 * bound for bound in bounds)
        # 99.8 is not in [100-100]: where whole percents exclude the value, they are too coarse
        coarse = value is not None and not round(low) <= 100 * value <= round(high)
        limits = f"[{low:.{coarse:d}f}-{high:.{coarse:d}f}]"
    return f"{text:>{width}}{between}{limits}".rstrip()
