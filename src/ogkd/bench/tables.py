"""The tables of a plan in the paper's shape, as Markdown, LaTeX or CSV.

Best bold, second underlined, missing cells empty.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pandas as pd

from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import (
    Average,
    Condition,
    Summary,
    changed_settings,
    csv_text,
    markdown_row,
    prompts_used,
)
from ogkd.errors import ConfigError, DataError

AVERAGE = "average"
_WIDE = 6  # more columns are scaled to the width of the page
_PARTS = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM", "mean-hm": "Mean of HMs"}
_MEAN_HM = _PARTS["mean-hm"]


@dataclass(frozen=True)
class _Cell:
    """One number of a table, where it stands, and which others it competes with."""

    key: str  # of its block: "average", "busi"
    block: str  # the block's title
    row: str
    column: str
    average: Average | None  # None: no run is finished
    group: Hashable  # the best of a group within a block is bold
    over_datasets: bool  # not only over seeds


def make_table(
    folder: RunsFolder,
    plan: Plan,
    *,
    metric: str = "accuracy",
    format: str = "markdown",  # the reader's word
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
    cells = list(_noise_cells(summary) if plan.table == "noise" else _cells(summary))
    table = pd.DataFrame([vars(cell) for cell in cells], dtype=object)
    return FORMATS[format](table, summary, list(_notes(summary, cells, runs)))


# Which blocks, rows and columns


def _cells(summary: Summary) -> Iterable[_Cell]:
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
                yield _Cell(
                    key=f"{name} {page}".strip(),
                    block=f"{title}, {page}" if page else title,
                    row=label,
                    column=_heading(summary, condition, part, average=name == AVERAGE),
                    average=_average(summary, label, dataset, condition, part),
                    group=(condition.shots if alone else condition, part),
                    over_datasets=dataset is None,
                )


def _noise_cells(summary: Summary) -> Iterable[_Cell]:
    """Datasets in rows, methods in columns, as the appendix prints label noise.

    In base-to-novel each number of flips has a block; otherwise flips are side by side.
    """
    for condition in summary.conditions:
        parts = _columns(summary, condition, average=False)
        words = _words(summary, condition)
        page, beside = (words, "") if "base" in parts else ("", words)
        rows: dict[str, str | None] = {name: name for name in summary.datasets}
        if len(rows) > 1:
            rows |= {AVERAGE: None} | ({_MEAN_HM: None} if "hm" in parts else {})
        for (row, dataset), label, part in itertools.product(rows.items(), summary.labels, parts):
            average = None
            if row != _MEAN_HM:
                average = _average(summary, label, dataset, condition, part)
            elif part == "hm":
                average = summary.average(label, condition, "mean-hm")
            yield _Cell(
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
        parts.insert(parts.index("novel") + 1, "hm")
        if average and len(summary.datasets) > 1:
            parts.insert(parts.index("hm") + 1, "mean-hm")
    return parts


def _heading(summary: Summary, condition: Condition, part: str, *, average: bool = False) -> str:
    words = _words(summary, condition)
    if summary.plan.table == "sweep":
        words = _swept(summary, condition)
    elif len(summary.conditions) == 1 and part != "test":
        words = ""
    # An average has two harmonic means: say which.
    name = "HM of averages" if average and part == "hm" else _PARTS[part]
    return " ".join(filter(None, (words, name)))


def _words(summary: Summary, condition: Condition, *, swept: bool = True) -> str:
    """What distinguishes a condition; `swept` False: without what the sweep varies."""
    words = []
    if summary.plan.table != "noise" or len({other.shots for other in summary.conditions}) > 1:
        words.append("all images" if condition.shots is None else f"K={condition.shots}")
    if any(other.flips for other in summary.conditions) and (
        swept or summary.plan.sweep != "flips"
    ):
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


def _notes(summary: Summary, cells: Sequence[_Cell], runs: LabelledRuns) -> Iterable[str]:
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
    smallest: dict[tuple[int, str], int] = {}  # class with fewer than K images
    for _, run in runs:
        shots, fewest = run.spec.shots, min(run.result.get("images_per_class") or [math.inf])
        if shots is not None and fewest < shots:
            key = (shots, run.spec.dataset)
            smallest[key] = min(fewest, smallest.get(key, shots))
    if smallest:
        words = [f"{name} {count} (K={shots})" for (shots, name), count in smallest.items()]
        yield f"Classes with fewer than K images, all of which were used: {', '.join(words)}."
    if any(cell.spec.judge == "val" for cell in summary.plan.cells):
        yield "Judged on validation images; the test images were not used."
    if changed := changed_settings(summary.plan):
        yield f"Settings changed from presets and defaults: {changed}."
    if runs:
        yield f"Prompts: {prompts_used(run for _, run in runs)}."


# How a table is written


def _title(summary: Summary) -> str:
    return f"{summary.plan.title}: {summary.metric.title}{summary.metric.unit}"


def _corner(summary: Summary) -> str:
    return "Dataset" if summary.plan.table == "noise" else "Method"


def _to_markdown(table: pd.DataFrame, summary: Summary, notes: Sequence[str]) -> str:
    """GitHub Markdown, with a heading and a table for each block."""
    lines = [f"## {_title(summary)}", ""]
    for _, block, texts in _blocks(table, summary, 0, " ± ", "**{}**", "<ins>{}</ins>"):
        lines += [f"### {block}", "", markdown_row([_corner(summary), *texts.columns])]
        lines += ["|---|" + "---:|" * len(texts.columns)]
        lines += [markdown_row(row) for row in texts.itertuples(name=None)]
        lines.append("")
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines).rstrip() + "\n"


def _to_latex(table: pd.DataFrame, summary: Summary, notes: Sequence[str]) -> str:
    """A table for booktabs of each block, with two decimals as in the paper."""
    lines: list[str] = []
    marks = (" $\\pm$ ", "\\textbf{{{}}}", "\\underline{{{}}}")
    for key, block, texts in _blocks(table, summary, 1, *marks):
        named = texts.rename(index=_tex, columns=_tex).reset_index(names=_corner(summary))
        form = "l" + "r" * len(texts.columns)
        tabular = named.to_latex(index=False, escape=False, column_format=form).rstrip()
        if len(texts.columns) > _WIDE:
            tabular = f"\\resizebox{{\\linewidth}}{{!}}{{%\n{tabular}}}"
        name = f"{summary.plan.name}-{key}" if lines else summary.plan.name
        caption = " ".join([f"{_title(summary)}: {block}.", *([] if lines else notes)])
        lines += ["\\begin{table}[t]", "\\centering", f"\\caption{{{_tex(caption)}}}"]
        lines += [f"\\label{{tab:{re.sub(r'[^A-Za-z0-9-]+', '-', name)}}}", tabular]
        lines += ["\\end{table}"]
    return "\n".join(lines) + "\n"


def _to_csv(table: pd.DataFrame, summary: Summary, _: Sequence[str]) -> str:
    """One rectangle for all blocks: value, standard deviation and completeness of each column."""
    columns, scale = list(table["column"].unique()), summary.metric.scale
    headings = [name + end for name in columns for end in ("", " std", " complete")]
    rows = [["block", _corner(summary).lower(), *headings]]
    for (key, row), cells in table.groupby(["key", "row"], sort=False):
        averages = dict(zip(cells["column"], cells["average"], strict=True))
        texts = [key, row]
        for average in map(averages.get, columns):
            if average is None:
                texts += ["", "", ""]
                continue
            std = "" if math.isnan(average.std) else f"{average.std * scale:.4f}"
            complete = "yes" if average.complete else f"no ({average.done} of {average.planned})"
            texts += [f"{average.value * scale:.4f}", std, complete]
        rows.append(texts)
    return csv_text(rows)


FORMATS = {"markdown": _to_markdown, "latex": _to_latex, "csv": _to_csv}


def _blocks(
    table: pd.DataFrame, summary: Summary, more: int, plus_minus: str, best: str, second: str
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Key, title and texts (rows x columns) of each block; `more` decimals than usual."""
    complete = table[[average is not None and average.complete for average in table["average"]]]
    printed = [
        float(summary.metric.text(average.value, more=more)) for average in complete["average"]
    ]
    # The best and the second of a group are marked; equal as printed is equal.
    groups = pd.Series(printed, complete.index, float).groupby([complete["key"], complete["group"]])
    rank = groups.rank("dense", ascending=summary.metric.lower_is_better)
    size = groups.transform("size")
    marks = pd.Series("{}", index=table.index)
    marks[rank.index[(rank == 1) & (size > 1)]] = best
    marks[rank.index[(rank == 2) & (size > 2)]] = second  # of two the other one needs no mark
    texts = [
        mark.format(_number(cell, summary, more, plus_minus))
        for mark, cell in zip(marks, table.itertuples(), strict=True)
    ]
    for (key, title), cells in table.assign(text=texts).groupby(["key", "block"], sort=False):
        rows, columns = cells["row"].unique(), cells["column"].unique()
        block = cells.pivot(index="row", columns="column", values="text").loc[rows, columns]
        yield key, title, block


def _number(cell: _Cell, summary: Summary, more: int, plus_minus: str) -> str:
    average = cell.average
    if average is None:
        return ""
    text = summary.metric.text(average.value, more=more)
    if summary.plan.table == "few-shot" and not math.isnan(average.std):
        text += f"{plus_minus}{summary.metric.text(average.std, more=more)}"
    if average.complete:
        return text
    return f"({text}, {average.done}/{average.planned})" if cell.over_datasets else f"({text})"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"±": r"$\pm$", "γ": r"$\gamma$", "≤": r"$\leq$"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
