"""The paper's figures from finished runs, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ogkd.bench.figures import curves, per_dataset
from ogkd.bench.figures.inputs import FigureInput, choose_pair
from ogkd.bench.figures.style import Drawn, footer, styled, write
from ogkd.bench.runs import Plan, RunsFolder
from ogkd.bench.tidy import changed_settings, prompts_used
from ogkd.errors import ConfigError, did_you_mean

__all__ = ["FIGURES", "make_figures"]

FIGURES: Mapping[str, Callable[[FigureInput], Drawn]] = {
    "few-shot": partial(curves.few_shot, average=False),
    "few-shot-average": partial(curves.few_shot, average=True),
    "risk-coverage": per_dataset.risk_curves,
    "wins": partial(per_dataset.wins_and_losses, losses=False),
    "losses": partial(per_dataset.wins_and_losses, losses=True),
    "disease-mass": partial(per_dataset.disease, without_truth=False),
    "disease-mass-other": partial(per_dataset.disease, without_truth=True),
    "budget": partial(curves.sweep, stem="budget", axis="budget"),
    "gamma": partial(curves.sweep, stem="gamma", axis="gamma"),
    "noise": partial(curves.sweep, stem="noise", axis="flips"),
    "sweep": partial(curves.sweep, stem="sweep", axis=None),
    "graph": per_dataset.class_graphs,
}


def make_figures(
    folder: RunsFolder,
    plan: Plan,
    out: Path,
    *,
    names: Sequence[str] | None = None,
    pair: tuple[str, str] | None = None,
) -> list[Path]:
    """Write the figures that the plan's finished runs allow, and return their paths.

    `names` chooses among FIGURES; if one of them is impossible, the others are written and a
    ConfigError says what is missing. `pair` is the labels of the two methods to compare; by
    default the paper's method and its baseline, or the first two rows.
    """
    for name in names or ():
        if name not in FIGURES:
            hint = did_you_mean(name, FIGURES)
            raise ConfigError(f"Unknown figure '{name}'.{hint}", argument="names")
    runs = folder.finished(plan, predictions=True)
    if not runs:
        raise ConfigError(f"Plan '{plan.name}' has no finished runs in {folder.root}.")
    methods = {label: run.spec.method for label, run in runs}
    for label in pair or ():
        if label not in methods or len(set(pair or ())) < 2:
            hint = did_you_mean(label, methods)
            raise ConfigError(f"Give labels of two different rows.{hint}", argument="pair")
    chosen = pair or choose_pair(methods)
    given = FigureInput(plan, runs, chosen, pair_only=pair is not None)
    made_with = f"Prompts: {prompts_used(run for _, run in runs)}"
    if changed := changed_settings(plan):
        made_with += f". Changed settings: {changed}"
    paths: list[Path] = []
    impossible: dict[str, str] = {}
    for name in dict.fromkeys(FIGURES if names is None else names):
        try:
            with styled():
                for stem, figure in FIGURES[name](given):
                    footer(figure, made_with)
                    paths += write(figure, out, stem)
        except ConfigError as error:
            impossible[name] = str(error)
    if impossible and (names is not None or not paths):
        reasons = "\n".join(f"- {name}: {why}" for name, why in impossible.items())
        also = f" {len(paths)} files of other figures were written to {out}." if paths else ""
        raise ConfigError(f"Plan '{plan.name}' does not allow these figures:\n{reasons}{also}")
    return paths
