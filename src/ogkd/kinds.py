"""What kind of file something is, so that nothing of another kind is overwritten."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

_LARGEST = 1 << 26  # bytes of a JSON file that is read whole


def may_replace(new: Path, old: Path) -> bool:
    """Whether the old file is absent, empty, or of the kind of the new one."""
    if not old.is_file() or not old.stat().st_size or not new.stat().st_size:
        return True
    (kind, names), (old_kind, old_names) = _kind(new), _kind(old)
    if kind != old_kind:
        return False
    # Two tables or two JSON objects are of one kind if they have names in common.
    common, either = names & old_names, names | old_names
    return not either or len(common) >= 0.3 * len(either)


def is_text_file(path: Path) -> bool:
    """Whether an existing file looks like text: not like an image or a model."""
    return not _kind(path)[0].startswith(("binary", "safetensors"))


def _kind(path: Path) -> tuple[str, set[str]]:
    """The kind of a file by its content; of tables and JSON objects also the names in it."""
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if start[8:9] == b"{" and 0 in start[:8]:
        return "safetensors", set()
    if b"\0" in start or start[:4] in (b"%PDF", b"\x89PNG"):
        return f"binary {start[:2].hex()}", set()
    text = start.decode("utf-8-sig", errors="replace").lstrip()
    if text[:15].lower() == "<!doctype html>":
        return "page", {"ogkd"} if "ogkd" in text else {"another"}
    if text[:1] == "<":
        return "markup", set()
    first = text.splitlines()[0] if text else ""
    if text[:1] in "{[":
        with contextlib.suppress(OSError, ValueError, RecursionError):
            value = json.loads(first if path.stat().st_size > _LARGEST else path.read_text("utf-8"))
            return "json", set(value) if isinstance(value, dict) else set()
        with contextlib.suppress(ValueError, RecursionError):
            return "json", set(json.loads(first))
        return "text", set()
    return ("table", set(first.split(","))) if "," in first else ("text", set())
