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
    Console().print(table)


def print_facts(facts: Mapping[str, Any]) -> None:
    """Print what is known of something, a line for each fact that is."""
    for name, value in facts.items():
        if value:
            typer.echo(f"{name:10} {value}")


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
            between = _between(result["intervals"][key])
            yield f"{METRICS[key].words:20} {_share(result[key]):>7} %  {between}".rstrip()
    for part in (_classes, _confusion, _screening, _selective, _calibration, _abstain, _sets):
        yield from part(result)


def _classes(result: dict[str, Any]) -> Iterator[str]:
    yield from _title("Each class against all others (%)")
    columns = ("recall", "specificity", "precision", "f1", "auroc")
    head = ["class", "images", "recall", "specificity", "precision", "F1", "AUROC"]
    rows = [
        [
            name,
            str(row["images"]),
            *[f"{_share(row[key])} {_between(row['intervals'][key])}".rstrip() for key in columns],
        ]
        for name, row in result["per_class"].items()
    ]
    yield from _table(head, rows)


def _confusion(result: dict[str, Any]) -> Iterator[str]:
    names = result["class_names"]
    if len(names) > _MOST_CLASSES:
        return
    yield from _title("Confusion matrix (rows: true class, columns: predicted class)")
    letters = [chr(ord("A") + number) for number in range(len(names))]
    labels = [f"{letter} {name}" for letter, name in zip(letters, names, strict=True)]
    counts = [[str(count) for count in row] for row in result["confusion"]]
    rows = [[label, *row] for label, row in zip(labels, counts, strict=True)]
    yield from _table(["", *letters], rows)


def _screening(result: dict[str, Any]) -> Iterator[str]:
    found = result["screening"]
    if found is None:
        return
    yield from _title(f"Disease against normal ({', '.join(found['normal'])})")
    ill, well = found["diseased_images"], found["normal_images"]
    missed, alarms = found["missed"], found["false_positives"]
    notes = {
        "sensitivity": f"{missed} of {ill} diseased images are predicted as normal",
        "specificity": f"{alarms} of {well} normal images are predicted as diseased",
        "auroc": "with 1 - p(normal) as the score",
    }
    for key, note in notes.items():
        name = "AUROC" if key == "auroc" else key
        between = _between(found["intervals"][key])
        value = f"{_share(found[key])} % {between}".rstrip()
        yield f"{name:20} {value}  {note}"


def _selective(result: dict[str, Any]) -> Iterator[str]:
    found = result["selective"]
    yield from _title("If the least certain images were referred to a specialist")
    kept = found["risk_at_coverage"]
    yield "images kept      " + "".join(f"{100 * float(share):7.0f} %" for share in kept)
    yield "wrong among kept " + "".join(f"{100 * risk:7.1f} %" for risk in kept.values())
    yield (
        f"AURC {found['aurc']:.4f}, E-AURC {found['e_aurc']:.4f}, AUGRC {found['augrc']:.4f} "
        "(0 is best)"
    )


def _calibration(result: dict[str, Any]) -> Iterator[str]:
    found = result["calibration"]
    scores = {"uncalibrated": result}
    if found is None:
        yield from _title("Probabilities (not calibrated: see `ogkd calibrate`)")
    else:
        yield from _title(
            f"Probabilities (calibrated on {found['images']} images, temperature "
            f"{found['temperature']:.3f})"
        )
        scores = {"before": found["before"], "after": found["after"]}
    head = ["", "ECE (%)", "Brier", "NLL"]
    rows = [
        [name, _share(row["ece"]), f"{row['brier']:.4f}", f"{row['nll']:.4f}"]
        for name, row in scores.items()
    ]
    yield from _table(head, rows)


def _abstain(result: dict[str, Any]) -> Iterator[str]:
    if not result["abstain"]:
        return
    yield from _title("Thresholds that limit the errors among kept images (90 % confidence)")
    rows = []
    for row in result["abstain"]:
        texts = ["none", "", ""]
        if "threshold" in row:
            kept = [_share(row["coverage"]), _share(row["risk"])]
            texts = [f"{row['threshold']:.4f}", *kept]
        rows.append([f"{100 * row['max_risk']:g} %", *texts])
    yield from _table(["at most", "threshold", "kept here (%)", "wrong among them (%)"], rows)
    if notes := [row["note"] for row in result["abstain"] if "note" in row]:
        yield notes[-1]


def _sets(result: dict[str, Any]) -> Iterator[str]:
    if not result["sets"]:
        return
    yield from _title("Conformal sets that contain the true class (empty: no class fits)")
    rows = []
    for row in result["sets"]:
        texts = ["too few calibration images", "", "", ""]
        if "coverage" in row:
            held = f"{_share(row['coverage'])} {_between(row['interval'])}"
            shares = [_share(row["single"]), _share(row["empty"])]
            texts = [held, f"{row['mean_size']:.2f}", *shares]
        rows.append([row["kind"].upper(), f"{100 * row['wanted']:g} %", *texts])
    head = ["kind", "promised", "contain it (%)", "mean size", "single (%)", "empty (%)"]
    yield from _table(head, rows)


def _title(text: str) -> Iterator[str]:
    yield ""
    yield text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first = f"{row[0]:{widths[0]}}"
        cells = [f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True)]
        yield "  ".join([first, *cells]).rstrip()


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def _between(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None else f"[{100 * bounds[0]:.0f}-{100 * bounds[1]:.0f}]"
