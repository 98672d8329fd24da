"""The tables of a plan in the paper's shape: which blocks, rows and columns each kind has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from ogkd.bench.render import Block, Entry, Table, to_csv, to_latex, to_markdown
from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import Condition, Summary
from ogkd.errors import ConfigError, DataError

Format = Literal["markdown", "latex", "csv"]
FORMATS: dict[str, Callable[[Table], str]] = {
    "markdown": to_markdown,
    "latex": to_latex,
    "csv": to_csv,
}
AVERAGE = "average"
_PARTS = {"test": "", "base": "Base", "novel": "Novel", "hm": "HM", "mean-hm": "Mean of HMs"}


def make_table(
    folder: RunsFolder,
    plan: Plan,
    *,
    metric: str = "accuracy",
    format: Format = "markdown",  # the reader's word
    per_dataset: bool = True,
) -> str:
    """The table of a plan as text: the average over datasets first, then each dataset."""
    if format not in FORMATS:
        raise ConfigError(
            f"Unknown format '{format}'. Known: {', '.join(FORMATS)}.", argument="format"
        )
    return FORMATS[format](table_of(folder, plan, metric=metric, per_dataset=per_dataset))


def table_of(
    folder: RunsFolder, plan: Plan, *, metric: str = "accuracy", per_dataset: bool = True
) -> Table:
    """The table of a plan as a record, before it is formatted."""
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs. Add datasets and methods to its grid.")
    runs = folder.finished(plan)
    summary = Summary(plan, runs, metric)
    noise = plan.table == "noise"
    blocks = list(_noise_blocks(summary) if noise else _blocks(summary, per_dataset=per_dataset))
    return Table(
        name=plan.name,
        title=f"{plan.title}: {summary.metric.title}{summary.metric.unit}",
        metric=summary.metric,
        corner="Dataset" if noise else "Method",
        blocks=tuple(blocks),
        spread=plan.table == "few-shot",
        notes=tuple(_notes(summary, blocks, runs)),
    )


def _blocks(summary: Summary, *, per_dataset: bool) -> Iterable[Block]:
    """Methods in rows, conditions in columns; a sweep has a block for each number of shots."""
    several = len(summary.datasets) > 1
    datasets = [None, *summary.datasets] if several and per_dataset else [None]
    for dataset in datasets:
        for page, conditions in _pages(summary).items():
            columns = [
                (condition, part)
                for condition in conditions
                if dataset is None or dataset in _planned_at(summary, condition)
                for part in _columns(summary, condition, average=dataset is None)
            ]
            if not columns:
                continue
            name = dataset or (AVERAGE if several else summary.datasets[0])
            title = dataset or _average_title(summary)
            yield Block(
                key=f"{name} {page}".strip(),
                title=f"{title}, {page}" if page else title,
                columns=tuple(
                    _heading(summary, condition, part, average=name == AVERAGE)
                    for condition, part in columns
                ),
                rows=tuple(
                    (label, tuple(_entry(summary, label, dataset, *column) for column in columns))
                    for label in summary.labels
                ),
            )


def _noise_blocks(summary: Summary) -> Iterable[Block]:
    """Datasets in rows, methods in columns, as the appendix prints label noise.

    In base-to-novel each number of flips has a block; otherwise flips are side by side.
    """
    pages: dict[str, list[Condition]] = {}
    for condition in summary.conditions:
        b2n = "base" in summary.parts(condition)
        pages.setdefault(_words(summary, condition) if b2n else "", []).append(condition)
    for page, conditions in pages.items():
        columns = [
            (condition, label, part)
            for condition in conditions
            for label in summary.labels
            for part in _columns(summary, condition, average=False)
        ]
        headings = [
            " ".join(
                filter(None, ("" if page else _words(summary, condition), label, _PARTS[part]))
            )
            for condition, label, part in columns
        ]
        averages = [AVERAGE, _PARTS["mean-hm"]] if any(c[2] == "hm" for c in columns) else [AVERAGE]
        names = [*summary.datasets, *(averages if len(summary.datasets) > 1 else ())]
        yield Block(
            key=page or "noise",
            title=page or _average_title(summary),
            columns=tuple(headings),
            rows=tuple((name, tuple(_noise_row(summary, name, columns))) for name in names),
        )


def _noise_row(
    summary: Summary, name: str, columns: list[tuple[Condition, str, str]]
) -> Iterable[Entry]:
    for condition, label, part in columns:
        group = (name, condition, part)
        if name == AVERAGE:
            yield Entry(summary.average(label, condition, part), group, over_datasets=True)
        elif name == _PARTS["mean-hm"]:
            found = summary.average(label, condition, "mean-hm") if part == "hm" else None
            yield Entry(found, group, over_datasets=True)
        else:
            yield Entry(summary.of(label, name, condition, part), group)


def _entry(
    summary: Summary, label: str, dataset: str | None, condition: Condition, part: str
) -> Entry:
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = summary.plan.table == "sweep" and not summary.rows_compete
    group = (condition.shots, part) if alone else (condition, part)
    if dataset is None:
        return Entry(summary.average(label, condition, part), group, over_datasets=True)
    return Entry(summary.of(label, dataset, condition, part), group)


def _pages(summary: Summary) -> dict[str, list[Condition]]:
    """Conditions that are side by side; what a sweep does not vary goes into the block's title."""
    pages: dict[str, list[Condition]] = {}
    for condition in summary.conditions:
        sweep = summary.plan.table == "sweep"
        page = _words(summary, condition, swept=False) if sweep else ""
        pages.setdefault(page, []).append(condition)
    return pages


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


def _notes(summary: Summary, blocks: list[Block], runs: LabelledRuns) -> Iterable[str]:
    entries = [entry for block in blocks for _, row in block.rows for entry in row]
    if any(entry.average and not entry.average.complete for entry in entries):
        yield (
            "In brackets: runs are missing. An average shows how many datasets are complete. Such "
            "a number is not compared with others."
        )
    sizes = {condition: len(_planned_at(summary, condition)) for condition in summary.conditions}
    if len(set(sizes.values())) > 1:
        words = [f"{_heading(summary, mine, 'test')}: {size}" for mine, size in sizes.items()]
        yield f"Datasets in the average: {', '.join(words)}."
    if short := _fewer_images(runs):
        words = [f"{name} {count} (K={shots})" for (shots, name), count in short.items()]
        yield f"Classes with fewer than K images, all of which were used: {', '.join(words)}."
    if summary.plan.table == "few-shot":
        several = "; of an average: of the average over datasets at each seed"
        yield (
            "± is the population standard deviation over seeds"
            f"{several if len(summary.datasets) > 1 else ''}."
        )
    b2n = any("base" in summary.parts(condition) for condition in summary.conditions)
    if len(summary.datasets) > 1 and b2n:
        yield (
            "HM of averages is the harmonic mean of the two averages; mean of HMs is the mean of "
            "the datasets' own harmonic means."
        )
    better = "lower" if summary.metric.lower_is_better else "higher"
    yield f"Best bold, second underlined; {better} is better."


def _fewer_images(runs: LabelledRuns) -> dict[tuple[int, str], int]:
    """The images of the smallest class, by shots and dataset, if it has fewer than K."""
    found: dict[tuple[int, str], int] = {}
    for _, run in runs:
        counts, shots = run.result.get("images_per_class"), run.spec.shots
        if counts and shots is not None and min(counts) < shots:
            key = (shots, run.spec.dataset)
            found[key] = min(min(counts), found.get(key, shots))
    return found
