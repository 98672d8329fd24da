"""The paper's figures from finished runs, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from ogkd.bench.figures import curves, per_dataset
from ogkd.bench.figures.style import Drawn, footer, styled, write
from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.sources import paper
from ogkd.bench.tidy import Summary, changed_settings, prompts_used
from ogkd.errors import ConfigError, did_you_mean

__all__ = ["FIGURES", "FigureInput", "make_figures"]


@dataclass(frozen=True)
class FigureInput:
    """A plan's finished runs, and the labels of the two methods A and B that are compared."""

    plan: Plan
    runs: LabelledRuns
    pair: tuple[str, str] | None  # None: there is only one method

    @cached_property
    def accuracy(self) -> Summary:
        return Summary(self.plan, self.runs)

    @property
    def both(self) -> tuple[str, str]:
        if self.pair is None:
            raise ConfigError(f"It compares two methods, but '{self.plan.name}' has runs of one.")
        return self.pair


FIGURES: Mapping[str, Callable[[FigureInput], Drawn]] = {
    "few-shot": partial(curves.few_shot, average=False),
    "few-shot-average": partial(curves.few_shot, average=True),
    "sweep": curves.sweep,
    "risk-coverage": per_dataset.risk_curves,
    **{name: partial(per_dataset.densities, name=name) for name in per_dataset.DENSITIES},
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
    runs = folder.finished(plan)
    if not runs:
        raise ConfigError(f"Plan '{plan.name}' has no finished runs in {folder.root}.")
    methods = {label: run.spec.method for label, run in runs}
    if pair and (len(set(pair)) < 2 or not methods.keys() >= set(pair)):
        raise ConfigError("Give the labels of two different rows.", argument="pair")
    given = FigureInput(plan, runs, pair or choose_pair(methods))
    words = [f"Prompts: {prompts_used(run for _, run in runs)}"]
    words += [f"Settings: {changed}"] if (changed := changed_settings(plan)) else []
    paths: list[Path] = []
    impossible = []
    for name in dict.fromkeys(FIGURES if names is None else names):
        try:
            with styled():
                for stem, figure in FIGURES[name](given):
                    footer(figure, ". ".join(words))
                    paths += write(figure, out, stem)
        except ConfigError as error:
            impossible.append(f"- {name}: {error}")
    if impossible and (names is not None or not paths):
        reasons = "\n".join(impossible)
        raise ConfigError(f"Plan '{plan.name}' does not allow these figures:\n{reasons}")
    return paths


def choose_pair(methods: Mapping[str, str]) -> tuple[str, str] | None:
    """The paper's method and its baseline if they are there, else the first two labels.

    `methods` gives the method of each label. A row labelled like the method comes first; of others
    the last, which in the paper's ablations has all components.
    """
    rows = list(methods)
    names = [
        max(same, key=lambda label: label.casefold() == wanted)
        for wanted in (paper().method, paper().baseline)
        if (same := [label for label in reversed(rows) if methods[label] == wanted])
    ]
    names = list(dict.fromkeys([*names, *rows]))
    return (names[0], names[1]) if len(names) > 1 else None
