"""The paper's figures from finished runs, as SVG and PNG (docs/bench-figures.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from ogkd.bench.figures import curves, densities, graph, selective
from ogkd.bench.figures.averages import Material
from ogkd.bench.figures.pairing import choose_pair
from ogkd.bench.figures.style import Drawn, styled, write
from ogkd.bench.results import Plan, RunsFolder
from ogkd.errors import ConfigError, did_you_mean

__all__ = ["FIGURES", "make_figures"]

FIGURES: Mapping[str, Callable[[Material], Drawn]] = {
    "few-shot": curves.few_shot,
    "few-shot-average": curves.few_shot_average,
    "risk-coverage": selective.risk_curves,
    "wins": partial(densities.wins_and_losses, losses=False),
    "losses": partial(densities.wins_and_losses, losses=True),
    "disease-mass": partial(densities.disease, without_truth=False),
    "disease-mass-other": partial(densities.disease, without_truth=True),
    "budget": partial(curves.sweep, stem="budget", axis="budget"),
    "gamma": partial(curves.sweep, stem="gamma", axis="gamma"),
    "noise": partial(curves.sweep, stem="noise", axis="flips"),
    "sweep": partial(curves.sweep, stem="sweep", axis=None),
    "graph": graph.class_graphs,
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

    `names` asks for some of FIGURES: where one of them is impossible, the others are written
    and a ConfigError says what is missing. `pair` holds the labels of the two methods that are
    compared (default: ogkd and biomedcoop, or the first two).
    """
    for name in names or ():
        if name not in FIGURES:
            raise ConfigError(f"Unknown figure '{name}'.{_known(name, FIGURES)}")
    runs = folder.finished(plan)
    if not runs:
        raise ConfigError(
            f"Plan '{plan.name}' has no finished runs in {folder.root}. "
            "Run it with: ogkd bench run."
        )
    methods = {label: run.spec.method for label, run in runs}
    chosen = choose_pair(methods) if pair is None else _labels(pair, methods)
    material = Material(plan, runs, chosen)
    paths: list[Path] = []
    impossible: dict[str, str] = {}
    stems: set[str] = set()
    for name in dict.fromkeys(FIGURES if names is None else names):
        try:
            with styled():
                for stem, figure in FIGURES[name](material):
                    paths += write(figure, out, _free(stem, stems))
        except ConfigError as error:
            impossible[name] = str(error)
    if impossible and (names is not None or not paths):
        reasons = "\n".join(f"- {name}: {why}" for name, why in impossible.items())
        also = f" {len(paths)} files of other figures were written to {out}." if paths else ""
        raise ConfigError(f"Plan '{plan.name}' does not allow these figures:\n{reasons}{also}")
    return paths


def _labels(pair: tuple[str, str], methods: Mapping[str, str]) -> tuple[str, str]:
    """The plan's own spelling of two labels."""
    found = []
    for wanted in pair:
        same = [label for label in methods if label.casefold() == wanted.casefold()]
        if not same:
            raise ConfigError(f"No finished run is called '{wanted}'.{_known(wanted, methods)}")
        found.append(wanted if wanted in same else same[0])
    if found[0] == found[1]:
        raise ConfigError(f"'{found[0]}' cannot be compared with itself. Give two labels.")
    return found[0], found[1]


def _known(name: str, known: Iterable[str]) -> str:
    return f"{did_you_mean(name, known)} Known: {', '.join(known)}."


def _free(stem: str, taken: set[str]) -> str:
    """Two datasets may have the same name once it is fit for a file."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    taken.add(name)
    return name
