"""The tables of a plan in the paper's shape: which blocks, rows and columns each kind has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import pandas as pd

from ogkd.bench.render import Cell, Table, to_csv, to_latex, to_markdown
from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import Average, Condition, Summary, changed_settings, prompts_used
from ogkd.errors import ConfigError, DataError

Format = Literal["markdown", "latex", "csv"]
Writer = Callable[[Table], str]
FORMATS: dict[str, Writer] = {"markdown": to_markdown, "latex": to_latex, "csv": to_csv}
AVERAGE = "average"
_PARTS = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM", "mean-hm": "Mean of HMs"}
_MEAN_HM = _PARTS["mean-hm"]


def make_table(
    folder: RunsFolder,
    plan: Plan,
    *,
    metric: str = "accuracy",
    format: Format = "markdown",  # the reader's word
) -> str:
    """The table of a plan as text: the average over datasets first, then each dataset."""
    if format not in FORMATS:
        raise ConfigError(
            f"Unknown format '{format}'. Known: {', '.join(FORMATS)}.", argument="format"
        )
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs.")
    runs = folder.finished(plan)
    summary = Summary(plan, runs, metric)
    noise = plan.table == "noise"
    cells = list(_noise_cells(summary) if noise else _cells(summary))
    table = Table(
        name=plan.name,
        title=f"{plan.title}: {summary.metric.title}{summary.metric.unit}",
        metric=summary.metric,
        corner="Dataset" if noise else "Method",
        cells=pd.DataFrame([vars(cell) for cell in cells], dtype=object),
        spread=plan.table == "few-shot",
        notes=tuple(_notes(summary, cells, runs)),
    )
    return FORMATS[format](table)


def _cells(summary: Summary) -> Iterable[Cell]:
    """Methods in rows, conditions in columns; a sweep has a block for each number of shots."""
    several, sweep = len(summary.datasets) > 1, summary.plan.table == "sweep"
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = sweep and not summary.rows_compete
    for dataset in [None, *summary.datasets] if several else [None]:
        name = dataset or (AVERAGE if several else summary.datasets[0])
        title = dataset or _average_title(summary)
        for label, condition in itertools.product(summary.labels, summary.conditions):
            if dataset is not None and dataset not in _planned_at(summary, condition):
                continue
            # What a sweep does not vary goes into a block's title.
            page = _words(summary, condition, swept=False) if sweep else ""
            for part in _columns(summary, condition, average=dataset is None):
                yield Cell(
                    key=f"{name} {page}".strip(),
                    block=f"{title}, {page}" if page else title,
                    row=label,
                    column=_heading(summary, condition, part, average=name == AVERAGE),
                    average=_average(summary, label, dataset, condition, part),
                    group=(condition.shots if alone else condition, part),
                    over_datasets=dataset is None,
                )


def _noise_cells(summary: Summary) -> Iterable[Cell]:
    """Datasets in rows, methods in columns, as the appendix prints label noise.

    In base-to-novel each number of flips has a block; otherwise flips are side by side.
    """
    for condition in summary.conditions:
        parts = _columns(summary, condition, average=False)
        words = _words(summary, condition)
        page, beside = (words, "") if "base" in parts else ("", words)
        rows: dict[str, str | None] = {name: name for name in summary.datasets}
        if len(rows) > 1:
            rows[AVERAGE] = None
            rows |= {_MEAN_HM: None} if "hm" in parts else {}
        for (row, dataset), label, part in itertools.product(rows.items(), summary.labels, parts):
            average = None
            if row != _MEAN_HM:
                average = _average(summary, label, dataset, condition, part)
            elif part == "hm":
                average = summary.average(label, condition, "mean-hm")
            yield Cell(
                key=page or "noise",
                block=page or _average_title(summary),
                row=row,
                column=" ".join(filter(None, (beside, label, _PARTS[part]))),
                average=average,
                group=(row, condition, part),
                over_datasets=dataset is None,
            )


def _average(
    summary: Summary, label: str, dataset: str | None, condition: Condition, part: str
) -> Average | None:
    if dataset is None:
        return summary.average(label, condition, part)
    return summary.of(label, dataset, condition, part)


def _columns(summary: Summary, condition: Condition, *, average: bool) -> list[str]:
    parts = summary.parts(condition)
    # A harmonic mean of errors would be good if the smaller of the two is.
    if "base" in parts and not summary.metric.lower_is_better:
        extra = ["hm", "mean-hm"] if average and len(summary.datasets) > 1 else ["hm"]
        parts[parts.index("novel") + 1 : parts.index("novel") + 1] = extra
    return parts


def _heading(summary: Summary, condition: Condition, part: str, *, average: bool = False) -> str:
    if summary.plan.table == "sweep":
        words = _swept(summary, condition)
    elif len(summary.conditions) == 1 and part != "test":
        words = ""
    else:
        words = _words(summary, condition)
    # An average has two harmonic means: say which.
    name = "HM of averages" if average and part == "hm" else _PARTS[part]
    return " ".join(filter(None, (words, name)))


def _words(summary: Summary, condition: Condition, *, swept: bool = True) -> str:
    """What distinguishes a condition; `swept` False: without what the sweep varies."""
    axis = summary.plan.sweep
    words = []
    if summary.plan.table != "noise" or len({other.shots for other in summary.conditions}) > 1:
        words.append("all images" if condition.shots is None else f"K={condition.shots}")
    if any(other.flips for other in summary.conditions) and (swept or axis != "flips"):
        words.append(f"{condition.flips} flips")
    if any(other.value is not None for other in summary.conditions) and swept:
        words.append(_swept(summary, condition))
    return ", ".join(words)


def _swept(summary: Summary, condition: Condition) -> str:
    if summary.plan.sweep in (None, "flips"):
        return f"{condition.flips} flips"
    return "not swept" if condition.value is None else f"{summary.plan.sweep}={condition.value}"


def _planned_at(summary: Summary, condition: Condition) -> set[str]:
    return {name for part in summary.parts(condition) for name in summary.wanted(condition, part)}


def _average_title(summary: Summary) -> str:
    count = len(summary.datasets)
    return f"Average over {count} datasets" if count > 1 else summary.datasets[0]


def _notes(summary: Summary, cells: Sequence[Cell], runs: LabelledRuns) -> Iterable[str]:
    if any(cell.average and not cell.average.complete for cell in cells):
        yield (
            "In brackets: runs are missing. An average shows how many datasets are complete. Such "
            "a number is not compared with others."
        )
    yield from _notes_on_runs(summary, runs)
    several = len(summary.datasets) > 1
    if summary.plan.table == "few-shot":
        also = "; of an average: of the average over datasets at each seed" if several else ""
        yield f"± is the population standard deviation over seeds{also}."
        if summary.benchmarked:
            names = ", ".join(summary.benchmarked)
            yield f"± of {names}: 1.96 times it / sqrt(seeds), as the benchmark prints theirs."
    if several and any("base" in summary.parts(condition) for condition in summary.conditions):
        yield (
            "HM of averages is the harmonic mean of the two averages; mean of HMs is the mean of "
            "the datasets' own harmonic means."
        )
    better = "lower" if summary.metric.lower_is_better else "higher"
    yield f"Best bold, second underlined; {better} is better."


def _notes_on_runs(summary: Summary, runs: LabelledRuns) -> Iterable[str]:
    """Which datasets, images, settings and prompts the numbers are from."""
    sizes = {condition: len(_planned_at(summary, condition)) for condition in summary.conditions}
    if len(set(sizes.values())) > 1:
        words = [f"{_heading(summary, key, 'test')}: {size}" for key, size in sizes.items()]
        yield f"Datasets in the average: {', '.join(words)}."
    if short := _fewer_images(runs):
        words = [f"{name} {count} (K={shots})" for (shots, name), count in short.items()]
        yield f"Classes with fewer than K images, all of which were used: {', '.join(words)}."
    if any(cell.spec.judge == "val" for cell in summary.plan.cells):
        yield "Judged on validation images; the test images were not used."
    if changed := changed_settings(summary.plan):
        yield f"Settings changed from presets and defaults: {changed}."
    if runs:
        yield f"Prompts: {prompts_used(run for _, run in runs)}."


def _fewer_images(runs: LabelledRuns) -> dict[tuple[int, str], int]:
    """The images of the smallest class, by shots and dataset, if it has fewer than K."""
    smallest: dict[tuple[int, str], int] = {}
    for _, run in runs:
        counts, shots = run.result.get("images_per_class"), run.spec.shots
        if counts and shots is not None and min(counts) < shots:
            key = (shots, run.spec.dataset)
            smallest[key] = min(min(counts), smallest.get(key, shots))
    return smallest
