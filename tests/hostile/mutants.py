"""Damage for the readers: changes of valid bytes, JSON values and texts, each made by a number.

They draw from `random.Random(number)`, not from hypothesis, whose bookkeeping takes longer than
most of these readers do; a failure is repeated by its number.
"""

from __future__ import annotations

import copy
import functools
import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NUMBERS = (0, 1, 2, 3, 7, 8, 16, 127, 128, 255, 256, 4096, 32767, 32768, 65535, 65536)
_NUMBERS = (*_NUMBERS, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
_WIDTHS = {"B": 1, "<H": 2, ">H": 2, "<I": 4, ">I": 4, "<Q": 8, ">Q": 8}
WORDS = (
    *(
        "",
        " ",
        "nan",
        "NaN",
        "inf",
        "-1",
        "0",
        "1e999",
        "null",
        "..",
        "/",
        "~",
        "a/../b",
        "\\",
        "#",
    ),
    *(
        "\0",
        "\r",
        "\n",
        "\u2028",
        "\ufeff",
        "\ud800",
        "é",
        "e\u0301",
        "日本",
        "\U0001f9e0",
        "x" * 300,
    ),
    *("train", "tset", "test/0", "a.nii#axis=9,index=x", "=cmd()", "%s", "{}", '"', "'", ",", ";"),
    *("schema_version", "sha256", "__class__", "$ref", "F32", "BF16", "I64", "BOOL", "F8_E4M3"),
)
_VALUES = (*_NUMBERS, *(-n for n in _NUMBERS), 0.5, 1e-320, 1e308, -0.0, 10**400)
_VALUES = (*_VALUES, float("nan"), float("inf"), -float("inf"))
_KINDS = ("flip", "set", "number", "cut", "drop", "insert", "repeat", "swap", "zero")
_FORMS = sorted(_WIDTHS)
Choose = random.Random
Make = Callable[[Choose], Any]


def either(*ways: Make) -> Make:
    """One of these ways to damage something."""
    return lambda choose: choose.choice(ways)(choose)


def then(way: Make, *changes: Callable[[Any], Any]) -> Make:
    """What a way gives, put through functions."""
    return lambda choose: functools.reduce(
        lambda value, change: change(value), changes, way(choose)
    )


def damaged(seeds: Sequence[bytes], *, magic: int = 16) -> Make:
    """One of the valid files, damaged in one to five places; or noise behind its first bytes."""

    def make(choose: Choose) -> bytes:
        content = choose.choice(seeds)
        if choose.random() < 0.2:
            return content[: choose.randint(1, magic)] + choose.randbytes(choose.randint(0, 200))
        return _damage(content, choose)

    return make


def _damage(content: bytes, choose: Choose) -> bytes:
    for _ in range(choose.randint(1, 5)):
        kind, share = choose.choice(_KINDS), choose.randrange(2**16)
        extra, length = choose.randbytes(choose.randint(1, 8)), choose.randint(1, 64)
        number, form = choose.choice(_NUMBERS), choose.choice(_FORMS)
        early = choose.random() < 0.5
        # Headers decide most: half of the damage is in the first few hundred bytes.
        reach = min(len(content), 400) if early else len(content)
        at = share * reach // 2**16
        before, here, after = content[:at], content[at : at + length], content[at + length :]
        if kind == "flip" and here:
            content = before + bytes([here[0] ^ (1 << extra[0] % 8)]) + here[1:] + after
        elif kind == "set":
            content = before + extra + content[at + len(extra) :]
        elif kind == "number":
            width = _WIDTHS[form]
            packed = struct.pack(form, number % (1 << 8 * width))
            content = before + packed + content[at + width :]
        elif kind == "cut":
            content = before
        elif kind == "drop":
            content = before + after
        elif kind == "insert":
            content = before + extra + here + after
        elif kind == "repeat":
            content = before + here * 3 + after
        elif kind == "swap":
            content = before + here[::-1] + after
        elif kind == "zero":
            content = before + bytes(len(here)) + after
    return content


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(child, (*path, key))


def changed(seeds: Sequence[Any]) -> Make:
    """A JSON value in which one to three parts were replaced, removed, renamed or doubled."""
    return lambda choose: _changed(seeds, choose)


def _changed(seeds: Sequence[Any], choose: Choose) -> Any:
    value = copy.deepcopy(choose.choice(seeds))
    for _ in range(choose.randint(1, 3)):
        if not isinstance(value, dict | list) or not value:
            break
        places = list(_places(value))
        # By depth first: otherwise a long list takes nearly all of the choices.
        depth = choose.choice(sorted({len(place) for place in places}))
        place = choose.choice([place for place in places if len(place) == depth])
        what = choose.choice(["replace", "replace", "remove", "rename", "double"])
        if not place:
            if what == "replace" and choose.random() < 0.1:
                value = _value(choose)
            continue
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        key = place[-1]
        if what == "replace":
            holder[key] = _value(choose)
        elif what == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == "rename":
            holder[_word(choose)] = holder.pop(key)
        else:
            holder[key] = [holder[key], holder[key]]
    return value


def _word(choose: Choose) -> str:
    if choose.random() < 0.7:
        return choose.choice(WORDS)
    ranges = ((32, 127), (0, 0x300), (0, 0x110000))
    return "".join(
        chr(choose.randrange(*choose.choice(ranges))) for _ in range(choose.randint(0, 8))
    )


def _value(choose: Choose, depth: int = 0) -> Any:
    """Any JSON value, most of them small and strange."""
    kind = choose.choice(("none", "truth", "number", "number", "word", "word", "list", "table"))
    if kind == "none" or depth > 3:
        return None
    if kind == "truth":
        return choose.random() < 0.5
    if kind == "number":
        near, any_bits = choose.randint(-3, 20), struct.unpack("<d", choose.randbytes(8))[0]
        return choose.choice((*_VALUES, near, any_bits, choose.uniform(-2, 2)))
    if kind == "word":
        return _word(choose)
    inside = [_value(choose, depth + 1) for _ in range(choose.randint(0, 4))]
    return inside if kind == "list" else {_word(choose): one for one in inside}


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def safetensors_bytes(header: Any, body: bytes) -> bytes:
    text = json_bytes(header)
    return struct.pack("<Q", len(text)) + text + body


def toml_text(value: Any) -> str:
    """A value as TOML, as far as it has such values; the others give text that is not TOML."""
    if not isinstance(value, dict):
        return _inline(value)
    return "\n".join(f"{json.dumps(str(key))} = {_inline(inner)}" for key, inner in value.items())


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{json.dumps(str(k))} = {_inline(v)}" for k, v in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)


def tables(choose: Choose) -> str:
    """A CSV or TSV text: known and unknown columns, strange cells, rows of any length."""
    columns = ("path", "label", "split", "patient", "group", "x", "Path", "", '"path"')
    header = ["path", "label"]
    if choose.random() < 0.5:
        header = choose.choices(columns, k=choose.randint(1, 5))
    whole = [["a.png", "benign"], ["b.png", "malignant"]] if choose.random() < 0.5 else []
    plain = ("a.png", "b.png", "c", "train", "test", "val", "1")
    rows = [
        [
            choose.choice(plain) if choose.random() < 0.5 else _word(choose)
            for _ in range(choose.randint(0, len(header) + 1))
        ]
        for _ in range(choose.randint(0, 6))
    ]
    mark, end = choose.choice(",,,;\t|"), choose.choice(["\n", "\r\n", "\r", "\n\n"])
    return end.join(mark.join(row) for row in [header, *whole, *rows])


def utf8(text: str) -> bytes:
    """Half characters become the bytes of Python's own, which are not UTF-8."""
    return text.encode(errors="surrogatepass")
