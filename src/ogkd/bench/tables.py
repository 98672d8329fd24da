"""The tables of a plan in the paper's shape: which blocks, rows and columns each kind has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal

from ogkd.bench.render import Block, Entry, Table, to_csv, to_latex, to_markdown
from ogkd.bench.runs import LabelledRuns, Plan, RunsFolder
from ogkd.bench.tidy import Condition, Summary, changed_settings, prompts_used
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
    per_dataset: bool = True,
) -> str:
    """The table of a plan as text: the average over datasets first, then each dataset."""
    if format not in FORMATS:
        raise ConfigError(
            f"Unknown format '{format}'. Known: {', '.join(FORMATS)}.", argument="format"
        )
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs. Add datasets and methods to its grid.")
    runs = folder.finished(plan)
    summary = Summary(plan, runs, metric)
    noise = plan.table == "noise"
    blocks = tuple(_noise_blocks(summary) if noise else _blocks(summary, per_dataset=per_dataset))
    table = Table(
        name=plan.name,
        title=f"{plan.title}: {summary.metric.title}{summary.metric.unit}",
        metric=summary.metric,
        corner="Dataset" if noise else "Method",
        blocks=blocks,
        spread=plan.table == "few-shot",
        notes=tuple(_notes(summary, blocks, runs)),
    )
    return FORMATS[format](table)


def _blocks(summary: Summary, *, per_dataset: bool) -> Iterable[Block]:
    """Methods in rows, conditions in columns; a sweep has a block for each number of shots."""
    several, sweep = len(summary.datasets) > 1, summary.plan.table == "sweep"
    # Rows of one column compete; if a single row is swept, its columns do.
    alone = sweep and not summary.rows_compete
    pages: dict[str, list[Condition]] = {}  # what a sweep does not vary goes into a block's title
    for condition in summary.conditions:
        page = _words(summary, condition, swept=False) if sweep else ""
        pages.setdefault(page, []).append(condition)
    datasets = [None, *summary.datasets] if several and per_dataset else [None]
    for dataset, (page, conditions) in itertools.product(datasets, pages.items()):
        columns = [
            (condition, part)
            for condition in conditions
            if dataset is None or dataset in _planned_at(summary, condition)
            for part in _columns(summary, condition, average=dataset is None)
        ]
        if not columns:
            continue
        rows = []
        for label in summary.labels:
            entries = []
            for condition, part in columns:
                group = (condition.shots if alone else condition, part)
                entries.append(_entry(summary, label, dataset, condition, part, group))
            rows.append((label, tuple(entries)))
        name = dataset or (AVERAGE if several else summary.datasets[0])
        title = dataset or _average_title(summary)
        headings = [_heading(summary, *column, average=name == AVERAGE) for column in columns]
        yield Block(
            key=f"{name} {page}".strip(),
            title=f"{title}, {page}" if page else title,
            columns=tuple(headings),
            rows=tuple(rows),
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
        headings = []
        for condition, label, part in columns:
            words = ("" if page else _words(summary, condition), label, _PARTS[part])
            headings.append(" ".join(filter(None, words)))
        names = list(summary.datasets)
        if len(names) > 1:
            names += [AVERAGE, *([_MEAN_HM] if any(c[2] == "hm" for c in columns) else [])]
        yield Block(
            key=page or "noise",
            title=page or _average_title(summary),
            columns=tuple(headings),
            rows=tuple((name, tuple(_noise_row(summary, name, columns))) for name in names),
        )


def _noise_row(
    summary: Summary, name: str, columns: Iterable[tuple[Condition, str, str]]
) -> Iterable[Entry]:
    for condition, label, part in columns:
        group = (name, condition, part)
        if name != _MEAN_HM:
            dataset = None if name == AVERAGE else name
            yield _entry(summary, label, dataset, condition, part, group)
        elif part == "hm":
            yield _entry(summary, label, None, condition, "mean-hm", group)
        else:
            yield Entry(None)


def _entry(
    summary: Summary,
    label: str,
    dataset: str | None,
    condition: Condition,
    part: str,
    group: Hashable,
) -> Entry:
    if dataset is None:
        return Entry(summary.average(label, condition, part), group, over_datasets=True)
    return Entry(summary.of(label, dataset, condition, part), group)


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


def _notes(summary: Summary, blocks: Sequence[Block], runs: LabelledRuns) -> Iterable[str]:
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
    if any(cell.spec.judge == "val" for cell in summary.plan.cells):
        yield "Judged on validation images; the test images were not used."
    if changed := changed_settings(summary.plan):
        yield f"Settings changed from presets and defaults: {changed}."
    if runs:
        yield f"Prompts: {prompts_used(run for _, run in runs)}."
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


def _fewer_images(runs: LabelledRuns) -> dict[tuple[int, str], int]:
    """The images of the smallest class, by shots and dataset, if it has fewer than K."""
    found: dict[tuple[int, str], int] = {}
    for _, run in runs:
        counts, shots = run.result.get("images_per_class"), run.spec.shots
        if counts and shots is not None and min(counts) < shots:
            key = (shots, run.spec.dataset)
            found[key] = min(min(counts), found.get(key, shots))
    return found
