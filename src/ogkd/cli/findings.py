"""What commands print and write about a model of several findings."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ogkd.cli.output import harmless, harmless_path, width, write_csv
from ogkd.notebook import text_table

if TYPE_CHECKING:
    from ogkd.evaluation import LabelledPredictions
    from ogkd.model.calibration_file import CalibrationFile
    from ogkd.model.findings import FindingsCalibration


def finding_lines(result: dict[str, Any], *, everything: bool = False) -> Iterator[str]:
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


def calibration_lines(names: Sequence[str], found: FindingsCalibration) -> Iterator[str]:
    """The lines that `ogkd calibrate` prints: images of each finding, and its limits."""
    yield f"Calibrated on {found.images} images; two thirds of them give the limits."
    rows = [
        [name, len(one.present), len(one.absent), f"{100 * limit.no_below:.1f}", f"{above:.1f}"]
        for name, one, limit in zip(names, found.scores, found.limits(), strict=True)
        for above in (100 * limit.yes_above,)
    ]
    yield from text_table(["finding", "with it", "without", "no below (%)", "yes above (%)"], rows)
    if found.sensitivity is not None:
        yield (
            f"With {100 * found.confidence:g} % confidence, at most "
            f"{100 * (1 - found.sensitivity):g} % of the images with a finding are answered no."
        )


def write_finding_rows(
    file: Path,
    judged: LabelledPredictions,
    calibration: CalibrationFile | None,
    *,
    paths: bool,
    excel: bool,
) -> None:
    """Write a row per image: hash, path (if asked for), and for each finding truth and p."""
    rows = judged.probabilities(calibration)
    with write_csv(file, excel=excel) as opened:
        table = csv.writer(opened, lineterminator="\n")
        each = [column for name in judged.class_names for column in (name, f"{name} probability")]
        table.writerow([*(["image", "path"] if paths else ["image"]), *map(harmless, each)])
        for key, path, labels, row in zip(
            judged.keys, judged.images, judged.labels, rows, strict=True
        ):
            where = [key, harmless_path(path)] if paths else [key]
            pairs = zip(labels.tolist(), row.tolist(), strict=True)
            cells = [c for said, p in pairs for c in ("" if said < 0 else said, f"{p:.6f}")]
            table.writerow([*where, *cells])
