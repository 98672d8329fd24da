"""Formats a table as Markdown, LaTeX or CSV: best bold, second underlined, missing cells empty."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

import pandas as pd

from ogkd.bench.tidy import Average, csv_text
from ogkd.evaluation.names import Metric

_WIDE = 6  # more columns are scaled to the width of the page


@dataclass(frozen=True)
class Cell:
    """One number of a table, where it stands, and which others it competes with."""

    key: str  # of its block: "average", "busi"
    block: str  # the block's title
    row: str
    column: str
    average: Average | None  # None: no run is finished
    group: Hashable = None  # the best of a group within a block is bold
    over_datasets: bool = False  # not only over seeds


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    metric: Metric
    corner: str  # heading of the rows: "Method", "Dataset"
    cells: pd.DataFrame  # a row for each Cell
    spread: bool = False  # whether the standard deviation is shown
    notes: tuple[str, ...] = ()


def to_markdown(table: Table) -> str:
    """GitHub Markdown, with a heading and a table for each block."""
    lines = [f"## {table.title}", ""]
    for _, block, texts in _blocks(table, 0, " ± ", "**{}**", "<ins>{}</ins>"):
        lines += [f"### {block}", "", markdown_row([table.corner, *texts.columns])]
        lines += ["|---|" + "---:|" * len(texts.columns)]
        lines += [markdown_row(row) for row in texts.itertuples(name=None)]
        lines.append("")
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def to_latex(table: Table) -> str:
    """A table for booktabs of each block, with two decimals as in the paper."""
    lines: list[str] = []
    notes = " ".join(map(_tex, table.notes))
    for key, block, texts in _blocks(table, 1, " $\\pm$ ", "\\textbf{{{}}}", "\\underline{{{}}}"):
        named = texts.rename(index=_tex, columns=_tex).reset_index(names=_tex(table.corner))
        form = "l" + "r" * len(texts.columns)
        tabular = named.to_latex(index=False, escape=False, column_format=form).rstrip()
        if len(texts.columns) > _WIDE:
            tabular = f"\\resizebox{{\\linewidth}}{{!}}{{%\n{tabular}}}"
        label = re.sub(r"[^A-Za-z0-9-]+", "-", f"{table.name}-{key}" if lines else table.name)
        caption = _tex(f"{table.title}: {block}.") + ("" if lines else f" {notes}")
        lines += ["\\begin{table}[t]", "\\centering", f"\\caption{{{caption}}}"]
        lines += [f"\\label{{tab:{label}}}", tabular, "\\end{table}"]
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One rectangle for all blocks: value, standard deviation and completeness of each column."""
    columns = list(table.cells["column"].unique())
    headings = [name + end for name in columns for end in ("", " std", " complete")]
    rows = [["block", table.corner.lower(), *headings]]
    for (key, row), cells in table.cells.groupby(["key", "row"], sort=False):
        averages = dict(zip(cells["column"], cells["average"], strict=True))
        texts = (_csv_cells(averages.get(column), table.metric) for column in columns)
        rows.append([key, row, *itertools.chain(*texts)])
    return csv_text(rows)


def _csv_cells(average: Average | None, metric: Metric) -> tuple[str, str, str]:
    if average is None:
        return "", "", ""
    std = "" if math.isnan(average.std) else f"{average.std * metric.scale:.4f}"
    complete = "yes" if average.complete else f"no ({average.done} of {average.planned})"
    return f"{average.value * metric.scale:.4f}", std, complete


def _blocks(
    table: Table, more: int, plus_minus: str, best: str, second: str
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Key, title and texts (rows x columns) of each block; `more` decimals than usual."""
    marks = _marks(table, more, best, second)
    texts = [
        mark.format(_number(cell, table, more, plus_minus))
        for mark, cell in zip(marks, table.cells.itertuples(), strict=True)
    ]
    for (key, title), cells in table.cells.assign(text=texts).groupby(["key", "block"], sort=False):
        rows, columns = cells["row"].unique(), cells["column"].unique()
        yield (
            key,
            title,
            cells.pivot(index="row", columns="column", values="text").loc[rows, columns],
        )


def _marks(table: Table, more: int, best: str, second: str) -> pd.Series:
    """The format of each cell: the best and the second of a group; equal as printed is equal."""
    marks = pd.Series("{}", index=table.cells.index)
    averages = table.cells["average"]
    complete = table.cells[[average is not None and average.complete for average in averages]]
    printed = [
        float(table.metric.text(average.value, more=more)) for average in complete["average"]
    ]
    groups = pd.Series(printed, complete.index, float).groupby([complete["key"], complete["group"]])
    rank = groups.rank("dense", ascending=table.metric.lower_is_better)
    size = groups.transform("size")
    marks[rank.index[(rank == 1) & (size > 1)]] = best
    marks[rank.index[(rank == 2) & (size > 2)]] = second  # of two the other one needs no mark
    return marks


def _number(cell: Cell, table: Table, more: int, plus_minus: str) -> str:
    average = cell.average
    if average is None:
        return ""
    text = table.metric.text(average.value, more=more)
    if table.spread and not math.isnan(average.std):
        text += f"{plus_minus}{table.metric.text(average.std, more=more)}"
    if average.complete:
        return text
    return f"({text}, {average.done}/{average.planned})" if cell.over_datasets else f"({text})"


def markdown_row(texts: Iterable[str]) -> str:
    cells = (text.replace("|", "\\|").replace("\n", " ") for text in texts)
    return f"| {' | '.join(cells)} |"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"±": r"$\pm$", "γ": r"$\gamma$", "≤": r"$\leq$"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
