"""The same number for each subgroup: values of a column of the table, or of a DICOM header."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ogkd.data.case import Case
from ogkd.errors import ConfigError
from ogkd.evaluation.metrics import FEWEST_UNITS, resampling_units
from ogkd.evaluation.predictions import LabelledPredictions
from ogkd.evaluation.sections import Section, Table, Values, cell
from ogkd.images.dicom import header_values
from ogkd.images.ref import kind_of

_MOST = 20  # values of a column: more are measurements or names, which nobody compares
_WORDS = {"accuracy": "accuracy", "macro/auroc": "mean AUROC of the findings"}


def subgroup_rows(
    judged: LabelledPredictions,
    by: Sequence[str],
    measure: Callable[[LabelledPredictions], dict[str, Any]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """For each name in `by` and each of its values, what `measure` gives, and for all others.

    `measure` gives one metric and its interval. Fewer than ten patients (or images of unknown
    ones) are not measured: the exact interval of nine is up to 65 points wide, and resamples of so
    few look more certain than they are.
    """
    units = resampling_units(len(judged.cases), judged.groups)

    def side(chosen: np.ndarray[Any, Any]) -> dict[str, Any] | None:
        enough = len(np.unique(units[chosen])) >= FEWEST_UNITS
        return measure(judged.without(~chosen)) if enough else None

    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for name, values in _values(judged.cases, by).items():
        rows[name] = {}
        for value in sorted(set(values)):
            members = np.array(values) == value
            sides = [side(members), side(~members)]
            ends = [next(iter(each["intervals"].values())) for each in sides if each]
            rows[name][value] = {
                "images": int(members.sum()),
                "group": sides[0],
                "rest": sides[1],
                "below_rest": len(ends) == 2 and all(ends) and ends[0][1] < ends[1][0],
            }
    return rows


def _values(cases: Sequence[Case], by: Sequence[str]) -> dict[str, list[str]]:
    """Of each name, the value of every case; a case of several files is asked by its first."""

    @cache
    def header(file: Path) -> dict[str, str]:
        return header_values(file, by) if kind_of(file) == "dicom" else {}

    rows = [{**header(case.image.file), **case.columns} for case in cases]
    known, values = sorted(set().union(*rows)), {}
    for name in by:
        key = name if name in known else name.lower()
        values[name] = [row.get(key) or "not stated" for row in rows]
        if key not in known or len(set(values[name])) > _MOST:
            raise ConfigError(
                f"'{name}' is not a column, or a DICOM field, with at most {_MOST} values. There "
                f"are: {', '.join(known) or 'none'}.",
                argument="by",
            )
    return values


def subgroups(result: Values) -> Section | None:
    """A row for each subgroup, and a sentence for each that is served worse than the others."""
    key, lines, worse = "accuracy", [], []
    for name, values in result.get("subgroups", {}).items():
        for value, row in values.items():
            shown = "too few to tell"
            if group := row["group"]:
                key = next(iter(group["intervals"]))
                shown = cell(group, key)
            lines.append((f"{name}: {value}", str(row["images"]), shown))
            if row["below_rest"]:
                worse.append(
                    f"Of {name} '{value}', the {_WORDS[key]} is lower than of all other images: "
                    f"{shown} against {cell(row['rest'], key)}, intervals that do not overlap."
                )
    if not lines:
        return None
    text = (
        f"In percent, in brackets 95 % intervals. Fewer than {FEWEST_UNITS} patients, or images "
        "where patients are not known, are too few to tell."
    )
    table = Table(("subgroup", "images", _WORDS[key]), tuple(lines))
    return Section("Subgroups", (text, *worse), table, key="subgroups", brief=True)
