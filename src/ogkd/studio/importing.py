"""Labels from elsewhere: a CSV of path and label, Label Studio's JSON, COCO's JSON.

Other tools name files in their own ways, so names are matched with the images of the project: by
the whole address, else by the longest common end of the path, else by the file name, if that is
unique.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from ogkd.datasets.tables import read_table
from ogkd.errors import DataError
from ogkd.files import read_json

_UPLOAD = re.compile(r"^[0-9a-f]{8}-")  # what Label Studio puts before a name


@dataclass(frozen=True)
class Found:
    """One label of a file: the name of the image there, its class, its patient if known."""

    name: str
    label: str
    patient: str | None = None


def read_labels(path: Path) -> list[Found]:
    """The labels of a file in any of the formats; what it is decides its content."""
    if path.suffix.lower() != ".json":
        table = read_table(path, root=Path()).require_classes("The studio")
        names = table.class_names
        return [Found(i.image.as_posix(), names[i.label], i.group) for i in table.items]
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} cannot be read as JSON ({error}).") from error
    try:
        found = list(_coco(content) if isinstance(content, dict) else _label_studio(content))
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise DataError(
            f"{path.name} is neither Label Studio's JSON nor COCO's ({error!r}). Export it again "
            "as JSON with classification labels, or give a CSV with the columns path and label."
        ) from error
    if not found:
        raise DataError(f"{path.name} has no classification labels.")
    return found


def _coco(content: dict[str, Any]) -> Iterable[Found]:
    """COCO: images, categories, and annotations that join them; boxes are not looked at."""
    names = {row["id"]: str(row["name"]) for row in content["categories"]}
    files = {row["id"]: str(row["file_name"]) for row in content["images"]}
    labels: dict[Any, set[str]] = {}
    for row in content["annotations"]:
        labels.setdefault(row["image_id"], set()).add(names[row["category_id"]])
    # An image with objects of several classes has no one class.
    return [Found(files[image], *some) for image, some in labels.items() if len(some) == 1]


def _label_studio(content: Sequence[Any]) -> Iterable[Found]:
    """Label Studio's JSON (tasks with annotations) and JSON-MIN (one flat object per task)."""
    for task in content:
        if "annotations" not in task:  # JSON-MIN
            named = [v for k, v in task.items() if k in ("image", "img", "file", "path")]
            label = next((v for k, v in task.items() if k in ("choice", "label", "class")), None)
            choices = [label] if isinstance(label, str) else []
        else:
            named = list(task["data"].values())
            done = [one for one in task["annotations"] if not one.get("was_cancelled")]
            results = done[-1]["result"] if done else []
            choices = [
                choice
                for one in results
                if one.get("type") == "choices"
                for choice in one["value"]["choices"]
            ]
        if len(choices) == 1:
            first = [name for name in named if isinstance(name, str)]
            yield Found(_plain_name(first[0]), str(choices[0]))


def _plain_name(url: str) -> str:
    """The path in the address of a task; local files are named in its query."""
    parts = urlsplit(url)
    local = parse_qs(parts.query).get("d")
    path = local[0] if local else unquote(parts.path)
    folder, _, name = path.rpartition("/")
    return f"{folder}/{_UPLOAD.sub('', name)}" if "/upload/" in path else path


def match(
    found: Sequence[Found], known: Sequence[str]
) -> tuple[list[tuple[int, Found]], list[str]]:
    """Pairs of an image's number and its label, and the names that no image or several have."""
    by_name: dict[str, list[int]] = {}
    for number, address in enumerate(known):
        by_name.setdefault(address.rpartition("/")[2], []).append(number)
    pairs: list[tuple[int, Found]] = []
    lost: list[str] = []
    for one in found:
        candidates = by_name.get(one.name.rpartition("/")[2], [])
        best = _longest_end(one.name, candidates, known)
        pairs += [(best, one)] if best is not None else []
        lost += [] if best is not None else [one.name]
    return pairs, lost


def _longest_end(name: str, candidates: Sequence[int], known: Sequence[str]) -> int | None:
    wanted = name.split("/")[::-1]

    def common(number: int) -> int:
        parts = known[number].split("/")[::-1]
        pairs = zip(wanted, parts, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(parts)))

    lengths = sorted(((common(number), number) for number in candidates), reverse=True)
    if not lengths or (len(lengths) > 1 and lengths[0][0] == lengths[1][0]):
        return None
    return lengths[0][1]
