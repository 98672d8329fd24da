"""Accuracy along an axis: shots, prompts of the teacher, gamma, wrong labels."""

from __future__ import annotations

from collections.abc import Iterable

from ogkd.bench.figures.averages import (
    Material,
    Panel,
    Runs,
    Values,
    average,
    gather,
    harmonic,
)
from ogkd.bench.figures.panels import draw_panels
from ogkd.bench.figures.style import Drawn
from ogkd.bench.results import Plan, Run
from ogkd.bench.spec import RunSpec
from ogkd.errors import ConfigError

__all__ = ["few_shot", "few_shot_average", "sweep"]

_AXES = {
    "gamma": "Geometry strength γ",
    "budget": "Prompts per class of the teacher, N",
    "flips": "Wrong labels per class",
}


def few_shot(material: Material) -> Drawn:
    """Accuracy against shots, one panel for each dataset."""
    mine = _few_shot_runs(material)
    names = dict.fromkeys(run.spec.dataset for _, run in mine)
    panels = _drawable(
        average(_accuracy([(label, run) for label, run in mine if run.spec.dataset == name]), name)
        for name in names
    )
    yield "few-shot", draw_panels(panels, material, "Shots per class", shots=True)


def few_shot_average(material: Material) -> Drawn:
    """Accuracy against shots, averaged over datasets."""
    panels = _drawable([average(_accuracy(_few_shot_runs(material)), "")])
    yield "few-shot-average", draw_panels(panels, material, "Shots per class", shots=True)


def sweep(material: Material, *, stem: str, axis: str | None) -> Drawn:
    """Accuracy against the swept setting, averaged over datasets.

    Few-shot: a panel for each number of shots. Base-to-novel: base, novel and HM of averages.
    """
    found = _axis(material.plan, axis)
    groups: dict[tuple[str, int], list[tuple[str, Run]]] = {}
    for label, run in material.runs:
        groups.setdefault((run.spec.protocol, run.spec.shots or 0), []).append((label, run))
    panels: list[Panel] = []
    for (protocol, shots), mine in sorted(groups.items(), key=lambda group: group[0]):
        words = f"{shots} shot{'s' * (shots > 1)}" if shots else "all images"
        if protocol == "few-shot":
            panels.append(average(_accuracy(mine, found), words))
            continue
        base, novel = (_accuracy(mine, found, part) for part in ("base", "novel"))
        panels += [average(base, f"Base, {words}"), average(novel, f"Novel, {words}")]
        panels.append(harmonic(base, novel, f"HM of averages, {words}"))
    panels = _drawable(panels)
    _need_two({x for panel in panels for c in panel.curves if not c.flat for x in c.x}, found)
    yield stem, draw_panels(panels, material, _AXES.get(found, found), gains=found == "budget")


def _axis(plan: Plan, wanted: str | None) -> str:
    other = plan.sweep is not None and plan.sweep not in _AXES
    if plan.sweep is not None and (plan.sweep == wanted or (wanted is None and other)):
        return plan.sweep
    swept = f"sweeps {plan.sweep}" if plan.sweep else "sweeps nothing"
    needed = wanted or f"a setting other than {', '.join(_AXES)}"
    raise ConfigError(f"It needs a plan that sweeps {needed}, but '{plan.name}' {swept}.")


def _few_shot_runs(material: Material) -> Runs:
    plan = material.plan
    if plan.sweep is not None:
        raise ConfigError(
            f"It needs runs that differ in shots alone, but '{plan.name}' sweeps {plan.sweep}."
        )
    mine = [(label, run) for label, run in material.runs if run.spec.protocol == "few-shot"]
    _need_two({run.spec.shots for _, run in mine if run.spec.shots}, "shots")
    return mine


def _need_two(places: set[int] | set[float], axis: str) -> None:
    if len(places) < 2:
        found = ", ".join(f"{place:g}" for place in places) or "none"
        raise ConfigError(
            f"A curve needs finished runs with at least two values of {axis}, but there are runs "
            f"with {found} alone."
        )


def _accuracy(runs: Runs, axis: str = "shots", part: str = "test") -> Values:
    def place(spec: RunSpec) -> float | None:
        inside = axis in RunSpec.model_fields
        value = getattr(spec, axis) if inside else spec.settings.get(axis)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"A curve needs numbers along its axis, but {axis} is '{value}'.")
        return None if value is None else float(value)

    return gather(runs, place, lambda run: 100 * run.metric("accuracy", part))


def _drawable(panels: Iterable[Panel]) -> list[Panel]:
    found = [panel for panel in panels if panel.curves]
    if not found:
        raise ConfigError(
            "No dataset has finished runs at every point of every curve. "
            "Finish the plan with: ogkd bench run."
        )
    return found
