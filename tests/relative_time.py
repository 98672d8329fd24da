"""How long something takes, in units of a fixed computation that a busy machine slows as much."""

from __future__ import annotations

import time
from collections.abc import Callable


def units(work: Callable[[], object], *, rounds: int = 3) -> float:
    """The least of some rounds; a unit is about 20 ms of an idle core."""

    def seconds(one: Callable[[], object]) -> float:
        began = time.process_time()
        one()
        return time.process_time() - began

    def unit() -> int:
        return sum(n * n for n in range(300_000))

    return min(seconds(work) / max(seconds(unit), seconds(unit)) for _ in range(rounds))
