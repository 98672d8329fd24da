"""Formats a table as Markdown, LaTeX or CSV: best bold, second underlined, missing cells empty."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from ogkd.bench.tidy import Average, csv_text
from ogkd.evaluation.names import Metric

_WIDE = 6  # more columns are scaled to the width of the page
_NARROW = 4  # three blocks of up to this many columns fit side by side, as in the paper


@dataclass(frozen=True)
class Entry:
    """A cell; the best of its group within a block is bold."""

    average: Average | None  # None: no run is finished
    group: Hashable = None
    over_datasets: bool = False  # not only over seeds


@dataclass(frozen=True)
class Block:
    """One rectangle of a table: all datasets together, or one of them."""

    key: str  # "average", "busi"
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Entry, ...]], ...]


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    metric: Metric
    corner: str  # heading of the rows: "Method", "Dataset"
    blocks: tuple[Block, ...]
    spread: bool = False  # whether the standard deviation is shown
    notes: tuple[str, ...] = ()


def to_markdown(table: Table) -> str:
    """GitHub Markdown, with a heading and a table for each block."""
    lines = [f"## {table.title}", ""]
    for block in table.blocks:
        marks = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}
        cells = _texts(table, block, 0, " ± ", marks)
        lines += [f"### {block.title}", "", markdown_row([table.corner, *block.columns])]
        lines += ["|---|" + "---:|" * len(block.columns)]
        lines += [markdown_row([name, *texts]) for name, texts in cells]
        lines.append("")
    lines += [f"- {note}" for note in table.notes]
    return "\n".join(lines).rstrip() + "\n"


def to_latex(table: Table) -> str:
    """Tables for booktabs with two decimals, narrow blocks three to a line, as in the paper."""
    tabulars = [_tabular(table, block) for block in table.blocks]
    notes = " ".join(_tex(note) for note in table.notes)
    first, *others = zip(table.blocks, tabulars, strict=True)
    lines = _float(table, _tex(f"{table.title}: {first[0].title}. ") + notes, "", [first[1]])
    if not others:
        return "\n".join(lines) + "\n"
    if all(len(block.columns) <= _NARROW for block, _ in others) and not table.spread:
        body = []
        for number, (block, tabular) in enumerate(others, 1):
            between = "\\hfill" if number % 3 else "\\\\[6pt]"
            between = "" if number == len(others) else between
            body.append(
                "\\begin{minipage}[t]{0.32\\linewidth}\\centering\n"
                f"\\textbf{{{_tex(block.title)}}}\\\\[2pt]\n{tabular}\n"
                "\\end{minipage}" + between
            )
        lines += _float(table, _tex(f"{table.title}: each dataset."), "each", body)
    else:
        for block, tabular in others:
            lines += _float(table, _tex(f"{table.title}: {block.title}."), block.key, [tabular])
    return "\n".join(lines) + "\n"


def to_csv(table: Table) -> str:
    """One rectangle for all blocks: value, standard deviation and completeness of each column."""
    columns = list(dict.fromkeys(name for block in table.blocks for name in block.columns))
    headings = [name + end for name in columns for end in ("", " std", " complete")]
    rows = [["block", table.corner.lower(), *headings]]
    for block in table.blocks:
        for name, entries in block.rows:
            found = dict(zip(block.columns, entries, strict=True))
            cells = [_csv_cells(found.get(column), table.metric) for column in columns]
            rows.append([block.key, name, *itertools.chain(*cells)])
    return csv_text(rows)


def _csv_cells(entry: Entry | None, metric: Metric) -> tuple[str, str, str]:
    if entry is None or entry.average is None:
        return "", "", ""
    mine = entry.average
    std = "" if math.isnan(mine.std) else f"{mine.std * metric.scale:.4f}"
    complete = "yes" if mine.complete else f"no ({mine.done} of {mine.planned})"
    return f"{mine.value * metric.scale:.4f}", std, complete


def _texts(
    table: Table, block: Block, more: int, plus_minus: str, marks: dict[str, str]
) -> list[tuple[str, list[str]]]:
    """The rows of a block as text, with marks; `more` decimals than the metric's own."""
    ranks = _ranks(table, block, more)
    found = []
    for row, (name, entries) in enumerate(block.rows):
        texts = []
        for column, entry in enumerate(entries):
            text = _number(entry, table, more, plus_minus)
            texts.append(marks[ranks.get((row, column), "")].format(text))
        found.append((name, texts))
    return found


def _number(entry: Entry, table: Table, more: int, plus_minus: str) -> str:
    mine = entry.average
    if mine is None:
        return ""
    text = table.metric.text(mine.value, more=more)
    if table.spread and not math.isnan(mine.std):
        text += f"{plus_minus}{table.metric.text(mine.std, more=more)}"
    if mine.complete:
        return text
    return f"({text}, {mine.done}/{mine.planned})" if entry.over_datasets else f"({text})"


def _ranks(table: Table, block: Block, more: int) -> dict[tuple[int, int], str]:
    """Which cells are the "best" and the "second" of their group; equal as printed is equal."""
    groups: dict[Hashable, dict[tuple[int, int], float]] = {}
    for row, (_, entries) in enumerate(block.rows):
        for column, entry in enumerate(entries):
            if entry.average is not None and entry.average.complete:
                value = float(table.metric.text(entry.average.value, more=more))
                groups.setdefault(entry.group, {})[row, column] = value
    found: dict[tuple[int, int], str] = {}
    for members in groups.values():
        if len(members) < 2:
            continue
        order = sorted(set(members.values()), reverse=not table.metric.lower_is_better)
        # With two candidates the second needs no mark.
        names = dict(zip(order, ("best", "second")[: len(members) - 1], strict=False))
        found |= {cell: names[value] for cell, value in members.items() if value in names}
    return found


def _tabular(table: Table, block: Block) -> str:
    marks = {"best": "\\textbf{{{}}}", "second": "\\underline{{{}}}", "": "{}"}
    cells = _texts(table, block, 1, " $\\pm$ ", marks)
    rows = [" & ".join([_tex(name), *texts]) + " \\\\" for name, texts in cells]
    heading = " & ".join(_tex(name) for name in (table.corner, *block.columns)) + " \\\\"
    lines = [f"\\begin{{tabular}}{{l{'r' * len(block.columns)}}}", "\\toprule", heading]
    text = "\n".join([*lines, "\\midrule", *rows, "\\bottomrule", "\\end{tabular}"])
    wide = len(block.columns) > _WIDE
    return f"\\resizebox{{\\linewidth}}{{!}}{{%\n{text}}}" if wide else text


def _float(table: Table, caption: str, key: str, body: Sequence[str]) -> list[str]:
    label = re.sub(r"[^A-Za-z0-9-]+", "-", f"{table.name}-{key}" if key else table.name)
    head = ["\\begin{table}[t]", "\\centering", f"\\caption{{{caption}}}"]
    return [*head, f"\\label{{tab:{label}}}", *body, "\\end{table}"]


def markdown_row(texts: Iterable[str]) -> str:
    cells = (text.replace("|", "\\|").replace("\n", " ") for text in texts)
    return f"| {' | '.join(cells)} |"


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"±": r"$\pm$", "γ": r"$\gamma$", "≤": r"$\leq$"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
