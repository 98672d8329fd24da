"""What one caller can take from the page: connections, seconds for a request, password guesses."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

HEADER_SECONDS = 10.0  # from the connection, or a request's first byte, to the end of its headers
BODY_SECONDS = 20.0  # for the body, and one more for each of:
_BODY_BYTES = 100_000
CONNECTIONS = 64  # of one address other than this machine
_FREE = 5  # wrong passwords before an address has to wait: a page sends several requests at once
_LONGEST = 60.0  # seconds of waiting
_ADDRESSES = 10_000  # remembered


def caller(address: str) -> str:
    """One name for all addresses that a single caller can have: of IPv6 it is the /64 network."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False)) if found.is_global else address
    return str(found)


class Guesses:
    """Wrong passwords by caller; after a few, each one doubles the time until the next try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, tuple[int, float]] = OrderedDict()  # count, blocked until

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 if it may now."""
        _, until = self._wrong.get(caller(address), (0, 0.0))
        return max(0.0, until - self._clock())

    def wrong(self, address: str) -> None:
        name = caller(address)
        count = self._wrong.pop(name, (0, 0.0))[0] + 1
        pause = min(_LONGEST, 2.0 ** min(count - _FREE, 10)) if count >= _FREE else 0.0
        self._wrong[name] = (count, self._clock() + pause)
        if len(self._wrong) > _ADDRESSES:
            self._wrong.popitem(last=False)

    def right(self, address: str) -> None:
        self._wrong.pop(caller(address), None)


def patient_protocol() -> type[Any]:
    """HTTP of uvicorn with an end to its patience: slow requests and hoarded connections close."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    opened: Counter[str] = Counter()

    class Protocol(H11Protocol):
        _deadline: asyncio.TimerHandle | None = None
        _in_body = False
        _caller = ""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._caller = caller(self.client[0]) if self.client else ""
            opened[self._caller] += 1
            if opened[self._caller] > CONNECTIONS and not _is_here(self._caller):
                transport.close()
            self._expect(HEADER_SECONDS)

        def data_received(self, data: bytes) -> None:
            if self._deadline is None:  # the first bytes of another request
                self._expect(HEADER_SECONDS)
            super().data_received(data)
            state = self.conn.their_state
            if state is h11.SEND_BODY and not self._in_body:
                self._in_body = True
                length = dict(self.headers).get(b"content-length", b"0")
                size = int(length) if length.isdigit() else 0
                self._expect(BODY_SECONDS + size / _BODY_BYTES)
            elif state not in (h11.IDLE, h11.SEND_BODY):
                self._expect(None)

        def connection_lost(self, exc: Exception | None) -> None:
            self._expect(None)
            opened[self._caller] -= 1
            if not opened[self._caller]:
                del opened[self._caller]
            super().connection_lost(exc)

        def _expect(self, seconds: float | None) -> None:
            """Close the connection after these seconds; None: nothing is due."""
            if self._deadline is not None:
                self._deadline.cancel()
                self._deadline = None
            if seconds is None:
                self._in_body = False
            else:
                self._deadline = self.loop.call_later(seconds, self.transport.close)

    return Protocol


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
