"""Commands that are killed at a moment of their own, which no other process can miss."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

CODE = """
import fnmatch, os, signal, sys
pattern, left = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]

def watched(rename):
    def call(source, target, *args, **options):
        global left
        rename(source, target, *args, **options)
        left -= fnmatch.fnmatch(os.fspath(target), pattern)
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return call

os.rename, os.replace = watched(os.rename), watched(os.replace)
from ogkd.cli import main
main()
"""


def die_after(words: Sequence[object], pattern: str, count: int = 1, **options: Any) -> None:
    """Run `ogkd WORDS`, which kill -9 ends as soon as `count` files or folders have such names."""
    command = [sys.executable, "-c", CODE, pattern, str(count), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == -signal.SIGKILL, done.stderr
