"""`ogkd` and `python -m ogkd`: the command line, and how Ctrl-C ends it."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with one line."""
    try:
        from ogkd.cli import main as run

        run()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)  # the shell's code for it


if __name__ == "__main__":
    main()
