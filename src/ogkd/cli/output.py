"""What commands print or write: notes, JSON, tables, CSV, and the lines of `ogkd evaluate`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import typer

from ogkd.files import write_atomically

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates cells that start with these
_MOST_CLASSES = 12  # a larger confusion matrix is only written to --out
_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa")


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
        write_atomically(path) as aside,
        # A file name that is not valid text is written as the bytes it consists of.
        aside.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        yield file


def harmless(text: str) -> str:
    """Quote a cell that a spreadsheet would evaluate as a formula."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def harmless_path(path: object) -> str:
    """Write a path so that it still opens the same file but is never a formula."""
    text = str(path)
    return f"./{text}" if text.startswith(_FORMULA) else text


def evaluation_lines(result: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that `ogkd evaluate` prints."""
    from ogkd.evaluation.names import METRICS

    groups, how = result["groups"], result["bootstrap"]
    yield f"{result['images']} images" + (f" of {groups} patients or groups" if groups else "")
    if how["resamples"]:
        by = "patients or groups" if how["by"] == "group" else "images"
        level = f"{100 * how['level']:g} % intervals"
        yield f"in brackets: {level}, {how['resamples']} resamples of {by}"
    yield ""
    for key in _SUMMARY:
        if key in result:
            yield f"{METRICS[key].words:20} {_share(result, key, ' %  ', 7)}"
    for part in (_classes, _confusion, _screening, _selective, _calibration, _abstain, _sets):
        yield from part(result)


def _classes(result: dict[str, Any]) -> Iterator[str]:
    yield "\nEach class against all others (%)"
    head = ["class", "images", "recall", "specificity", "precision", "F1", "AUROC"]
    yield from _table(
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
    yield from _table(
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
        yield f"{name:20} {_share(found, name.lower(), ' % ')}  {note}"


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
    else:
        images, temperature = found["images"], f"temperature {found['temperature']:.3f}"
        how = f"calibrated on {images} images, {temperature}"
        scores = {"before": found["before"], "after": found["after"]}
    yield f"\nProbabilities ({how})"
    rows = [
        [name, f"{100 * row['ece']:.1f}", f"{row['brier']:.4f}", f"{row['nll']:.4f}"]
        for name, row in scores.items()
    ]
    yield from _table(["", "ECE (%)", "Brier", "NLL"], rows)


def _abstain(result: dict[str, Any]) -> Iterator[str]:
    if not result["abstain"]:
        return
    yield "\nThresholds that limit the errors among kept images (90 % confidence)"
    rows = []
    for row in result["abstain"]:
        texts = ["none", "", ""]
        if "threshold" in row:
            texts = [f"{row['threshold']:.4f}", _share(row, "coverage"), _share(row, "risk")]
        rows.append([f"{100 * row['max_risk']:g} %", *texts])
    yield from _table(["at most", "threshold", "kept here (%)", "wrong among them (%)"], rows)
    if notes := [row["note"] for row in result["abstain"] if "note" in row]:
        yield notes[-1]


def _sets(result: dict[str, Any]) -> Iterator[str]:
    if not result["sets"]:
        return
    yield "\nConformal sets that contain the true class (empty: no class fits)"
    rows = []
    for row in result["sets"]:
        texts = ["too few calibration images", "", "", ""]
        if "coverage" in row:
            held = _share({**row, "intervals": {"coverage": row["interval"]}}, "coverage")
            size = f"{row['mean_size']:.2f}"
            texts = [held, size, _share(row, "single"), _share(row, "empty")]
        rows.append([row["kind"].upper(), f"{100 * row['wanted']:g} %", *texts])
    head = ["kind", "promised", "contain it (%)", "mean size", "single (%)", "empty (%)"]
    yield from _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    widths = [max(len(str(cell)) for cell in column) for column in zip(head, *rows, strict=True)]
    for first, *others in (head, *rows):
        cells = [f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True)]
        yield "  ".join([f"{first:{widths[0]}}", *cells]).rstrip()


def _share(values: Mapping[str, Any], key: str, between: str = " ", width: int = 0) -> str:
    """A share in percent, with its interval if there is one."""
    value, bounds = values[key], values.get("intervals", {}).get(key)
    text = "-" if value is None else f"{100 * value:.1f}"
    limits = "" if bounds is None else f"[{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}]"
    return f"{text:>{width}}{between}{limits}".rstrip()
