"""What a command wrote, as numbers and as words, and how either is compared with a record.

Numbers are kept by the name of their column or key where the output is a table or JSON, and in
order of appearance where it is prose. Words have `#` for each number, and `<...>` for what differs
from one run or machine to the next: times, versions, digests, paths.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping
from html import unescape
from itertools import groupby
from pathlib import Path
from typing import Any

# Keys of JSON whose values are not compared as numbers: other versions, digests, a drawing's data.
NOT_NUMBERS = {
    *("schema", "schema_version", "reliability", "seconds", "versions", "largest_difference"),
}

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?!\w|\.\w)")
VOLATILE = (
    (re.compile(r"^Encoded \d+ .*$", re.M), "<encoded>"),
    (re.compile(r"\b[\d.]+ (?:images|volumes|texts)/s"), "<rate>"),
    (
        re.compile(r"(?<![\w.])[\d.]+ (?:s|ms|min|h)(?: to [\d.]+ (?:s|min|h))?(?: left)?(?!\w)"),
        "<time>",
    ),
    (re.compile(r", at most about [\d:]+ left"), ""),  # the last run of a grid has none
    (re.compile(r"(?<![\w.])[\d.]+ (?:kB|KB|MB|MiB|GB)\b"), "<size>"),
    (re.compile(r"(probability) [\d.]+e-\d+"), r"\1 <difference>"),
    (re.compile(r"^Images per second.*$", re.M), "<speed>"),
    (
        re.compile(r"\b\d{4}-\d{2}-\d{2}(?:(?: at |[T ])[\d:.]+(?: UTC|Z|[+-]\d\d:?\d\d)?)?"),
        "<date>",
    ),
    (re.compile(r"(?<![\w.])(?:sha256:)?[0-9a-f]{10,}(?![\w.])"), "<digest>"),
    (re.compile(r"\b\d+\.\d+\.\d+(?:[+.]\w+)*"), "<version>"),
)


def numbers_of(text: str) -> list[float]:
    return [_number(match) for match in NUMBER.findall(without_volatile(text))]


def words_of(text: str) -> str:
    """The text with `#` for numbers; equal lines in a row are one, with a mark."""
    lines = [
        " ".join(NUMBER.sub("#", line).split()) for line in without_volatile(text).splitlines()
    ]
    marked = [(line, len(list(group))) for line, group in groupby(lines)]
    return "\n".join(f"{line} (repeated)" if n > 1 and line else line for line, n in marked).strip()


def without_volatile(text: str) -> str:
    for pattern, replacement in VOLATILE:
        text = pattern.sub(replacement, text)
    return text


def read_output(text: str, kind: str) -> tuple[Any, str]:
    """Numbers and words of an output: kind is csv, json, jsonl, html or text."""
    if kind in ("csv", "jsonl"):
        table = csv.DictReader(io.StringIO(text))
        rows = list(table) if kind == "csv" else [json.loads(line) for line in text.splitlines()]
        flat = [_flat_row(row) for row in rows]
        return flat, "\n".join(dict.fromkeys(key for row in flat for key in row))
    if kind == "json":
        content = json.loads(text)
        return dict(_flat_json(content)), words_of("\n".join(_json_lines(content)))
    text = visible_text(text) if kind == "html" else text
    return numbers_of(text), words_of(text)


def read_tensors(path: Path) -> tuple[Any, str]:
    """Shape, mean and the first numbers of each row of the tensors of a file."""
    from safetensors.numpy import load_file

    tensors = load_file(path)
    numbers: dict[str, Any] = {}
    for name, tensor in sorted(tensors.items()):
        numbers[f"{name}/shape"] = list(tensor.shape)
        rows = tensor.reshape(len(tensor), -1).astype(float)
        numbers[f"{name}/mean"] = float(rows.mean())
        numbers[f"{name}/rows"] = [[_rounded(x) for x in row[:4]] for row in rows[:24]]
    return numbers, "\n".join(sorted(tensors))


def visible_text(page: str) -> str:
    """What a reader of a page sees, without the drawings."""
    page = re.sub(r"(?s)<(style|script|svg|title)\b.*?</\1>", "", page)
    texts = (" ".join(unescape(text).split()) for text in re.split(r"<[^>]*>", page))
    return "\n".join(text for text in texts if text)


def differences(
    expected: Any, observed: Any, *, tolerance: float, where: str = ""
) -> Iterator[str]:
    """Where `observed` is not what was recorded; keys that it has in addition do not count."""
    if isinstance(expected, Mapping) and isinstance(observed, Mapping):
        for key, value in expected.items():
            if key in observed:
                inner = f"{where}/{key}"
                yield from differences(value, observed[key], tolerance=tolerance, where=inner)
            else:
                yield f"{where}/{key}: {value} is gone"
    elif isinstance(expected, list) and isinstance(observed, list):
        if len(expected) != len(observed):
            yield f"{where}: {len(observed)} values instead of {len(expected)}"
            return
        for index, (value, other) in enumerate(zip(expected, observed, strict=True)):
            inner = f"{where}[{index}]"
            yield from differences(value, other, tolerance=tolerance, where=inner)
    elif not _same(expected, observed, tolerance):
        yield f"{where}: {observed!r} instead of {expected!r}"


def number_differences(
    recorded: Mapping[str, Any], observed: Mapping[str, Any], *, strict: bool
) -> Iterator[str]:
    """The differences of two outputs: 1e-6, or 2e-4 because processors differ."""
    tolerance = 1e-6 if strict else 2e-4
    for part, numbers in recorded.items():
        current = observed.get(part)
        prose = isinstance(numbers, list) and all(map(_is_number, numbers))
        if prose and not strict and isinstance(current, list) and len(current) == len(numbers):
            # 64.85 is printed as 64.8 here and as 64.9 there.
            current = [
                wanted if _same_but_for_rounding(wanted, number) else number
                for wanted, number in zip(numbers, current, strict=True)
            ]
        yield from differences(numbers, current, tolerance=tolerance, where=part)


def _same_but_for_rounding(expected: float, observed: float) -> bool:
    if isinstance(expected, int) or isinstance(observed, int):
        return expected == observed
    decimals = len(repr(observed).partition(".")[2])
    return abs(expected - observed) < 1.01 * 10**-decimals


def dump_numbers(numbers: Mapping[str, Any]) -> str:
    """JSON with a line for each row or key: a diff shows which number changed."""
    blocks = []
    for name, value in numbers.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in value)
            blocks.append(f' "{name}": [\n  {rows}\n ]')
        elif isinstance(value, dict):
            keys = ",\n  ".join(
                f"{json.dumps(key, ensure_ascii=False)}: {json.dumps(item, ensure_ascii=False)}"
                for key, item in value.items()
            )
            blocks.append(f' "{name}": {{\n  {keys}\n }}')
        else:
            blocks.append(f' "{name}": {json.dumps(value)}')
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def _same(expected: Any, observed: Any, tolerance: float) -> bool:
    if isinstance(expected, str) and isinstance(observed, str):
        # Cells such as "slice 4 (0.731)": equal words, near numbers.
        if NUMBER.sub("#", expected) != NUMBER.sub("#", observed):
            return False
        pairs = zip(NUMBER.findall(expected), NUMBER.findall(observed), strict=True)
        return all(_near(_number(a), _number(b), tolerance) for a, b in pairs)
    if _is_number(expected) and _is_number(observed):
        return _near(expected, observed, tolerance)
    return type(expected) is type(observed) and expected == observed


def _near(expected: float, observed: float, tolerance: float) -> bool:
    if isinstance(expected, int) and isinstance(observed, int):
        return expected == observed
    # 1.0001: the last of six printed decimals may differ by one.
    return abs(expected - observed) <= 1.0001 * tolerance * max(1.0, abs(expected))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(text: str) -> float:
    return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)


def _rounded(value: float) -> float:
    return float(f"{value:.8g}")


def _flat_row(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A row as column -> value; words stay, because a row's words are its answer."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            flat |= _flat_row(value, f"{key}/")
        elif isinstance(value, str) and NUMBER.fullmatch(value):
            flat[key] = _number(value)
        else:
            flat[key] = without_volatile(value) if isinstance(value, str) else value
    return flat


def _flat_json(content: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The numbers of a JSON value by their path; a list of numbers is one entry."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if key not in NOT_NUMBERS:
                yield from _flat_json(value, f"{where}/{key}" if where else key)
    elif isinstance(content, list) and not all(isinstance(x, int | float) for x in content):
        for index, value in enumerate(content):
            yield from _flat_json(value, f"{where}/{index}")
    elif isinstance(content, list):
        if content:
            yield where, [_rounded(x) if isinstance(x, float) else x for x in content]
    elif isinstance(content, float):
        yield where, _rounded(content)
    elif isinstance(content, int):
        yield where, content


def _json_lines(content: Any, where: str = "") -> Iterator[str]:
    """A line for each key: its name and its words."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from _json_lines(value, f"{where}/{key}" if where else key)
    elif isinstance(content, list) and any(isinstance(x, Mapping) for x in content):
        yield from dict.fromkeys(
            line for value in content for line in _json_lines(value, f"{where}/*")
        )
    elif isinstance(content, list):
        kinds = {words_of(json.dumps(x, ensure_ascii=False)) for x in content}
        yield f"{where}: [{', '.join(sorted(kinds))}]"
    else:
        yield words_of(f"{where}: {json.dumps(content, ensure_ascii=False)}")
