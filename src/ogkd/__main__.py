"""`ogkd` and `python -m ogkd`: the command line, and what must hold before it is imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Any

_STOPPED = 130  # the shell's code for Ctrl-C


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback at any moment."""
    _open_closed_streams()
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # such as `nohup`
        from ogkd.cli import main as run

        return run()
    signal.signal(signal.SIGINT, _leave)  # nothing can be lost yet
    stopped = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopped
        stopped = True
        if _importing(frame):
            os._exit(_STOPPED)
        raise KeyboardInterrupt

    def ignored(what: Any) -> None:
        # Python drops an interruption inside a destructor: the command would go on.
        if isinstance(what.exc_value, KeyboardInterrupt):
            os._exit(_STOPPED)
        sys.__unraisablehook__(what)

    try:
        from ogkd.cli import main as run

        sys.unraisablehook = ignored
        signal.signal(signal.SIGINT, stop)
        run()
    except Exception:
        if not stopped:
            raise
        sys.exit(_STOPPED)  # a library that was interrupted has raised an error of its own
    except KeyboardInterrupt:
        sys.exit(_STOPPED)
    finally:
        signal.signal(signal.SIGINT, _leave)  # while Python shuts down


def _importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, where libraries such as torch lose an interruption.

    Leaving at once loses nothing: files are written whole or not at all.
    """
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_STOPPED)


def _open_closed_streams() -> None:
    """After `ogkd ... >&-` the next file that is opened would be taken for the output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
