from __future__ import annotations

import asyncio
import itertools
import socket
import time

import pytest

from ogkd.app import limits
from ogkd.app.limits import Guesses, caller, patient_protocol

uvicorn = pytest.importorskip("uvicorn")


def test_guesses_are_free_at_first_and_then_wait_ever_longer():
    now = [0.0]
    guesses = Guesses(lambda: now[0])
    waits = []
    for _ in range(14):
        guesses.wrong("192.0.2.7")
        waits.append(guesses.wait("192.0.2.7"))
    assert waits == [0, 0, 0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert guesses.wait("192.0.2.8") == 0
    now[0] += 60
    assert guesses.wait("192.0.2.7") == 0
    guesses.right("192.0.2.7")
    guesses.wrong("192.0.2.7")
    assert guesses.wait("192.0.2.7") == 0


def test_in_ten_seconds_an_address_has_less_than_ten_guesses():
    now, tried = [0.0], 0
    guesses = Guesses(lambda: now[0])
    while now[0] < 10:
        if guesses.wait("192.0.2.7") == 0:
            tried += 1
            guesses.wrong("192.0.2.7")
        now[0] += 0.001
    assert tried < 10


def test_the_memory_of_guesses_is_bounded(monkeypatch):
    monkeypatch.setattr(limits, "_ADDRESSES", 3)
    guesses = Guesses()
    for number in range(9):
        guesses.wrong(f"192.0.2.{number}")
    assert len(guesses._wrong) == 3


def test_addresses_of_one_caller_have_one_name():
    assert caller("2a00:1::5") == caller("2a00:1::99:7")
    assert caller("2a00:1::5") != caller("2a00:1:0:1::5")
    assert caller("::ffff:192.0.2.7") == caller("192.0.2.7") == "192.0.2.7"
    assert caller("fe80::1%eth0") == "fe80::1%eth0"
    assert caller("") == ""


@pytest.fixture
def closed_after(monkeypatch):
    """Seconds until a small server closes each connection on which these bytes were sent."""
    monkeypatch.setattr(limits, "HEADER_SECONDS", 0.4)
    monkeypatch.setattr(limits, "BODY_SECONDS", 0.8)

    async def app(scope, receive, send):
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def visit(sent, count, until):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            settings = {"log_level": "critical", "lifespan": "off", "timeout_keep_alive": 2}
            config = uvicorn.Config(app, http=patient_protocol(), **settings)
            server = uvicorn.Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))

            async def one():
                began = time.monotonic()
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(sent)
                try:
                    answer = await reader.read()
                except ConnectionResetError:
                    answer = b""
                finally:
                    writer.close()
                return time.monotonic() - began, answer

            visits = [asyncio.create_task(one()) for _ in range(count)]
            found = [
                await each
                for each in itertools.islice(asyncio.as_completed(visits, timeout=300), until)
            ]
            await asyncio.sleep(0.3)  # for those that should not be closed to be closed
            still_open = [each for each in visits if not each.done()]
            for each in still_open:
                each.cancel()
            await asyncio.gather(*still_open, return_exceptions=True)
            server.should_exit = server.force_exit = True
            await serving
            assert len(still_open) == count - until
            return found

    def run(sent, count=1, until=None):
        return asyncio.run(visit(sent, count, count if until is None else until))

    return run


HEAD = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"


@pytest.mark.parametrize(
    ("sent", "least"), [(b"", 0.3), (b"GET / HT", 0.3), (HEAD, 0.3), (HEAD + b"\r\nabc", 0.7)]
)
def test_a_request_that_does_not_end_is_closed(closed_after, sent, least):
    ((seconds, answer),) = closed_after(sent)
    assert seconds > least
    assert answer == b""


def test_a_whole_request_is_answered_and_the_connection_kept(closed_after):
    ((seconds, answer),) = closed_after(HEAD + b"\r\n0123456789")
    assert b"ok" in answer
    assert seconds > 1.5  # until the pause between requests is over


def test_one_address_elsewhere_has_only_so_many_connections(closed_after, monkeypatch):
    monkeypatch.setattr(limits, "CONNECTIONS", 3)
    monkeypatch.setattr(limits, "_is_here", lambda _: False)
    request = HEAD + b"Connection: close\r\n\r\n0123456789"
    monkeypatch.setattr(limits, "HEADER_SECONDS", 10_000)
    assert len(closed_after(HEAD, 10, until=7)) == 7  # and three stay open
    monkeypatch.undo()
    assert all(b"ok" in answer for _, answer in closed_after(request, 10))
