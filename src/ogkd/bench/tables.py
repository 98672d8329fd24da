"""The tables of a plan as Markdown: best bold, second underlined, missing cells empty."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import Condition, Summary, changed_settings, markdown_table, prompts_used
from ogkd.errors import DataError

_PARTS = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM", "mean-hm": "Mean of HMs"}


def make_table(folder: RunsFolder, plan: Plan, *, metric: str = "accuracy") -> str:
    """The table of a plan as text: the average over datasets first, then each dataset."""
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs.")
    runs = folder.finished(plan)
    summary = Summary(plan, runs, metric)
    table = _cells(summary)
    table["text"] = _texts(table, summary)
    lines = [f"## {plan.title}: {summary.metric.title}{summary.metric.unit}", ""]
    for title, cells in table.groupby("block", sort=False):
        rows, columns = cells["row"].unique(), cells["column"].unique()
        block = cells.pivot(index="row", columns="column", values="text").loc[rows, columns]
        block = block.fillna("").reset_index(names="Method")
        lines += [f"### {title}", "", *markdown_table(block), ""]
    return "\n".join([*lines, *(f"- {note}" for note in _notes(summary, table, runs))]) + "\n"


def _cells(summary: Summary) -> pd.DataFrame:
    """Every number of a table, where it stands, and with which others it competes.

    Methods are in rows and conditions in columns; a sweep has a block for each number of shots and,
    if base and novel classes are in columns, a row for each value. The best of those that `rivals`
    names is bold.
    """
    plan, count = summary.plan, len(summary.datasets)
    groups = {f"Average over {count} datasets": summary.datasets} if count > 1 else {}
    table = summary.averages(groups | {name: [name] for name in summary.datasets})
    table = table[table["many"] | (table["part"] != "mean-hm")].reset_index(drop=True)
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = plan.table == "sweep" and not summary.rows_compete
    table["rivals"] = [
        (cell.group, cell.condition.shots if alone else cell.condition, cell.part)
        for cell in table.itertuples()
    ]
    table[["block", "row", "column"]] = [_place(summary, cell) for cell in table.itertuples()]
    return table


def _place(summary: Summary, cell: Any) -> tuple[str, str, str]:
    """Block, row and column of a number."""
    fixed, swept = _words(summary, cell.condition)
    # An average has two harmonic means: say which.
    name = "HM of averages" if cell.many and cell.part == "hm" else _PARTS[cell.part]
    if summary.plan.sweep is None:
        words = fixed if len(summary.conditions) > 1 or not name else ""
        return cell.group, cell.label, f"{words} {name}".strip()
    block = f"{cell.group}, {fixed}"
    if name:
        return block, ", ".join(filter(None, [cell.label, swept])), name
    return block, cell.label, swept


def _words(summary: Summary, condition: Condition) -> tuple[str, str]:
    """What the sweep does not vary, and what it does."""
    fixed = ["all images" if condition.shots is None else f"K={condition.shots}"]
    swept: list[str] = []
    if any(other.flips for other in summary.conditions):
        (swept if summary.plan.sweep == "flips" else fixed).append(f"{condition.flips} flips")
    if any(other.value is not None for other in summary.conditions):
        value = condition.value
        swept.append("not swept" if value is None else f"{summary.plan.sweep}={value}")
    return ", ".join(fixed), " ".join(swept)


def _texts(table: pd.DataFrame, summary: Summary) -> pd.Series:
    """The text of every number: the best and the second of a group are marked."""
    metric, with_std = summary.metric, summary.plan.table == "few-shot"
    is_complete = table["value"].notna() & (table["done"] == table["planned"])
    # Equal as printed is equal.
    printed = table["value"][is_complete].map(lambda value: float(metric.text(value)))
    groups = printed.groupby(table["rivals"])
    rank = groups.rank("dense", ascending=metric.lower_is_better).reindex(table.index)
    size = groups.transform("size").reindex(table.index)
    marks = pd.Series("{}", table.index).mask((rank == 1) & (size > 1), "**{}**")
    # Of two the other one needs no mark.
    marks = marks.mask((rank == 2) & (size > 2), "<ins>{}</ins>")

    def text(cell: pd.Series) -> str:
        if math.isnan(cell["value"]):
            return ""
        number = metric.text(cell["value"])
        if with_std and not math.isnan(cell["std"]):
            number += f" ± {metric.text(cell['std'])}"
        if cell["done"] == cell["planned"]:
            return str(marks[cell.name].format(number))
        return f"({number}, {cell['done']}/{cell['planned']})" if cell["many"] else f"({number})"

    return table.apply(text, axis=1)


def _notes(summary: Summary, table: pd.DataFrame, runs: LabelledRuns) -> Iterator[str]:
    """What brackets and spreads are, and what the numbers are from."""
    if (table["done"] < table["planned"]).any():
        yield "In brackets: runs are missing (of an average: datasets); not compared with others."
    smallest: dict[str, None] = {}  # class with fewer than K images
    for _, run in runs:
        shots, counts = run.spec.shots, run.result.images_per_class
        if shots is not None and counts and (fewest := min(counts)) < shots:
            smallest[f"{run.spec.dataset} {fewest} (K={shots})"] = None
    if smallest:
        yield f"Classes with fewer than K images, all of which were used: {', '.join(smallest)}."
    if any(cell.spec.judge == "val" for cell in summary.plan.cells):
        yield "Judged on validation images; the test images were not used."
    if changed := changed_settings(summary.plan):
        yield f"Settings: {changed}."
    if runs:
        yield f"Prompts: {prompts_used(run for _, run in runs)}."
    if summary.plan.table == "few-shot":
        yield "± is the population standard deviation over seeds."
    better = "lower" if summary.metric.lower_is_better else "higher"
    yield f"Best bold, second underlined; {better} is better."
