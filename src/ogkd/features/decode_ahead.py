"""Decoding beside encoding: the next batch is read while the caller works on this one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ogkd.errors import DataError

_WORKERS = 2
Job = TypeVar("Job")
Found = TypeVar("Found")


def decode_ahead(
    decode: Callable[[Job], Found], jobs: Sequence[Job], *, batch_size: int = 32
) -> Iterator[list[Found | DataError]]:
    """Results in order, batch by batch; a job that fails with a DataError gives that error.

    At most two batches are held, so memory does not grow with the number of jobs.
    """

    def attempt(job: Job) -> Found | DataError:
        try:
            return decode(job)
        except DataError as error:
            return error

    starts = iter(range(0, len(jobs), batch_size))
    waiting: deque[list[Future[Found | DataError]]] = deque()
    with ThreadPoolExecutor(max_workers=_WORKERS) as pool:

        def submit() -> None:
            if (start := next(starts, None)) is not None:
                batch = jobs[start : start + batch_size]
                waiting.append([pool.submit(attempt, job) for job in batch])

        submit()
        while waiting:
            submit()
            yield [future.result() for future in waiting.popleft()]
