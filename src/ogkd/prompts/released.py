"""The prompt bank that the published numbers were computed with: fetched once, then in the cache.

It is read from Python source without running it. Its texts are kept as they are, in their order
and with repetitions, because prototypes, the selector and budgets depend on all of them.
"""

from __future__ import annotations

import ast
import contextlib
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ogkd.errors import ConfigError, DataError
from ogkd.files import cache_dir, read_bytes, read_toml, write_json

RELEASED = "released"


@functools.cache
def pin() -> SimpleNamespace:
    """Which file it is, and what is known of it, as in released.toml."""
    return SimpleNamespace(**read_toml(Path(__file__).with_name("released.toml")))


def released_path() -> Path:
    """Where the bank is once it was fetched or imported."""
    return cache_dir() / "prompts" / f"{RELEASED}.json"


def require_released() -> Path:
    """The file of the bank, if it is on this machine."""
    if not (path := released_path()).is_file():
        raise ConfigError(
            "The released prompt bank is not on this machine: run `ogkd prompts fetch released`.",
            argument="prompts",
        )
    return path


def fetch_released() -> dict[str, list[str]]:
    """Download the bank's file at its pinned commit, check it and store the bank."""
    from ogkd.download import GITHUB, download, hub_offline, mirrored

    url = f"{GITHUB}/{pin().repository}/{pin().commit}/{pin().path}"
    if hub_offline():
        raise DataError(
            f"HF_HUB_OFFLINE is set, so {url} is not downloaded; get it on another machine "
            "and run `ogkd prompts fetch FILE`."
        )
    path = download(mirrored(url), released_path().with_name(Path(pin().path).name)).path
    try:
        return import_released(path)
    finally:
        path.unlink(missing_ok=True)


def import_released(path: Path) -> dict[str, list[str]]:
    """Read the bank from a copy of its Python file, check it and store it."""
    try:
        content = read_bytes(path)
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.", argument="source") from error
    bank = _literal(content, pin().variable)
    if problem := _problem(bank):
        raise DataError(
            f"{path} is not the released prompt bank: {problem}. It is {pin().path} of "
            f"{pin().repository} at {pin().commit}.",
            argument="source",
        )
    write_json(released_path(), bank, ours=True)
    return dict(bank)


def _literal(content: bytes, variable: str) -> Any:
    """The literal that Python source assigns to a variable; it is parsed and never run."""
    with contextlib.suppress(SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        for statement in ast.parse(content).body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == variable:
                return ast.literal_eval(statement.value)
    return None


def _problem(bank: Any) -> str:
    """How a bank differs from what is known of the pinned one; "" if it does not."""
    from ogkd.prompts.bank import read_bank, shipped_banks

    known = pin()
    if not isinstance(bank, dict) or not all(isinstance(texts, list) for texts in bank.values()):
        return f"it has no dictionary {known.variable} of class name -> texts"
    if len(bank) != known.classes:
        return f"it has {len(bank)} classes, not {known.classes}"
    for name in (name for path in shipped_banks().values() for name in read_bank(path)):
        if (count := len(bank.get(name, ()))) != known.texts:  # a class of the benchmarks
            return f"'{name}' has {count} texts, not {known.texts}"
    return ""
