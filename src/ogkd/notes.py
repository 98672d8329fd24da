"""What users should know besides results: records of `ogkd.*` loggers.

A warning is heard in Python whether or not logging is set up; "info" is what long work does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class _Notes(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR and logging.lastResort is not None:
            logging.lastResort.handle(record)  # what has failed is printed, even with `--quiet`
        else:
            self._write(self.format(record))


@contextmanager
def notes_to(write: Callable[[str], None]) -> Iterator[None]:
    """Pass what is logged to `write`, and nowhere else."""
    logger = logging.getLogger("ogkd")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [_Notes(write)], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
