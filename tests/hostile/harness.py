"""Run the command line in forked children: cheap enough for thousands of hostile commands.

A child has a folder, 2 GiB of further memory, 20 seconds of a processor and three minutes; then
the system ends it. Its parent has imported everything: a command costs no imports.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib
import os
import pkgutil
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

SECONDS, WAIT, MEMORY = 20, 180, 2 << 30
CRASHED = 70  # exit code of a child whose harness itself failed


@dataclass(frozen=True)
class Outcome:
    """How one command ended."""

    words: tuple[str, ...]
    code: int
    output: str
    errors: str
    peak: int  # bytes of memory

    @property
    def late(self) -> bool:
        return self.code in (-signal.SIGALRM, -signal.SIGXCPU)

    @property
    def problem(self) -> str | None:
        """Why this must not happen, whatever the input was."""
        if self.late:
            return f"it took {WAIT} s, or {SECONDS} s of a processor"
        if self.code not in (0, 1, 2, 3):
            return f"exit code {self.code}"
        if "Traceback" in self.errors or "Traceback" in self.output:
            return "a traceback"
        if self.code and not (self.errors + self.output).strip():  # findings are an output
            return "it failed without a word"
        if self.code == 0 and has_nan(self.output):
            return "an answer that is not a number"
        if self.peak > MEMORY + resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024:
            return f"{self.peak / 2**30:.1f} GiB of memory"
        return None

    def __str__(self) -> str:
        text = f"{' '.join(self.words)}\n  {self.problem}\n{self.errors[-1500:]}"
        return text.encode("ascii", "backslashreplace").decode()  # names may be no text


def has_nan(text: str) -> bool:
    """Whether a cell or a JSON value of an output is not a number."""
    cells = text.replace(":", ",").replace("}", ",").replace("\n", ",").split(",")
    return any(cell.strip().lower() in ("nan", "inf", "-inf", "infinity") for cell in cells)


# What commands import from others only when they need it.
LATER = ("scipy.optimize", "scipy.ndimage", "scipy.sparse", "scipy.stats", "charset_normalizer")
LATER = (*LATER, "torch.onnx._internal.exporter._core", "onnxscript", "onnxruntime", "statistics")


def warm_up() -> None:
    """Import what commands import and build the command line, once, before the first fork."""
    import typer.main

    import ogkd
    from ogkd.backbones.loading import load_builtin
    from ogkd.cli import app

    for name in [
        *(module.name for module in pkgutil.walk_packages(ogkd.__path__, "ogkd.")),
        *LATER,
    ]:
        if not name.endswith("__main__"):
            with contextlib.suppress(ImportError):  # of an extra that is not installed
                importlib.import_module(name)
    tree = typer.main.get_command(app)
    typer.main.get_command = lambda _: tree
    torch.set_num_threads(1)
    load_builtin(device=torch.device("cpu"))
    load_builtin.cache_clear()  # every child loads it itself, as a new process does
    gc.collect()
    gc.freeze()  # otherwise the first collection of every child copies all of this


def run(
    words: Sequence[object], folder: Path, *, inside: Callable[[], None] | None = None
) -> Outcome:
    """Run `ogkd WORDS` in a child whose current folder is `folder`.

    `inside` is called in the child first: it may break the world.
    """
    line = tuple(map(str, words))
    out, err = folder / ".out", folder / ".err"
    child = os.fork()
    if child == 0:
        _be_the_child(line, folder, out, err, inside)
    _, status, usage = os.wait4(child, 0)
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err)]
    code = os.waitstatus_to_exitcode(status)
    return Outcome(line, code, texts[0], texts[1], usage.ru_maxrss * 1024)


def _be_the_child(
    words: Sequence[str], folder: Path, out: Path, err: Path, inside: Callable[[], None] | None
) -> None:
    try:
        os.setpgid(0, 0)
        signal.alarm(WAIT)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 5))
        for path, number, name in ((out, 1, "stdout"), (err, 2, "stderr")):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
            setattr(sys, name, open(number, "w", closefd=False))  # noqa: SIM115
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
        os.chdir(folder)
        sys.argv = ["ogkd", *words]
        from ogkd.cli import main

        if inside is not None:
            inside()
        try:
            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    finally:
        os._exit(CRASHED)


def contents(folder: Path) -> dict[str, str]:
    """A digest of every regular file below a folder, to see that nothing was changed."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
