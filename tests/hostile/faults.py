"""Make the n-th operation on files fail, or kill the process there.

Operations are counted below `ogkd.files` and everything else that a command does with files in
its own folder: opening, reading, writing, syncing, renaming, making folders. Of many reads or
writes of one file in a row the first two are counted, of images the first two and every sixteenth:
the others find the same state. Images of the data are outside of the folder: threads read them in
no fixed order, and a number would not name one operation.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

FAILURES = (errno.ENOSPC, errno.EIO, errno.EMFILE, errno.EACCES, errno.EINTR)
KILL = -1
POINTS = ("replace", "rename", "fsync", "mkdir", "chmod", "link", "truncate")


def break_at(number: int, how: int, below: Path, seen: Path) -> Callable[[], None]:
    """What to call in a child: its operation `number` fails with `how`, or kills it (KILL).

    A letter for each operation is written to `seen`: "w" if it may change something, or "r".
    """

    def install() -> None:
        count, last, in_a_row = 0, ("", ""), 0
        images: Counter[str] = Counter()
        written = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

        def step(what: str, path: object, changes: bool = True) -> None:
            nonlocal count, last, in_a_row
            if isinstance(path, str | bytes | os.PathLike):
                name = os.path.abspath(os.fsdecode(path))  # noqa: PTH100 - without its dots
                if not Path(name).is_relative_to(below) or name == str(seen):
                    return
                images[what] += name.endswith(".png")
                if name.endswith(".png") and images[what] > 2 and images[what] % 16:
                    return
            in_a_row, last = in_a_row + 1 if last == (what, str(path)) else 1, (what, str(path))
            if in_a_row > 2:
                return
            count += 1
            os.pwrite(written, b"w" if changes else b"r", count - 1)
            if count != number:
                return
            if how == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(how, os.strerror(how), str(path))

        def counted(what: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def call(path: object, *args: Any, **options: Any) -> Any:
                step(what, path, what != "read")
                return function(path, *args, **options)

            return call

        for name in POINTS:
            setattr(os, name, counted(name, getattr(os, name)))
        opened = io.open

        def open_counted(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if isinstance(file, int):
                return opened(file, mode, *args, **options)
            step("open", file, not {*mode}.isdisjoint("wax+"))
            stream = opened(file, mode, *args, **options)
            for name in ("read", "write"):
                function = getattr(stream, name)
                call = counted(name, lambda _, *args, function=function: function(*args))
                setattr(stream, name, partial(call, file))
            return stream

        io.open = builtins.open = open_counted  # type: ignore[assignment]

    return install
