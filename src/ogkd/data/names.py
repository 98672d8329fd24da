"""Names of splits and classes as people write them, and the checks that all readers share."""

from __future__ import annotations

import difflib
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from ogkd.errors import ConfigError, DataError

SPLITS = ("train", "val", "test")
# What people call them: without this, Training/ and Testing/ would be taken for two classes.
_SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "valid": "val",
    "validation": "val",
    "testing": "test",
}
_SHOWN = 20  # lines of a message before "and N more"


def split_name(name: str) -> str:
    """One spelling for each split: "Training" is "train"."""
    lower = name.strip().lower()
    return _SPLIT_NAMES.get(lower, lower)


def misspelt_split(name: str) -> str | None:
    """The split that a name is probably a misspelling of, such as "trian"; None for others."""
    split = split_name(name)
    if split in SPLITS or not split.isalpha():
        return None
    near = difflib.get_close_matches(split, _SPLIT_NAMES, n=1, cutoff=0.7)
    return _SPLIT_NAMES[near[0]] if near else None


def clean_name(name: str) -> str:
    # One form for each letter: some systems store "é" as two characters, others as one.
    return " ".join(unicodedata.normalize("NFC", name).replace("_", " ").split())


def fold_name(name: str) -> str:
    """Remove from a class name what may differ between two spellings of it."""
    return clean_name(name).casefold()


def read_class_names(raw: Iterable[str]) -> tuple[str, ...]:
    """Names as people write them, refused where two of them would read the same."""
    names = tuple(clean_name(name) for name in raw)
    if "" in names:
        raise DataError("A class name is empty, or consists of underscores only.")
    for name in names:  # control characters, or not UTF-8, such as a folder from an old disk
        if {unicodedata.category(sign) for sign in name} & {"Cc", "Cs"}:
            raise DataError(f"The class name {name!a} has characters that are not text.")
    counts = Counter(name.casefold() for name in names)
    if twice := sorted({name for name in names if counts[name.casefold()] > 1}):
        raise DataError(
            f"Class names that differ only in case, spaces or underscores: {', '.join(twice)}."
        )
    return names


def class_labels(
    source: Path, labels: Sequence[str], class_names: Sequence[str] | None
) -> tuple[tuple[str, ...], dict[str, int]]:
    """The classes, and the number of each label that occurs in the data.

    Without a list of classes, the labels are the classes. A label outside a list is refused; a
    whole number counts as a label where no class has such a name.
    """
    names = read_class_names(labels if class_names is None else class_names)
    if len(names) < 2:
        raise DataError(
            f"{source} has {len(names)} class(es); at least 2 are needed, each with a folder or a "
            "label of its own."
        )
    if class_names is None:
        return names, {name: number for number, name in enumerate(labels)}
    by_name = {str(number): number for number in range(len(names))}
    by_name |= {fold_name(name): number for number, name in enumerate(names)}
    known = {raw: by_name.get(fold_name(raw), -1) for raw in labels}
    if unknown := [raw for raw, number in known.items() if number < 0]:
        raise DataError(
            f"{source} has labels outside the class list: {', '.join(unknown)}. "
            f"The classes are: {', '.join(names)}."
        )
    return names, known


def normal_labels(names: Sequence[str], normal: Sequence[str] | None) -> tuple[int, ...]:
    """Numbers of the classes that mean "no finding", by `normal` or by their own name."""
    if normal is None:
        words = [set(name.lower().replace("-", " ").split()) for name in names]
        return tuple(n for n, each in enumerate(words) if each & {"normal", "healthy"})
    known = {fold_name(name): number for number, name in enumerate(names)}
    if unknown := [name for name in normal if fold_name(name) not in known]:
        raise ConfigError(
            f"There is no class '{unknown[0]}' to be the normal one. The classes are: "
            f"{', '.join(names)}.",
            argument="normal",
        )
    return tuple(sorted({known[fold_name(name)] for name in normal}))


def first_lines(lines: Sequence[object]) -> str:
    """The first lines of a long list, indented, and how many more there are.

    A last sentence that all lines share, such as what to do, is given once, below them.
    """
    texts, advice = without_shared_end([str(line) for line in lines])
    shown = [f"  {text}" for text in texts[:_SHOWN]]
    if len(lines) > _SHOWN:
        shown.append(f"  ... and {len(lines) - _SHOWN} more")
    return "\n".join([*shown, advice] if advice else shown)


def without_shared_end(lines: Sequence[str]) -> tuple[Sequence[str], str]:
    """Lines without the last sentence that all of them share, and that sentence.

    >>> without_shared_end(["a is bad. Fix it.", "b is bad. Fix it."])
    (['a is bad.', 'b is bad.'], 'Fix it.')
    """
    advice = lines[0].rpartition(". ")[2] if len(lines) > 1 else ""
    if not advice or not all(line.endswith(f". {advice}") for line in lines):
        return lines, ""
    return [line.removesuffix(f" {advice}") for line in lines], advice
