"""What an evaluation says, in a form that the terminal, a notebook and the report render alike.

A section is one function from the value of `evaluate` to a `Section`, or to None where it has
nothing to say: see `class_sections.py`.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from ogkd.cells import terminal_width, text_table
from ogkd.evaluation.names import Metric

Values = Mapping[str, Any]  # the value of `evaluate`
_FEW_COLUMNS = 6  # classes whose names fit above columns
_SHORT = 14  # characters of such a name


@dataclass(frozen=True)
class Table:
    """Rows of cells, the first of which names the row; without `head`, pairs of name and value."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()  # what each row means, for pages
    shades: tuple[tuple[float, ...], ...] = ()  # 0..1, of each cell but the first
    errors_off_diagonal: bool = False  # shaded as errors


@dataclass(frozen=True)
class Line:
    """A line of a chart; `kind` is its class in the style sheet."""

    kind: str
    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Dot:
    """A dot whose area grows with `weight` 0..1, tied to where it would stand if x were y."""

    x: float
    y: float
    weight: float
    text: str


@dataclass(frozen=True)
class Chart:
    """Shares against shares; `text` describes in words what the chart shows."""

    text: str
    x_title: str
    y_title: str
    lines: tuple[Line, ...]
    dots: tuple[Dot, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Card:
    """Copies of an image, each a (data URI, what it shows, caption), with words below."""

    title: str
    text: str
    images: tuple[tuple[str, str, str], ...]
    file: str = ""


@dataclass(frozen=True)
class Section:
    """A heading, and what stands below it; one without a key continues the section before it."""

    title: str
    text: tuple[str, ...] = ()
    table: Table | None = None
    charts: tuple[Chart, ...] = ()
    key: str = ""  # the address within a page
    short: str = ""  # in a list of contents; "" if the title is short
    cards: tuple[Card, ...] = ()
    brief: bool = False  # shown even where only the essential is


def sections_of(
    makers: Sequence[Callable[[Values], Section | None]], result: Values
) -> list[Section]:
    """The sections that have something to say, in the words for what was evaluated."""
    made = [section for make in makers if (section := make(result)) is not None]
    return [in_units(section, result) for section in made]


def text_lines(sections: Sequence[Section]) -> Iterator[str]:
    """Sections as plain text, as wide as the terminal."""
    for section in sections:
        yield f"\n{section.title}"
        for paragraph in section.text:
            yield from wrapped(paragraph)
        if section.table is not None:
            yield from text_table(section.table.head, section.table.rows)


def wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, terminal_width(), break_on_hyphens=False)


def in_units(value: Any, result: Values) -> Any:
    """Words about images as words about patients, if those were evaluated; records of words, too.

    >>> in_units("3 of 4 images", {"unit": "patient", "class_names": ["cyst"]})
    '3 of 4 patients'
    """
    unit = result.get("unit", "image")
    if unit == "image" or "image" in "".join(result["class_names"]).lower():
        return value
    if isinstance(value, str):
        return re.sub(r"\bimage(s?)\b", rf"{unit}\1", value)
    if isinstance(value, tuple):
        return tuple(in_units(part, result) for part in value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: in_units(part, result) for name, part in parts.items()})
    return value


def name_columns(names: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns and rows of a table of classes; names that do not fit above columns are numbered."""
    if len(names) <= _FEW_COLUMNS and max(map(len, names)) <= _SHORT:
        return tuple(names), tuple(names)
    numbers = tuple(str(number) for number in range(1, len(names) + 1))
    return numbers, tuple(f"{number} {name}" for number, name in zip(numbers, names, strict=True))


def percent(value: float) -> str:
    """Whole percent, with a decimal only where it would otherwise claim all or nothing."""
    text = f"{100 * value:.0f}"
    return f"{100 * value:.1f} %" if text in ("0", "100") and value not in (0, 1) else f"{text} %"


def cell(values: Values, key: str) -> str:
    """A share in percent for a table, with its interval if there is one: "61.0 [45-76]"."""
    value, ends = values[key], values.get("intervals", {}).get(key)
    text = "-" if value is None else f"{100 * value:.1f}"
    if ends is None:
        return text
    low, high = (100 * end for end in ends)
    # 99.8 is not in [100-100]: where whole percents exclude the value, they are too coarse
    coarse = value is not None and not round(low) <= 100 * value <= round(high)
    return f"{text} [{low:.{coarse:d}f}-{high:.{coarse:d}f}]"


def metric_row(metric: Metric, values: Values) -> tuple[str, str, str]:
    """Name with unit, value and interval of a metric."""
    value, ends = values[metric.name], values["intervals"].get(metric.name, [])
    shown = "-" if value is None else metric.text(value)
    interval = " to ".join(map(metric.text, ends)) if ends is not None else "too few to tell"
    return metric.heading, shown, interval if values["bootstrap"]["resamples"] else ""


def join_words(words: Sequence[str]) -> str:
    """The words in a row, with commas and a final "and"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def interval_text(result: Values) -> str:
    """How intervals were computed."""
    how = result["bootstrap"]
    if not how["resamples"]:
        return "No intervals were computed."
    grouped = how["by"] == "group"
    text = (
        f"Intervals: {100 * how['level']:.0f} %, exact (Clopper-Pearson) for shares of images, by "
        f"{how['resamples']} bootstrap resamples of {'patients (groups)' if grouped else 'images'} "
        "for the others, unless there are too few to tell."
    )
    if grouped:
        return f"{text} Images of one patient (group) are alike and count for fewer."
    if result["unit"] != "image":
        return text
    return (
        f"{text} If several images come from one patient and the data does not say so, these "
        "intervals are too narrow."
    )
