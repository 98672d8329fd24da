"""Accuracy along an axis: shots, prompts of the teacher, gamma, wrong labels.

Averages and bands are those of the tables (tidy.py); here it is decided which datasets and points
a panel shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ogkd.bench.figures.inputs import FigureInput
from ogkd.bench.figures.panels import Curve, Panel, draw_panels
from ogkd.bench.figures.style import Drawn
from ogkd.bench.runs import Plan
from ogkd.bench.tidy import Condition, Seeds, Summary, average_and_spread
from ogkd.errors import ConfigError

Values = Mapping[tuple[str, float | None], Mapping[str, Seeds]]
"""(label, place on the axis; None: the row does not vary along it) -> dataset -> seeds."""

_AXES = {
    "gamma": "Geometry strength γ",
    "budget": "Prompts per class of the teacher, N",
    "flips": "Wrong labels per class",
}


def few_shot(given: FigureInput) -> Drawn:
    """Accuracy against shots, one panel for each dataset."""
    values = _few_shot_values(given)
    names = dict.fromkeys(name for cells in values.values() for name in cells)
    panels = _drawable(
        panel_of(
            name,
            "test",
            {key: {name: cells[name]} for key, cells in values.items() if name in cells},
        )
        for name in names
    )
    yield "few-shot", draw_panels(panels, given, "Shots per class", shots=True)


def few_shot_average(given: FigureInput) -> Drawn:
    """Accuracy against shots, averaged over datasets."""
    panels = _drawable([panel_of("", "test", _few_shot_values(given))])
    yield "few-shot-average", draw_panels(panels, given, "Shots per class", shots=True)


def sweep(given: FigureInput, *, stem: str, axis: str | None) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    found = _axis(given.plan, axis)
    summary = given.accuracy
    panels: list[Panel] = []
    for shots, group in itertools.groupby(summary.conditions, key=lambda mine: mine.shots):
        conditions = list(group)
        words = f"{shots} shot{'s' * (shots > 1)}" if shots else "all images"
        parts = {part for mine in conditions for part in summary.parts(mine)}
        values = {part: _values(summary, conditions, found, part) for part in parts}
        if "test" in parts:
            panels.append(panel_of(words, "test", values["test"]))
        if "base" in parts:
            panels.append(panel_of(f"Base, {words}", "base", values["base"]))
            panels.append(panel_of(f"Novel, {words}", "novel", values["novel"]))
            both = values["base"], values["novel"]
            panels.append(panel_of(f"HM of averages, {words}", "hm", *both))
    panels = _drawable(panels)
    _need_two({x for panel in panels for c in panel.curves if not c.flat for x in c.x}, found)
    yield stem, draw_panels(panels, given, _AXES.get(found, found), gains=found == "budget")


def panel_of(title: str, part: str, *tables: Values) -> Panel:
    """Curves averaged over the datasets that have every point of every curve.

    `tables` is one, or those of base and novel classes for the part "hm". In an unfinished plan,
    a point with less than half as many datasets as the fullest point is left out first.
    """
    cells = {
        key: [table[key] for table in tables]
        for key in tables[0]
        if all(key in table for table in tables)
    }
    names = {key: set.intersection(*map(set, cell)) for key, cell in cells.items()}
    everything = set().union(*names.values())
    fullest = max(map(len, names.values()), default=0)
    shown = [key for key, mine in names.items() if 2 * len(mine) >= fullest]
    kept = sorted(everything.intersection(*(names[key] for key in shown)))
    points: dict[str, list[tuple[float | None, float, float]]] = {}
    for label, place in shown if kept else ():
        values = [[table[name] for name in kept] for table in cells[label, place]]
        points.setdefault(label, []).append((place, *average_and_spread(part, values)))
    curves = [curve for label, mine in points.items() for curve in _curves(label, mine)]
    missing = sorted(everything.difference(kept))
    missing += [
        f"{label} at {place:g}"
        for label, place in names
        if place is not None and (label, place) not in shown
    ]
    return Panel(title, tuple(curves), tuple(kept), tuple(missing))


def _curves(label: str, points: list[tuple[float | None, float, float]]) -> list[Curve]:
    along = sorted((place, mean, std) for place, mean, std in points if place is not None)
    level = [(0.0, mean, std) for place, mean, std in points if place is None]
    curves = []
    for found, flat in ((along, False), (level, True)):
        if found:
            x, mean, std = np.array(found, dtype=np.float64).T
            curves.append(Curve(label, x, mean, std, flat=flat))
    return curves


def _values(
    summary: Summary, conditions: Sequence[Condition], axis: str, part: str
) -> dict[tuple[str, float | None], dict[str, Seeds]]:
    """The finished seeds of a part along an axis, in percent."""
    found: dict[tuple[str, float | None], dict[str, Seeds]] = {}
    for label, condition in itertools.product(summary.labels, conditions):
        cells: dict[str, Seeds] = {}
        for name in summary.datasets:
            if seeds := summary.seeds(label, name, condition, part):
                cells[name] = {seed: summary.metric.scale * v for seed, v in seeds.items()}
        if cells:
            place = _place(condition, axis)
            if (label, place) in found:
                raise ConfigError(
                    f"'{label}' has runs under several conditions with {axis} = {place}, and the "
                    f"figure has one place for them. Make a grid that varies {axis} only."
                )
            found[label, place] = cells
    return found


def _place(condition: Condition, axis: str) -> float | None:
    value = {"shots": condition.shots, "flips": condition.flips}.get(axis, condition.value)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
    return None if value is None else float(value)


def _axis(plan: Plan, wanted: str | None) -> str:
    other = plan.sweep is not None and plan.sweep not in _AXES
    if plan.sweep is not None and (plan.sweep == wanted or (wanted is None and other)):
        return plan.sweep
    swept = f"sweeps {plan.sweep}" if plan.sweep else "sweeps nothing"
    needed = wanted or f"a setting other than {', '.join(_AXES)}"
    raise ConfigError(f"It needs a plan that sweeps {needed}, but '{plan.name}' {swept}.")


def _few_shot_values(given: FigureInput) -> Values:
    plan = given.plan
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ only in shots, but '{plan.name}' sweeps {plan.sweep}."
        )
    values = _values(given.accuracy, given.accuracy.conditions, "shots", "test")
    _need_two({place for _, place in values if place is not None}, "shots")
    return values


def _need_two(places: set[float], axis: str) -> None:
    if len(places) < 2:
        found = ", ".join(f"{place:g}" for place in places) or "none"
        raise ConfigError(
            f"A curve needs finished runs with at least two values of {axis}, but there are only "
            f"runs with {found}."
        )


def _drawable(panels: Iterable[Panel]) -> list[Panel]:
    found = [panel for panel in panels if panel.curves]
    if not found:
        raise ConfigError(
            "No dataset has finished runs at every point of every curve. Finish the plan first."
        )
    return found
