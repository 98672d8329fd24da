"""The tables of a plan in the paper's shape, as Markdown or LaTeX.

Best bold, second underlined, missing cells empty.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import pandas as pd

from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import Condition, Summary, changed_settings, markdown_table, prompts_used
from ogkd.errors import ConfigError, DataError

_PARTS = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM", "mean-hm": "Mean of HMs"}


def make_table(
    folder: RunsFolder,
    plan: Plan,
    *,
    metric: str = "accuracy",
    format: str = "markdown",  # the reader's word
) -> str:
    """The table of a plan as text: the average over datasets first, then each dataset."""
    if format not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}.", argument="format")
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs.")
    runs = folder.finished(plan)
    summary = Summary(plan, runs, metric)
    table = _cells(summary)
    return FORMATS[format](table, summary, list(_notes(summary, table, runs)))


def _cells(summary: Summary) -> pd.DataFrame:
    """Every number of a table, where it stands, and with which others it competes.

    The best of a `group` is bold. A value is NaN if no run is finished; `many`: it is an average
    over datasets.
    """
    kind = summary.plan.table
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = kind == "sweep" and not summary.rows_compete
    datasets: list[str | None] = list(summary.datasets)
    if len(datasets) > 1:
        datasets.insert(len(datasets) if kind == "noise" else 0, None)
    parts = list(summary.parts)
    # A harmonic mean of errors would be good if the smaller of the two is.
    if "base" in parts and not summary.metric.lower_is_better:
        parts += ["hm", "mean-hm"]
    cells = []
    for dataset, condition, label, part in itertools.product(
        datasets, summary.conditions, summary.labels, parts
    ):
        if dataset is not None and part == "mean-hm":
            continue
        names = None if dataset is None else [dataset]
        average = summary.average(label, condition, part, names)
        block, row, column = _place(summary, dataset, label, condition, part)
        cells.append(
            {
                "block": block,
                "row": row,
                "column": column,
                "group": (dataset, condition.shots if alone else condition, part),
                "value": math.nan if average is None else average.value,
                "std": math.nan if average is None else average.std,
                "done": average.done if average else 0,
                "planned": average.planned if average else 0,
                "many": dataset is None,
            }
        )
    return pd.DataFrame(cells)


def _place(
    summary: Summary, dataset: str | None, label: str, condition: Condition, part: str
) -> tuple[str, str, str]:
    """Block, row and column of a number: methods in rows and conditions in columns.

    A sweep has a block for each number of shots. Label noise has datasets in rows and methods in
    columns, as the appendix prints it; in base-to-novel each number of flips has a block.
    """
    fixed, swept = _words(summary, condition)
    title = dataset or _average_title(summary)
    name = _PARTS[part]
    if summary.plan.table == "noise":
        words = ", ".join([*fixed, *swept])
        row = dataset or (name if part == "mean-hm" else "average")
        column = f"{label} {_PARTS[part.removeprefix('mean-')]}".strip()
        if part == "test":
            return _average_title(summary), row, f"{words} {column}"
        return words, row, column
    if dataset is None and part == "hm":  # an average has two harmonic means: say which
        name = "HM of averages"
    if summary.plan.table == "sweep":
        return ", ".join([title, *fixed]), label, " ".join(filter(None, [*swept, name]))
    words = ", ".join([*fixed, *swept])
    if len(summary.conditions) == 1 and name:
        words = ""
    return title, label, f"{words} {name}".strip()


def _words(summary: Summary, condition: Condition) -> tuple[list[str], list[str]]:
    """What distinguishes a condition: what the sweep does not vary, and what it does."""
    fixed: list[str] = []
    swept: list[str] = []
    if summary.plan.table != "noise" or len({other.shots for other in summary.conditions}) > 1:
        fixed.append("all images" if condition.shots is None else f"K={condition.shots}")
    if any(other.flips for other in summary.conditions):
        (swept if summary.plan.sweep == "flips" else fixed).append(f"{condition.flips} flips")
    if any(other.value is not None for other in summary.conditions):
        value = condition.value
        swept.append("not swept" if value is None else f"{summary.plan.sweep}={value}")
    return fixed, swept


def _average_title(summary: Summary) -> str:
    count = len(summary.datasets)
    return f"Average over {count} datasets" if count > 1 else summary.datasets[0]


def _notes(summary: Summary, table: pd.DataFrame, runs: LabelledRuns) -> Iterator[str]:
    """What brackets and spreads are, and what the numbers are from."""
    if (table["done"] < table["planned"]).any():
        yield "In brackets: runs are missing (of an average: datasets); not compared with others."
    smallest: dict[str, int] = {}  # class with fewer than K images
    for _, run in runs:
        shots, counts = run.spec.shots, run.result.images_per_class
        if shots is not None and counts and (fewest := min(counts)) < shots:
            smallest[f"{run.spec.dataset} {fewest} (K={shots})"] = shots
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
        if summary.benchmarked:
            names = ", ".join(summary.benchmarked)
            yield f"± of {names}: 1.96 times it / sqrt(seeds), as the benchmark prints theirs."
    better = "lower" if summary.metric.lower_is_better else "higher"
    yield f"Best bold, second underlined; {better} is better."


# How a table is written


def _to_markdown(table: pd.DataFrame, summary: Summary, notes: Sequence[str]) -> str:
    """GitHub Markdown, with a heading and a table for each block."""
    lines = [f"## {_title(summary)}", ""]
    for block, texts in _blocks(table, summary, 0, " ± ", "**{}**", "<ins>{}</ins>"):
        lines += [
            f"### {block}",
            "",
            *markdown_table(texts.reset_index(names=_corner(summary))),
            "",
        ]
    return "\n".join([*lines, *(f"- {note}" for note in notes)]) + "\n"


def _to_latex(table: pd.DataFrame, summary: Summary, notes: Sequence[str]) -> str:
    """A table for booktabs of each block, with two decimals as in the paper."""
    texts_of = []
    marks = (" $\\pm$ ", "\\textbf{{{}}}", "\\underline{{{}}}")
    for number, (block, texts) in enumerate(_blocks(table, summary, 1, *marks)):
        caption = " ".join([f"{_title(summary)}: {block}.", *([] if number else notes)])
        named = texts.rename(index=_tex, columns=_tex).rename_axis(None, axis=1)
        texts_of.append(
            named.reset_index(names=_corner(summary)).to_latex(
                index=False,
                escape=False,
                column_format="l" + "r" * len(texts.columns),
                caption=_tex(caption),
                label=f"tab:{summary.plan.name}{f'-{number + 1}' * bool(number)}",
                position="t",
            )
        )
    return "\n".join(texts_of)


FORMATS = {"markdown": _to_markdown, "latex": _to_latex}


def _title(summary: Summary) -> str:
    return f"{summary.plan.title}: {summary.metric.title}{summary.metric.unit}"


def _corner(summary: Summary) -> str:
    return "Dataset" if summary.plan.table == "noise" else "Method"


def _blocks(
    table: pd.DataFrame, summary: Summary, more: int, plus_minus: str, best: str, second: str
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Title and texts (rows x columns) of each block; `more` decimals than usual."""
    metric, with_std = summary.metric, summary.plan.table == "few-shot"
    is_complete = table["value"].notna() & (table["done"] == table["planned"])
    # The best and the second of a group are marked; equal as printed is equal.
    printed = table["value"][is_complete].map(lambda value: float(metric.text(value, more=more)))
    groups = printed.groupby(table["group"])
    rank = groups.rank("dense", ascending=metric.lower_is_better).reindex(table.index)
    size = groups.transform("size").reindex(table.index)
    marks = pd.Series("{}", table.index).mask((rank == 1) & (size > 1), best)
    marks = marks.mask((rank == 2) & (size > 2), second)  # of two the other one needs no mark

    def text(cell: pd.Series) -> str:
        if math.isnan(cell["value"]):
            return ""
        number = metric.text(cell["value"], more=more)
        if with_std and not math.isnan(cell["std"]):
            number += f"{plus_minus}{metric.text(cell['std'], more=more)}"
        if cell["done"] == cell["planned"]:
            return str(marks[cell.name].format(number))
        return f"({number}, {cell['done']}/{cell['planned']})" if cell["many"] else f"({number})"

    table = table.assign(text=table.apply(text, axis=1))
    for title, cells in table.groupby("block", sort=False):
        rows, columns = cells["row"].unique(), cells["column"].unique()
        block = cells.pivot(index="row", columns="column", values="text").loc[rows, columns]
        yield title, block.fillna("")


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"±": r"$\pm$", "γ": r"$\gamma$", "≤": r"$\leq$"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
