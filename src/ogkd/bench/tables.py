"""The tables of a plan in the paper's shape; which blocks, rows and columns each has."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from ogkd.bench.render import Block, Entry, Table, to_csv, to_latex, to_markdown
from ogkd.bench.results import Plan, RunsFolder
from ogkd.bench.summary import At, Summary
from ogkd.errors import ConfigError, DataError

__all__ = ["FORMATS", "Format", "make_table", "table_of"]

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
    """The table of a plan as text: all datasets together first, then each of them."""
    if format not in FORMATS:
        raise ConfigError(f"Unknown format '{format}'. Known: {', '.join(FORMATS)}.")
    return FORMATS[format](table_of(folder, plan, metric=metric, per_dataset=per_dataset))


def table_of(
    folder: RunsFolder, plan: Plan, *, metric: str = "accuracy", per_dataset: bool = True
) -> Table:
    """The same before it is text."""
    summary = Summary(folder, plan, metric)
    if not plan.cells:
        raise DataError(f"Plan '{plan.name}' has no runs. Add datasets and methods to its grid.")
    noise = plan.table == "noise"
    blocks = list(_noise_blocks(summary) if noise else _blocks(summary, per_dataset=per_dataset))
    return Table(
        name=plan.name,
        title=f"{plan.title}: {summary.metric.title}{summary.metric.unit}",
        metric=summary.metric,
        corner="Dataset" if noise else "Method",
        blocks=tuple(blocks),
        spread=plan.table == "few-shot",
        notes=tuple(_notes(summary, blocks)),
    )


def _blocks(summary: Summary, *, per_dataset: bool) -> Iterable[Block]:
    """Methods in rows, places in columns; a sweep at several shots has a block for each."""
    pages = _pages(summary)
    datasets: list[str | None] = [None]
    if per_dataset and len(summary.datasets) > 1:
        datasets += summary.datasets
    for dataset in datasets:
        for page, places in pages.items():
            columns = [
                (place, part)
                for place in places
                if dataset is None or dataset in _planned_at(summary, place)
                for part in _columns(summary, place, average=dataset is None)
            ]
            if not columns:
                continue
            name = dataset or (AVERAGE if len(summary.datasets) > 1 else summary.datasets[0])
            title = dataset or _average_title(summary)
            yield Block(
                key=f"{name} {page}".strip(),
                title=f"{title}, {page}" if page else title,
                columns=tuple(
                    # Of an average, which of the two harmonic means must be said.
                    _heading(summary, place, part).replace("HM", "HM of averages")
                    if part == "hm" and name == AVERAGE
                    else _heading(summary, place, part)
                    for place, part in columns
                ),
                rows=tuple(
                    (
                        label,
                        tuple(
                            _entry(
                                summary, label, dataset, place, part, _group(summary, place, part)
                            )
                            for place, part in columns
                        ),
                    )
                    for label in summary.labels
                ),
            )


def _noise_blocks(summary: Summary) -> Iterable[Block]:
    """Datasets in rows, methods in columns, as the appendix prints label noise.

    On base and novel classes each number of flips has a block; otherwise flips go sideways.
    """
    groups: dict[str, list[At]] = {}
    for place in summary.places:
        b2n = "base" in summary.parts(place)
        groups.setdefault(_words(summary, place) if b2n else "", []).append(place)
    for page, places in groups.items():
        columns = [
            (place, label, part)
            for place in places
            for label in summary.labels
            for part in _columns(summary, place, average=False)
        ]
        headings = [
            " ".join(filter(None, ("" if page else _words(summary, place), label, _PARTS[part])))
            for place, label, part in columns
        ]
        names = [*summary.datasets, *_average_rows(summary, places)]
        yield Block(
            key=page or "noise",
            title=page or _average_title(summary),
            columns=tuple(headings),
            rows=tuple((name, tuple(_noise_row(summary, name, columns))) for name in names),
        )


def _average_rows(summary: Summary, places: list[At]) -> list[str]:
    if len(summary.datasets) == 1:
        return []
    with_hm = any("hm" in _columns(summary, place, average=False) for place in places)
    return [AVERAGE, _PARTS["mean-hm"]] if with_hm else [AVERAGE]


def _noise_row(summary: Summary, name: str, columns: list[tuple[At, str, str]]) -> Iterable[Entry]:
    for place, label, part in columns:
        group = (name, place, part)
        if name == _PARTS["mean-hm"]:
            amount = summary.average(label, place, "mean-hm") if part == "hm" else None
            yield Entry(amount, group, average=True)
        else:
            yield _entry(summary, label, None if name == AVERAGE else name, place, part, group)


def _entry(
    summary: Summary, label: str, dataset: str | None, place: At, part: str, group: object
) -> Entry:
    if dataset is None:
        return Entry(summary.average(label, place, part), group, average=True)
    return Entry(summary.of(label, dataset, place, part), group)


def _group(summary: Summary, place: At, part: str) -> tuple[object, ...]:
    """Rows of one column compete; where a single row is swept, its columns do."""
    if summary.plan.table == "sweep" and not summary.rows_compete:
        return (place.shots, part)
    return (place, part)


def _pages(summary: Summary) -> dict[str, list[At]]:
    """Places that stand side by side; what a sweep does not vary goes to the block's title."""
    pages: dict[str, list[At]] = {}
    for place in summary.places:
        page = ""
        if summary.plan.table == "sweep":
            page = _words(summary, place, swept=False)
        pages.setdefault(page, []).append(place)
    return pages


def _columns(summary: Summary, place: At, *, average: bool) -> list[str]:
    parts = summary.parts(place)
    # A harmonic mean of errors would call the smallest of the two good.
    if "base" in parts and not summary.metric.lower_is_better:
        extra = ["hm", "mean-hm"] if average and len(summary.datasets) > 1 else ["hm"]
        parts[parts.index("novel") + 1 : parts.index("novel") + 1] = extra
    return parts


def _heading(summary: Summary, place: At, part: str) -> str:
    if summary.plan.table == "sweep":
        words = _swept(summary, place)
    elif len(summary.places) == 1 and part != "test":
        words = ""
    else:
        words = _words(summary, place)
    return " ".join(filter(None, (words, _PARTS[part])))


def _words(summary: Summary, place: At, *, swept: bool = True) -> str:
    """What tells a place from the others; `swept` False: without what the sweep varies."""
    axis = summary.plan.sweep
    words = []
    if summary.plan.table != "noise" or len({other.shots for other in summary.places}) > 1:
        words.append("all images" if place.shots is None else f"K={place.shots}")
    if any(other.flips for other in summary.places) and (swept or axis != "flips"):
        words.append(f"{place.flips} flips")
    if any(other.value is not None for other in summary.places) and swept:
        words.append(_swept(summary, place))
    return ", ".join(words)


def _swept(summary: Summary, place: At) -> str:
    if summary.plan.sweep in (None, "flips"):
        return f"{place.flips} flips"
    return "not swept" if place.value is None else f"{summary.plan.sweep}={place.value}"


def _planned_at(summary: Summary, place: At) -> set[str]:
    return {name for part in summary.parts(place) for name in summary.wanted(place, part)}


def _average_title(summary: Summary) -> str:
    count = len(summary.datasets)
    return f"Average over {count} datasets" if count > 1 else summary.datasets[0]


def _notes(summary: Summary, blocks: list[Block]) -> Iterable[str]:
    entries = [entry for block in blocks for _, row in block.rows for entry in row]
    if any(entry.amount and not entry.amount.complete for entry in entries):
        yield (
            "In brackets: runs are missing, of an average with the number of whole datasets; "
            "such a number is not compared with others."
        )
    sizes = {place: len(_planned_at(summary, place)) for place in summary.places}
    if len(set(sizes.values())) > 1:
        words = ", ".join(
            f"{_heading(summary, place, 'test')}: {size}" for place, size in sizes.items()
        )
        yield f"Datasets in the average: {words}."
    short = {(at.shots, name): count for (at, name), count in summary.fewest.items()}
    if short:
        words = ", ".join(f"{name} {count} (K={shots})" for (shots, name), count in short.items())
        yield f"Classes with fewer than K images, all of which were used: {words}."
    if summary.plan.table == "few-shot":
        yield (
            "± is the standard deviation over seeds (population); of an average it is the mean of "
            "the datasets' own."
        )
    if len(summary.datasets) > 1 and any("base" in summary.parts(at) for at in summary.places):
        yield (
            "HM of an average is the harmonic mean of the averages; "
            "the mean of HMs is the mean of the datasets' own HM."
        )
    better = "lower" if summary.metric.lower_is_better else "higher"
    yield f"Best bold, second underlined; {better} is better."
