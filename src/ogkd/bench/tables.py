"""The tables of a plan in the paper's shape, as Markdown or LaTeX.

Best bold, second underlined, missing cells empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

import pandas as pd

from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import (
    Condition,
    Summary,
    changed_settings,
    markdown_row,
    prompts_used,
)
from ogkd.errors import ConfigError, DataError

AVERAGE = "average"
_WIDE = 6  # more columns are scaled to the width of the page
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
        raise ConfigError(
            f"Unknown format '{format}'. Known: {', '.join(FORMATS)}.", argument="format"
        )
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
    noise = summary.plan.table == "noise"
    several = len(summary.datasets) > 1
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = summary.plan.table == "sweep" and not summary.rows_compete
    averages: list[str | None] = [None]
    datasets = [*summary.datasets, *averages] if noise else [*averages, *summary.datasets]
    cells = []
    for dataset in datasets if several else summary.datasets:
        for condition in summary.conditions:
            parts = _columns(summary, condition, average=dataset is None)
            wanted = summary.wanted(condition, parts[0])
            if dataset is not None and dataset not in wanted:
                continue
            names = wanted if dataset is None else [dataset]
            for label in summary.labels:
                for part in parts:
                    average = summary.average(label, condition, part, names)
                    place = _noise_place if noise else _place
                    cells.append(
                        {
                            **place(summary, dataset, label, condition, part),
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
) -> dict[str, str]:
    """Methods in rows, conditions in columns; a sweep has a block for each number of shots."""
    # What a sweep does not vary goes into a block's title.
    sweep = summary.plan.table == "sweep"
    page = _words(summary, condition, swept=False) if sweep else ""
    title = dataset or _average_title(summary)
    return {
        "key": f"{dataset or AVERAGE} {page}".strip(),
        "block": f"{title}, {page}" if page else title,
        "row": label,
        "column": _heading(summary, condition, part, average=dataset is None),
    }


def _noise_place(
    summary: Summary, dataset: str | None, label: str, condition: Condition, part: str
) -> dict[str, str]:
    """Datasets in rows, methods in columns, as the appendix prints label noise.

    In base-to-novel each number of flips has a block; otherwise flips are side by side.
    """
    words = _words(summary, condition)
    page, beside = (words, "") if part != "test" else ("", words)
    row = dataset or (_PARTS[part] if part == "mean-hm" else AVERAGE)
    name = _PARTS[part.removeprefix("mean-")]
    return {
        "key": page or "noise",
        "block": page or _average_title(summary),
        "row": row,
        "column": " ".join(filter(None, (beside, label, name))),
    }


def _columns(summary: Summary, condition: Condition, *, average: bool) -> list[str]:
    parts = summary.parts(condition)
    # A harmonic mean of errors would be good if the smaller of the two is.
    if "base" in parts and not summary.metric.lower_is_better:
        parts[2:2] = ["hm", "mean-hm"] if average else ["hm"]
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


def _average_title(summary: Summary) -> str:
    count = len(summary.datasets)
    return f"Average over {count} datasets" if count > 1 else summary.datasets[0]


def _notes(summary: Summary, table: pd.DataFrame, runs: LabelledRuns) -> Iterator[str]:
    if (table["done"] < table["planned"]).any():
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


def _notes_on_runs(summary: Summary, runs: LabelledRuns) -> Iterator[str]:
    """Which datasets, images, presets, settings and prompts the numbers are from."""
    sizes = {
        condition: len(summary.wanted(condition, summary.parts(condition)[0]))
        for condition in summary.conditions
    }
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
        yield f"Settings: {changed}."
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


FORMATS = {"markdown": _to_markdown, "latex": _to_latex}


def _blocks(
    table: pd.DataFrame, summary: Summary, more: int, plus_minus: str, best: str, second: str
) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Key, title and texts (rows x columns) of each block; `more` decimals than usual."""
    metric, with_std = summary.metric, summary.plan.table == "few-shot"
    is_complete = table["value"].notna() & (table["done"] == table["planned"])
    # The best and the second of a group are marked; equal as printed is equal.
    printed = table["value"][is_complete].map(lambda value: float(metric.text(value, more=more)))
    groups = printed.groupby([table["key"], table["group"]])
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
    for (key, title), cells in table.groupby(["key", "block"], sort=False):
        rows, columns = cells["row"].unique(), cells["column"].unique()
        block = cells.pivot(index="row", columns="column", values="text").loc[rows, columns]
        yield key, title, block.fillna("")


_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_SPECIAL |= {"±": r"$\pm$", "γ": r"$\gamma$", "≤": r"$\leq$"}
_SPECIAL |= {mark: f"\\{mark}" for mark in "&%$#_{}"}


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)
