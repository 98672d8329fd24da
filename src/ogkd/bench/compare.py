"""Our averages beside the published numbers, in percent.

Only means are compared: the paper's ± is probably another spread than ours (see tidy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ogkd.bench.analysis import harmonic_mean
from ogkd.bench.paper import Published, benchmark_of, paper, published
from ogkd.bench.runs import FinishedRun, Plan, RunsFolder
from ogkd.bench.tidy import Average, Condition, Summary, markdown_row, prompts_used
from ogkd.data.catalog import benchmarks, plain_name

AVERAGE = "average"
_ROUNDING = 0.02  # by how much a recomputed average may differ from the printed one


@dataclass(frozen=True)
class Comparison:
    """Ours beside the published number, in percent; no difference if they are not comparable."""

    table: str
    dataset: str
    label: str
    shots: int | None
    flips: int
    part: str  # test, base, novel, hm; of an average also mean-hm (see tidy.py)
    ours: float
    published: float
    difference: float | None
    ours_std: float | None  # None: fewer than two seeds
    published_std: float | None
    note: str
    backbone: str  # of ours
    prompts: str  # of ours: whose, with a digest of their texts


def compare_with_published(folder: RunsFolder, plan: Plan) -> list[Comparison]:
    """Accuracy of every cell that the paper prints too: each dataset, then the average."""
    runs = folder.finished(plan)
    summary = Summary(plan, runs)
    names: dict[str, str] = {}  # if two of our datasets are the same benchmark, the first one
    for cell in plan.cells:
        name = benchmark_of(cell.spec)
        if name is not None and name not in names.values():
            names.setdefault(cell.spec.dataset, name)
    different = {run.spec.dataset: how for _, run in runs if (how := _difference(run))}
    comparisons: list[Comparison] = []
    for label in summary.labels:
        specs = [cell.spec for cell in plan.cells if cell.label == label]
        backbone = ", ".join(sorted({spec.backbone for spec in specs}))
        prompts = prompts_used(run for name, run in runs if name == label)
        for condition in summary.conditions:
            if condition.value is not None:
                continue  # a swept setting: the paper has figures of these, but no tables
            theirs = _candidates(plan, label, specs[-1].method, condition)
            row = _PlanRow(summary, label, condition, names, different, theirs)
            parts = summary.parts(condition)
            parts += ["hm", "mean-hm"] if "novel" in parts else []
            for part, comparison in ((p, c) for p in parts for c in row.comparisons(p)):
                theirs_row, average, notes, comparable = comparison
                ours = 100 * average.value
                comparisons.append(
                    Comparison(
                        table=theirs_row.table,
                        dataset=theirs_row.dataset,
                        label=label,
                        shots=condition.shots,
                        flips=condition.flips,
                        part=part,
                        ours=ours,
                        published=theirs_row.value,
                        difference=ours - theirs_row.value if comparable else None,
                        ours_std=None if math.isnan(average.std) else 100 * average.std,
                        published_std=theirs_row.std,
                        note="; ".join(notes),
                        backbone=backbone,
                        prompts=prompts,
                    )
                )
    return comparisons


def _difference(run: FinishedRun) -> str:
    """How a run's images or classes differ from the benchmark's; "" if they do not."""
    if run.spec.judge == "val":
        return "validation images"
    name = benchmark_of(run.spec)
    if name is None:
        return ""
    record = benchmarks()[name]
    classes = {part: {plain_name(text) for text in run.class_names(part)} for part in run.parts}
    if set().union(*classes.values()) != {plain_name(text) for text in record.class_names}:
        return "other classes"
    if "base" in classes and classes["base"] != {plain_name(text) for text in record.base_classes}:
        return "other base classes"
    return ""


def _candidates(plan: Plan, label: str, method: str, condition: Condition) -> list[Published]:
    """The published numbers of a row under a condition; an ablation's rows match by label."""
    rows = [row for row in published() if row.metric == "accuracy" and row.flips == condition.flips]
    rows = [row for row in rows if row.shots in (None, condition.shots)]
    if plan.table == "ablation":
        return [row for row in rows if row.setting and plain_name(row.setting) == plain_name(label)]
    return [row for row in rows if not row.setting and row.method == method]


_Beside = tuple[Published, Average, list[str], bool]
"""A printed number, ours, notes, and whether the two are comparable."""


@dataclass(frozen=True)
class _PlanRow:
    """One row of a plan under one condition, with everything that the paper prints for it."""

    summary: Summary
    label: str
    condition: Condition
    names: Mapping[str, str]  # our datasets -> names in the catalogue
    different: Mapping[str, str]  # our datasets with other classes than the benchmark's: how
    theirs: Sequence[Published]

    def comparisons(self, part: str) -> Iterable[_Beside]:
        printed = {
            row.dataset: row for row in self.theirs if row.part == part.removeprefix("mean-")
        }
        if not printed:
            return
        wanted = set(self.summary.wanted(self.condition, part))
        # The paper has no base-to-novel numbers of some benchmarks.
        theirs = _all_of_them(part) if len(printed) == 1 else printed
        shared = {
            name: ours for ours, name in self.names.items() if ours in wanted and name in theirs
        }
        for name, ours in shared.items() if part != "mean-hm" else ():
            average = self.summary.of(self.label, ours, self.condition, part)
            if average is not None and name in printed:
                notes = [] if average.complete else [f"{average.done} of {average.planned} runs"]
                notes += [self.different[ours]] if ours in self.different else []
                yield printed[name], average, notes, not notes
        # A single printed average does not say which mean of HMs it is; the paper's text has "hm".
        if AVERAGE in printed and not (part == "mean-hm" and len(printed) == 1):
            yield from self._averages(part, printed, shared)

    def _averages(
        self, part: str, printed: Mapping[str, Published], shared: Mapping[str, str]
    ) -> Iterable[_Beside]:
        """The average over the datasets with the benchmark's classes; over all if none has them."""
        same = {name: ours for name, ours in shared.items() if ours not in self.different}
        chosen = list((same or shared).values())
        average = self.summary.average(self.label, self.condition, part, chosen)
        if average is None:
            return
        row, every, about = printed[AVERAGE], _all_of_them(part), []
        comparable = True
        if same and len(printed) > 1:
            value = _published_average(self.theirs, part, list(same))
            if len(same) < len(every):
                about = [f"both over {len(same)} datasets"]
            elif abs(value - row.value) > _ROUNDING:
                about = [f"printed: {row.value:.2f}"]
            row = row.model_copy(update={"value": value})
        elif same and set(same) != set(every):
            about, comparable = [f"ours: {len(same)} of {len(every)} datasets"], False
        notes = ["runs are missing"] if comparable and not average.complete else about
        other = {name: self.different[ours] for name, ours in shared.items() if name not in same}
        for problem in dict.fromkeys(other.values()):
            names = ", ".join(name for name, reason in other.items() if reason == problem)
            notes.append(f"{problem}, {'left out' if same else 'all'}: {names}")
        yield row, average, notes, average.complete and bool(same) and comparable


def _all_of_them(part: str) -> list[str]:
    """The benchmarks that the paper averages over."""
    return [name for name, record in benchmarks().items() if record.base_to_novel or part == "test"]


def _published_average(theirs: Sequence[Published], part: str, datasets: Sequence[str]) -> float:
    """Recomputed from the published rows of some datasets: the paper mixes two means of HMs."""

    def mean(name: str) -> float:
        values = {row.dataset: row.value for row in theirs if row.part == name}
        return sum(values[dataset] for dataset in datasets) / len(datasets)

    if part == "hm":
        return harmonic_mean(mean("base"), mean("novel"))
    return mean(part.removeprefix("mean-"))


def comparison_markdown(rows: Sequence[Comparison], settings: str = "") -> str:
    """The comparison as Markdown; `settings` are those that our runs changed."""
    if not rows:
        return "None of these runs has a counterpart in the paper's tables.\n"
    backbones = ", ".join(dict.fromkeys(row.backbone for row in rows))
    prompts = ", ".join(dict.fromkeys(row.prompts for row in rows))
    other = {word for row in rows for word in row.prompts.split(", ")}
    other = {word for word in other if word.partition(" (")[0] != paper().prompts}
    lines = [
        f"Our backbone: {backbones}. The published numbers': {paper().backbone}.",
        f"Our prompts: {prompts}. The published numbers': {paper().prompts}."
        + (" Differences are also those of the prompts." if other else ""),
        *([f"Settings that we changed from presets and defaults: {settings}."] if settings else []),
        "",
        "| table | dataset | method | K | flips | part | ours | published | difference | note |",
        "|---|---|---|---:|---:|---|---:|---:|---:|---|",
    ]
    for row in rows:
        difference = "" if row.difference is None else f"{row.difference:+.2f}"
        cells = [row.table, row.dataset, row.label, row.shots, row.flips, row.part, row.ours]
        cells += [row.published, difference, row.note]
        lines.append(markdown_row(_text(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" if isinstance(value, float) else str(value)
