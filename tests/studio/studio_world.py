"""What the tests of the studio share: the classes of the pile, and patience."""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "app"))  # for app_client

CLASSES = ["benign solid mass", "malignant mass", "normal breast tissue", "simple cyst"]


def kind_of(name: str) -> str:
    """The class of an image of the pile."""
    kind = name.rpartition("/")[2].removeprefix("zz-")[3:].removesuffix(".png").replace("_", " ")
    return kind if kind in CLASSES else CLASSES[0]


def until(condition, *, seconds=600):
    """Ask again and again until there is an answer that counts as true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := condition():
            return answer
        time.sleep(0.1)
    raise AssertionError("it did not happen in time")
