"""`ogkd` and `python -m ogkd`: the command line, ended by Ctrl-C without a traceback."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_STOPPED = 130  # the shell's code for Ctrl-C


def main() -> None:
    """Run the command line; Ctrl-C ends it without a traceback at any moment."""
    ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # such as `nohup`
    if not ignored:
        signal.signal(signal.SIGINT, _leave)  # nothing can be lost yet
    try:
        from ogkd.cli import main as run

        if not ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run()
    except KeyboardInterrupt:
        sys.exit(_STOPPED)
    finally:
        if not ignored:
            signal.signal(signal.SIGINT, _leave)  # while Python shuts down


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_STOPPED)


if __name__ == "__main__":
    main()
