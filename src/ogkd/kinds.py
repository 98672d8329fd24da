"""What kind of file something is, so that nothing of another kind is overwritten."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

_LARGEST = 1 << 26  # bytes of a JSON file that is read whole
# Only a fit and a calibration write these, and never through here.
_OF_A_MODEL = ("model.json", "weights.safetensors", "support.safetensors", "calibration.json")


def may_replace(new: Path, old: Path) -> bool:
    """Whether the old file is absent, empty, or of the kind of the new one; never a model's."""
    if not old.is_file() or not old.stat().st_size or not new.stat().st_size:
        return True
    if old.name in _OF_A_MODEL and (old.parent / _OF_A_MODEL[0]).is_file():
        return False
    (kind, names), (old_kind, old_names) = _kind(new), _kind(old)
    if kind != old_kind:
        return False
    # Two tables, JSON objects or files of tensors are of one kind if they have names in common.
    common, either = names & old_names, names | old_names
    return not either or len(common) >= 0.3 * len(either)


def is_text_file(path: Path) -> bool:
    """Whether an existing file looks like text: not like an image or a model."""
    return not _kind(path)[0].startswith(("binary", "safetensors"))


def _kind(path: Path) -> tuple[str, set[str]]:
    """The kind of a file by its content, and the names in a table, a JSON object or tensors."""
    with path.open("rb") as file:
        start = file.read(1 << 16)
    if start[8:9] == b"{" and 0 in start[:8]:
        with contextlib.suppress(ValueError, RecursionError):
            header = json.loads(start[8 : 8 + int.from_bytes(start[:8], "little")])
            return "safetensors", {*header} - {"__metadata__"}
        return "safetensors", {"more names than fit in the first bytes"}
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
