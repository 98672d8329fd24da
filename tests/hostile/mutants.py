"""Damage for the readers: changes of valid bytes and JSON values, each made by a number.

They draw from `random.Random(number)`, not from hypothesis, whose bookkeeping takes longer than
most of these readers do; a failure is repeated by its number.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_NUMBERS = (0, 1, 2, 7, 127, 255, 256, 32768, 65535, 65536, 2**31 - 1, 2**32 - 1, 2**63, 2**64 - 1)
_WIDTHS = {"B": 1, "<H": 2, ">H": 2, "<I": 4, ">I": 4, "<Q": 8, ">Q": 8}
_WORDS = (
    *("", " ", "nan", "inf", "-1", "1e999", "null", "..", "/", "~", "a/../b", "\\", "#", "\0"),
    *("\r", "\n", "\u2028", "\ufeff", "\ud800", "e\u0301", "\U0001f9e0", "x" * 300, "=cmd()"),
    *("train", "tset", "a.nii#axis=9,index=x", "%s", "{}", '"', "'", ",", ";", "sha256"),
    *("schema_version", "__class__", "$ref", "F32", "BF16", "I64", "BOOL", "F8_E4M3"),
)
_VALUES = (
    *(None, True, [], {}, [[]], {"": None}, 0.5, 1e-320, 1e308, -0.0, 10**400),
    *(float("nan"), float("inf"), *_NUMBERS, *(-n for n in _NUMBERS), *_WORDS),
)
Choose = random.Random
Make = Callable[[Choose], Any]


def damaged(seeds: Sequence[bytes], *, magic: int = 16) -> Make:
    """One of the valid files, damaged in one to five spots; or noise behind its first bytes."""

    def make(choose: Choose) -> bytes:
        content = choose.choice(seeds)
        if choose.random() < 0.2:
            return content[: choose.randint(1, magic)] + choose.randbytes(choose.randint(0, 200))
        for _ in range(choose.randint(1, 5)):
            content = _damage(content, choose)
        return content

    return make


def _damage(content: bytes, choose: Choose) -> bytes:
    # Headers decide most: half of the damage is in the first few hundred bytes.
    reach = min(len(content), 400) if choose.random() < 0.5 else len(content)
    at, length = choose.randrange(reach + 1), choose.randint(1, 64)
    before, here, after = content[:at], content[at : at + length], content[at + length :]
    form = choose.choice(sorted(_WIDTHS))
    number = struct.pack(form, choose.choice(_NUMBERS) % (1 << 8 * _WIDTHS[form]))
    noise = choose.randbytes(choose.randint(1, 8))
    cut, missing, longer = b"", after, choose.choice((noise + here, here * 3)) + after
    replaced = (new + content[at + len(new) :] for new in (noise, number, bytes(len(here))))
    return before + choose.choice((cut, missing, longer, here[::-1] + after, *replaced))


def changed(seeds: Sequence[Any]) -> Make:
    """JSON in which one to three values were replaced, removed, renamed or doubled."""

    def make(choose: Choose) -> bytes:
        value = copy.deepcopy(choose.choice(seeds))
        for _ in range(choose.randint(1, 3)):
            value = _change(value, choose)
        return json_bytes(value)

    return make


def _change(value: Any, choose: Choose) -> Any:
    paths = list(_paths(value))
    # By depth first: otherwise a long list takes nearly all of the choices.
    depth = choose.choice(sorted({len(path) for path in paths}))
    path = choose.choice([path for path in paths if len(path) == depth])
    new = copy.deepcopy(choose.choice(_VALUES))
    if not path:
        return new if choose.random() < 0.05 else value
    *parents, key = path
    holder = value
    for parent in parents:
        holder = holder[parent]
    match choose.choice(["replace", "replace", "remove", "rename", "double"]):
        case "remove":
            del holder[key]
        case "rename" if isinstance(holder, dict):
            holder[choose.choice(_WORDS)] = holder.pop(key)
        case "double":
            holder[key] = [holder[key], copy.deepcopy(holder[key])]
        case _:
            holder[key] = new
    return value


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(child, (*path, key))


def json_bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


def either(*ways: Make) -> Make:
    return lambda choose: choose.choice(ways)(choose)


def json_files(value: Any) -> Make:
    """A JSON file, changed as a value or as bytes."""
    return either(changed([value]), damaged([json_bytes(value)]))


def tensor_files(content: bytes) -> Make:
    """A safetensors file whose header is changed as JSON, or whose bytes are."""
    (length,) = struct.unpack_from("<Q", content)
    headers, body = changed([json.loads(content[8 : 8 + length])]), content[8 + length :]

    def make(choose: Choose) -> bytes:
        header = headers(choose)
        return struct.pack("<Q", len(header)) + header + body

    return either(make, damaged([content]))
