"""The prompt bank that the published numbers were computed with: fetched once, then in the cache.

It is read from Python source without running it. Its texts are kept as they are, in their order
and with repetitions, because prototypes, the selector and budgets depend on all of them.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ogkd.errors import ConfigError, DataError
from ogkd.files import blob_id, cache_dir, read_bytes, write_json

RELEASED = "released"
_MOST = 1 << 26  # bytes of the source file


@dataclass(frozen=True)  # not a pydantic model, whose import would delay `ogkd --help`
class Pin:
    """Which file it is, and what is known of it; see released.toml."""

    repository: str
    commit: str
    path: str
    variable: str
    licence: str
    classes: int
    texts: int
    different: dict[str, int] = field(default_factory=dict)
    sha256: str | None = None
    git_blob: str | None = None

    @property
    def url(self) -> str:
        from ogkd.download import GITHUB

        return f"{GITHUB}/{self.repository}/{self.commit}/{self.path}"


@functools.cache
def pin() -> Pin:
    text = Path(__file__).with_name("released.toml").read_text(encoding="utf-8")
    return Pin(**tomllib.loads(text))


def released_path() -> Path:
    """Where the bank is once it was fetched or imported."""
    return cache_dir() / "prompts" / f"{RELEASED}.json"


def require_released() -> Path:
    """The file of the bank; an error that says how to get it if it is missing."""
    if not (path := released_path()).is_file():
        raise ConfigError(
            "The released prompt bank is not on this machine. Fetch it once: `ogkd prompts fetch "
            "released`; or use the package's own prompts: 'ours'.",
            argument="prompts",
        )
    return path


def fetch_released() -> dict[str, list[str]]:
    """Download the bank's file at its pinned commit, check it and store the bank."""
    from ogkd.download import download, hub_offline, mirrored

    if hub_offline():
        raise DataError(
            f"HF_HUB_OFFLINE is set, so {pin().url} is not downloaded. Unset it, or download the "
            "file on another machine and give it here: `ogkd prompts fetch FILE`."
        )
    target = released_path().with_name(Path(pin().path).name)
    path = download(mirrored(pin().url), target, sha256=pin().sha256).path
    try:
        return import_released(path)
    finally:
        path.unlink(missing_ok=True)


def import_released(path: Path) -> dict[str, list[str]]:
    """Read the bank from a copy of its Python file, check it and store it."""
    try:
        content = read_bytes(path, most=_MOST)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Check the path.") from error
    bank = _literal(path, content)
    if problem := _problem(content, bank):
        raise DataError(
            f"{path} is not the released prompt bank: {problem}. It is {pin().path} of "
            f"{pin().repository} at {pin().commit}. Any other bank is used by giving its file."
        )
    write_json(released_path(), bank, ours=True)
    source = {
        "url": pin().url,
        "licence": pin().licence,
        "file_sha256": hashlib.sha256(content).hexdigest(),
        "git_blob": blob_id(content),
    }
    write_json(released_path().with_name(f"{RELEASED}.source.json"), source, ours=True)
    return bank


def python_literals(path: Path, content: str | bytes) -> Iterator[tuple[list[str], Any]]:
    """The names and the value of each assignment in Python source, which is parsed, never run.

    In place of a value that is not a literal: the error that says so.
    """
    try:
        statements = ast.parse(content).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DataError(f"{path} is not Python source ({error}).") from error
    for statement in statements:
        if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
            both = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            value: Any
            try:
                value = ast.literal_eval(statement.value)
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
                value = error
            yield [target.id for target in both if isinstance(target, ast.Name)], value


def _literal(path: Path, content: bytes) -> dict[str, list[str]]:
    """The dictionary of the pinned variable."""
    bank: Any = None
    for names, value in python_literals(path, content):
        bank = value if pin().variable in names else bank
    if isinstance(bank, Exception):
        raise DataError(f"{path}: {pin().variable} is not a plain dictionary ({bank}).")
    if not isinstance(bank, dict) or not all(
        isinstance(name, str) and isinstance(row, list) and all(isinstance(t, str) for t in row)
        for name, row in bank.items()
    ):
        raise DataError(f"{path} has no dictionary {pin().variable} of class name -> texts.")
    return bank


def _problem(content: bytes, bank: dict[str, list[str]]) -> str:
    """How a file differs from the pinned one; "" if it agrees with all that is known."""
    known = pin()
    if known.sha256 and (sha := hashlib.sha256(content).hexdigest()) != known.sha256:
        return f"its sha256 is {sha}, not {known.sha256}"
    if known.git_blob and (blob := blob_id(content)) != known.git_blob:
        return f"its git blob id is {blob}, not {known.git_blob}"
    if len(bank) != known.classes:
        return f"it has {len(bank)} classes, not {known.classes}"
    from ogkd.prompts.bank import read_bank, shipped_banks

    for path in shipped_banks().values():  # the classes of the benchmarks
        for name in read_bank(path):
            if (count := len(bank.get(name, ()))) != known.texts:
                return f"'{name}' has {count} texts, not {known.texts}"
    for name, count in known.different.items():
        if (different := len(set(bank[name]))) != count:
            return f"'{name}' has {different} different texts, not {count}"
    return ""
