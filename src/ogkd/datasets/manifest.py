"""What a dataset is: labelled images and class names, and the checks that all readers share."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ogkd.errors import DataError
from ogkd.images import ImageRef, SliceRule

SPLITS = ("train", "val", "test")
# What people call them: without this, Training/ and Testing/ would be taken for two classes.
_SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}
PRESENT, ABSENT, UNKNOWN = 1, 0, -1  # what is known about a finding in an image
NO_CLASS = -1  # the label of an image that has findings instead
_SHOWN = 20  # lines of a message before "and N more"


@dataclass(frozen=True)
class Item:
    """One labelled image; `split` is empty if the dataset has no splits.

    `group` is the patient or lesion, whose images are never both learned from and evaluated on.
    Pictures of one `bag` (an exam, the slices of a volume) share one answer, `label`; `shows` is
    what the picture itself shows, if that is known (see `ogkd.datasets.bags`).
    Where each image may show several things, `findings` says of each of them: PRESENT, ABSENT or
    UNKNOWN, and `label` is NO_CLASS.
    """

    image: ImageRef
    label: int
    split: str = ""
    group: str | None = None
    bag: str | None = None
    shows: int | None = None
    findings: tuple[int, ...] | None = None

    @property
    def answer(self) -> int | tuple[int, ...]:
        """What is known about the image: its class, or its findings."""
        return self.label if self.findings is None else self.findings

    @property
    def present(self) -> tuple[int, ...]:
        """The numbers of its class, or of the findings that are present."""
        if self.findings is None:
            return (self.label,)
        return tuple(f for f, said in enumerate(self.findings) if said == PRESENT)

    @property
    def marks(self) -> tuple[int, ...]:
        """What a part of the data should have its share of: the class, or each known finding."""
        if self.findings is None:
            return (self.label,)
        return tuple(2 * f + said for f, said in enumerate(self.findings) if said != UNKNOWN)


@dataclass(frozen=True)
class Manifest:
    """Labelled images and the class names their labels count through, or names of findings.

    `ignored` says what was at the source but is not in the dataset, and what to do about it.
    """

    items: tuple[Item, ...]
    class_names: tuple[str, ...]
    ignored: tuple[tuple[str, str], ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        from ogkd.datasets.show import manifest_text

        return manifest_text(self)

    @property
    def has_splits(self) -> bool:
        return any(item.split for item in self.items)

    @property
    def has_findings(self) -> bool:
        """What is asked of an image: several findings, each present or not, or one class."""
        return bool(self.items) and self.items[0].findings is not None

    def label_text(self, item: Item) -> str:
        """The class of an image in words; or its findings, with a ? if they are unknown."""
        if item.findings is None:
            return self.class_names[item.label]
        mark = {PRESENT: "{}", UNKNOWN: "{}?"}
        pairs = zip(self.class_names, item.findings, strict=True)
        return "|".join(mark[said].format(name) for name, said in pairs if said in mark) or "none"

    def require_classes(self, who: str) -> Manifest:
        """The dataset itself; refused, in the name of `who`, if it has several findings."""
        if self.has_findings:
            raise DataError(
                f"{who} needs one class for each image, but this data lists several findings "
                f"({', '.join(self.class_names)}). Give a table with a column label."
            )
        return self

    def finding_counts(self, items: Sequence[Item] | None = None) -> list[tuple[int, int, int]]:
        """For each finding, how many images (default: all) have it, do not, are unknown."""
        rows = [item.findings or () for item in (self.items if items is None else items)]
        found = [Counter(row[f] for row in rows) for f in range(len(self.class_names))]
        return [(one[PRESENT], one[ABSENT], one[UNKNOWN]) for one in found]

    @property
    def sha256(self) -> str:
        """A digest of the table, not of the pixels: class names, paths, labels, splits, groups.

        Paths count from the folder that contains all of the images, so that a dataset may be
        moved; the order of the items does not matter.
        """
        whole = [Path(os.path.normpath(Path(str(item.image)).absolute())) for item in self.items]
        try:
            root = os.path.commonpath([path.parent for path in whole])
        except ValueError as error:  # none, or several drives
            raise DataError("The dataset has no images, or they are not on one drive.") from error
        rows = sorted(
            [path.relative_to(root).as_posix(), item.answer, item.split, item.group or ""]
            for item, path in zip(self.items, whole, strict=True)
        )
        text = json.dumps([self.class_names, rows], ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def sliced(self, rule: SliceRule | None) -> Manifest:
        """The dataset with that slice of each volume that does not name one."""
        if rule is None:
            return self
        items = (replace(item, image=item.image.sliced(rule)) for item in self.items)
        return replace(self, items=tuple(items))

    def part(self, split: str) -> list[Item]:
        """The items of a split; all of them if the dataset has no splits."""
        if not self.has_splits:
            return list(self.items)
        wanted = split_name(split)
        found = [item for item in self.items if item.split == wanted]
        if not found:
            known = sorted({item.split for item in self.items})
            raise DataError(f"There is no split '{split}'. This dataset has: {', '.join(known)}.")
        return found


def by_bag(items: Sequence[Item]) -> dict[str, list[Item]]:
    """The items of each bag; one without a bag is alone in it."""
    bags: dict[str, list[Item]] = {}
    for number, item in enumerate(items):
        name = f"{item.image} ({number})" if item.bag is None else item.bag
        bags.setdefault(name, []).append(item)
    return bags


def split_name(name: str) -> str:
    """One spelling for each split: "Training" is "train"."""
    lower = name.strip().lower()
    return _SPLIT_NAMES.get(lower, lower)


def misspelt_split(name: str) -> str | None:
    """The split that a name is probably a misspelling of, such as "trian"; None for others."""
    found = split_name(name)
    if found in SPLITS or not found.isalpha():
        return None
    near = difflib.get_close_matches(found, _SPLIT_NAMES, n=1, cutoff=0.7)
    return _SPLIT_NAMES[near[0]] if near else None


def read_class_names(raw: Iterable[str]) -> tuple[str, ...]:
    """Names as people write them, refused where two of them would read the same."""
    names = tuple(_clean(name) for name in raw)
    if "" in names:
        raise DataError(
            "A class name is empty, or consists of underscores only. Give each class a name."
        )
    if odd := next((name for name in names if _unreadable(name)), None):
        raise DataError(
            f"The class name {odd!a} has characters that are not text; a folder name or a file may "
            "not be UTF-8. Rename the class."
        )
    counts = Counter(name.casefold() for name in names)
    if twice := sorted({name for name in names if counts[name.casefold()] > 1}):
        raise DataError(
            f"Class names that differ only in case, spaces or underscores: {', '.join(twice)}. "
            "Rename them so that each class has one name."
        )
    return names


def _clean(name: str) -> str:
    # One form for each letter: some systems store "é" as two characters, others as one.
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def _unreadable(name: str) -> bool:
    """Whether a name has control characters or is not UTF-8, such as a folder from an old disk."""
    return any(unicodedata.category(sign) in ("Cc", "Cs") for sign in name)


def refuse_twice(source: Path, places: Sequence[tuple[str, Item]]) -> None:
    """Refuse a file that is named twice; `places` says where each item was read."""
    seen: dict[str, tuple[str, Item]] = {}
    complaints = []
    for place, item in places:
        key = os.path.normpath(str(item.image))
        if key not in seen:
            seen[key] = (place, item)
            continue
        first, other = seen[key]
        what = "the same label" if other.answer == item.answer else "another label"
        complaints.append(f"{item.image}: {first} and {place}, with {what}")
    if complaints:
        raise DataError(
            f"{source} lists {len(complaints)} file(s) twice:\n{first_lines(complaints)}\n"
            "Keep one line for each image."
        )


def first_lines(lines: Sequence[object]) -> str:
    """The first lines of a long list, indented, and how many more there are."""
    shown = [f"  {line}" for line in lines[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"  ... and {len(lines) - _SHOWN} more")
    return "\n".join(shown)


def class_labels(
    source: Path, found: Sequence[str], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The classes, and the label of each name that was found in the data.

    Without a list of classes, those found are the classes. A name outside a list is refused; a
    whole number counts as a label where no class has such a name.
    """
    if class_names is None:
        return read_class_names(found), {name: label for label, name in enumerate(found)}
    names = read_class_names(class_names)
    labels = {name.casefold(): label for label, name in enumerate(names)}
    numbers = {str(label): label for label in range(len(names))}
    known = {raw: labels.get(_clean(raw).casefold(), numbers.get(raw, -1)) for raw in found}
    if strange := [raw for raw, label in known.items() if label < 0]:
        raise DataError(
            f"{source} has labels outside the class list: {', '.join(strange)}. "
            f"The classes are: {', '.join(names)}."
        )
    return names, known
