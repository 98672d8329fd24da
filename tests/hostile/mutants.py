"""Damage for the readers: hypothesis strategies that change valid bytes, JSON values and texts."""

from __future__ import annotations

import copy
import json
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

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
words = st.sampled_from(WORDS) | st.text(max_size=8)
numbers = (
    st.sampled_from([*_NUMBERS, *(-n for n in _NUMBERS), 0.5, 1e-320, 1e308, -0.0, 10**400])
    | st.integers(-3, 20)
    | st.floats()
)
values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
# What to do, where (as a share of the file, so that it shrinks well), with what, how long.
_steps = st.tuples(
    st.sampled_from(["flip", "set", "number", "cut", "drop", "insert", "repeat", "swap", "zero"]),
    st.integers(0, 2**16 - 1),
    st.binary(min_size=1, max_size=8),
    st.integers(1, 64),
    st.sampled_from(_NUMBERS),
    st.sampled_from(sorted(_WIDTHS)),
    st.booleans(),
)


def damaged(seeds: Sequence[bytes], *, magic: int = 16) -> st.SearchStrategy[bytes]:
    """One of the valid files, damaged in one to five places; or noise behind its first bytes."""
    noise = st.tuples(st.sampled_from(seeds), st.integers(1, magic), st.binary(max_size=200))
    return st.one_of(
        st.builds(_apply, st.sampled_from(seeds), st.lists(_steps, min_size=1, max_size=5)),
        noise.map(lambda drawn: drawn[0][: drawn[1]] + drawn[2]),
    )


def _apply(content: bytes, steps: list[tuple[Any, ...]]) -> bytes:
    for kind, share, extra, length, number, form, early in steps:
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


@st.composite
def changed(draw: st.DrawFn, seeds: Sequence[Any]) -> Any:
    """A JSON value in which one to three parts were replaced, removed, renamed or doubled."""
    value = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 3))):
        if not isinstance(value, dict | list) or not value:
            break
        places = list(_places(value))
        # By depth first: otherwise a long list takes nearly all of the choices.
        depth = draw(st.sampled_from(sorted({len(place) for place in places})))
        place = draw(st.sampled_from([place for place in places if len(place) == depth]))
        what = draw(st.sampled_from(["replace", "replace", "remove", "rename", "double"]))
        if not place:
            if what == "replace" and draw(st.integers(0, 9)) == 0:
                value = draw(values)
            continue
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        key = place[-1]
        if what == "replace":
            holder[key] = draw(values)
        elif what == "remove":
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif what == "rename":
            holder[draw(words)] = holder.pop(key)
        else:
            holder[key] = [holder[key], holder[key]]
    return value


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


@st.composite
def tables(draw: st.DrawFn) -> str:
    """CSV or TSV texts: known and unknown columns, strange cells, rows of any length."""
    columns = st.sampled_from(
        ["path", "label", "split", "patient", "group", "x", "Path", "", '"path"']
    )
    header = draw(st.just(["path", "label"]) | st.lists(columns, min_size=1, max_size=5))
    cells = st.sampled_from(["a.png", "b.png", "c", "train", "test", "val", "1"]) | words
    rows = draw(st.lists(st.lists(cells, min_size=0, max_size=len(header) + 1), max_size=6))
    whole = [["a.png", "benign"], ["b.png", "malignant"]] if draw(st.booleans()) else []
    mark = draw(st.sampled_from(",,,;\t|"))
    end = draw(st.sampled_from(["\n", "\r\n", "\r", "\n\n"]))
    return end.join(mark.join(row) for row in [header, *whole, *rows])


def utf8(text: str) -> bytes:
    """Half characters become the bytes of Python's own, which are not UTF-8."""
    return text.encode(errors="surrogatepass")
