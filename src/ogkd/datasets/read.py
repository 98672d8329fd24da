"""A dataset is a manifest: a table of path, label, split and group. One reader per layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ogkd.datasets.coop_json import read_coop_json
from ogkd.datasets.folders import read_folders
from ogkd.datasets.manifest import Item, Manifest, first_lines
from ogkd.datasets.medmnist import read_medmnist
from ogkd.datasets.tables import read_table
from ogkd.errors import ConfigError, DataError


def read_manifest(
    source: str | Path,
    *,
    root: str | Path | None = None,
    class_names: Sequence[str] | None = None,
) -> Manifest:
    """Read a dataset in any layout: what is at `source` decides which.

    Class folders, {train,val,test}/class folders, a CSV/TSV of path and label, a CoOp split
    (.json) or a MedMNIST file (.npz). `root` is where the paths of a table or split file count
    from, if not from its own folder. `class_names` gives the classes in label order; a label
    outside them is refused.
    """
    path = Path(source)
    base = None if root is None else Path(root)
    ending = path.suffix.lower()
    if base is not None and (path.is_dir() or ending == ".npz"):
        raise ConfigError(f"A root goes with a table or a split file, but {path} has its images.")
    if base is not None and not base.is_dir():
        raise DataError(f"There is no folder {base}, which is given as root. Check the path.")
    if path.is_dir():
        return read_folders(path, class_names=class_names)
    if not path.is_file():
        raise DataError(f"There is no folder or table {path}. Check the path.")
    if ending == ".json":
        return read_coop_json(path, root=base, class_names=class_names)
    if ending == ".npz":
        return read_medmnist(path, class_names=class_names)
    return read_table(path, root=base, class_names=class_names)


def require_files(items: Sequence[Item]) -> None:
    """Refuse items whose files are not there, naming them all at once."""
    files = dict.fromkeys(item.image.file for item in items)
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise DataError(
            f"{len(missing)} file(s) of the data are missing:\n{first_lines(missing)}\n"
            "Check the paths; in a table or split file they count from its own folder."
        )
