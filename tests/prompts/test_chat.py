from __future__ import annotations

import email.utils
import socket
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ogkd.errors import ConfigError
from ogkd.prompts import chat
from ogkd.prompts.chat import Chat, Endpoint
from stub_endpoint import Reply, Stub, stub_endpoint

QUESTION = [{"role": "user", "content": "Describe it."}]
KEY = "sk-secret-123"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with stub_endpoint() as found:
        yield found


@pytest.fixture
def waits() -> list[float]:
    return []


def make(stub: Stub, waits: list[float], **options) -> Chat:
    return Chat(Endpoint(stub.url, "tiny", KEY, **options), sleep=waits.append)


def test_a_question_is_posted_with_model_and_key_and_the_text_returned(stub, waits):
    stub.script = [Reply("hello")]
    assert make(stub, waits).ask(QUESTION) == "hello"
    assert stub.asked == [{"model": "tiny", "messages": QUESTION}]
    assert stub.paths == ["/v1/chat/completions"]
    assert stub.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert waits == []


def test_without_a_key_none_is_sent_and_a_full_address_is_taken_as_it_is(stub):
    stub.script = [Reply("x")]
    assert Chat(Endpoint(f"{stub.url}/chat/completions", "tiny")).ask(QUESTION) == "x"
    assert stub.paths == ["/v1/chat/completions"]
    assert "Authorization" not in stub.headers[0]


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_busy_endpoint_is_asked_again_with_growing_waits(stub, waits, status):
    stub.script = [Reply(status=status)] * 3 + [Reply("at last")]
    assert make(stub, waits).ask(QUESTION) == "at last"
    assert waits == [1.0, 2.0, 4.0]


def test_the_wait_is_the_one_asked_for_within_reason(stub, waits):
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    asked = ["7", date, "999999", "soon"]
    stub.script = [Reply(status=429, headers={"Retry-After": value}) for value in asked]
    stub.script.append(Reply("x"))
    assert make(stub, waits).ask(QUESTION) == "x"
    assert waits[0] == 7.0
    assert 25 < waits[1] <= 30
    assert waits[2:] == [120.0, 8.0]


@pytest.mark.parametrize(
    "reply",
    [
        Reply(body=b"<html>garbage</html>"),
        Reply(body=b'{"choices": [{"message": {"content": "cut'),
        Reply(body=b'{"choices": []}'),
        Reply(body=b'{"error": "overloaded"}'),
        Reply(body=b'{"choices": [{"message": {"content": null}}]}'),
        Reply(body=b"[" * 100_000),
        Reply("short", cut=True),
    ],
    ids=["html", "truncated", "no choice", "error", "null", "deep", "cut"],
)
def test_a_garbled_answer_is_asked_for_again(stub, waits, reply):
    stub.script = [reply, Reply("good")]
    assert make(stub, waits).ask(QUESTION) == "good"
    assert waits == [1.0]


def test_a_late_answer_is_asked_for_again(stub, waits):
    def wait(seconds: float) -> None:
        waits.append(seconds)
        # On a busy machine the second answer, which is not late, may take more than the first has.
        asked.endpoint = replace(asked.endpoint, timeout=600)
        asked._client.timeout = 600

    stub.script = [Reply("late", delay=20), Reply("good")]
    asked = Chat(Endpoint(stub.url, "tiny", KEY, timeout=2), sleep=wait)
    assert asked.ask(QUESTION) == "good"
    assert waits == [1.0]


def test_an_answer_that_trickles_is_bounded_as_a_whole(stub, waits, monkeypatch):
    stub.script = [Reply("x" * 200_000)]
    clock = iter([0.0, 1.0, 99.0, 100.0])
    monkeypatch.setattr(chat.time, "monotonic", lambda: next(clock, 200.0))
    with pytest.raises(ConfigError, match="timed out"):
        make(stub, waits, timeout=10, attempts=1).ask(QUESTION)


def test_an_endless_answer_is_refused(stub, waits, monkeypatch):
    monkeypatch.setattr(chat, "_MOST_BYTES", 1000)
    stub.script = [Reply("x" * 5000)]
    with pytest.raises(ConfigError, match="more than 1000 bytes"):
        make(stub, waits, attempts=1).ask(QUESTION)


def test_after_the_last_attempt_the_reason_is_told(stub, waits):
    stub.script = [Reply(status=503)] * 3
    with pytest.raises(ConfigError, match="no answer in 3 attempts: it answered 503"):
        make(stub, waits, attempts=3).ask(QUESTION)
    assert waits == [1.0, 2.0]


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (400, "the model's name"),
        (401, "OGKD_LLM_KEY"),
        (403, "OGKD_LLM_KEY"),
        (404, "/v1"),
        (302, "final URL"),
    ],
)
def test_a_refusal_is_final_told_with_advice_and_without_the_key(stub, waits, status, advice):
    body = f"no such thing \x1b[31m for {KEY}".encode()
    stub.script = [Reply(status=status, body=body, headers={"Location": f"{stub.url}/else"})]
    with pytest.raises(ConfigError, match=f"answered {status}") as error:
        make(stub, waits).ask(QUESTION)
    assert advice in str(error.value)
    assert KEY not in str(error.value)
    assert "\x1b" not in str(error.value)
    assert len(stub.asked) == 1


def test_a_key_echoed_by_the_system_is_not_shown(stub, waits):
    assert KEY not in repr(make(stub, waits).endpoint)


def test_a_server_that_does_not_run_is_named_at_once(waits):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ConfigError, match="Is the server running"):
        Chat(Endpoint(f"http://127.0.0.1:{port}/v1", "m"), sleep=waits.append).ask(QUESTION)
    assert waits == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("localhost:11434", "not a valid URL"),
        ("ftp://localhost/v1", "not a valid URL"),
        ("http:///v1", "not a valid URL"),
        ("https://user:pass@host/v1", "must be plain"),
        ("https://host/v1?key=pass", "must be plain"),
    ],
)
def test_an_odd_address_is_refused_without_showing_secrets(url, words):
    with pytest.raises(ConfigError, match=words) as error:
        Endpoint(url, "m")
    assert "pass" not in str(error.value).replace("password", "")


@pytest.mark.parametrize("key", ["two\nlines", "schlüssel"])
def test_a_key_that_cannot_be_one_is_refused_unseen(key):
    with pytest.raises(ConfigError, match="OGKD_LLM_KEY") as error:
        Endpoint("https://host/v1", "m", key)
    assert key not in str(error.value)


def test_a_model_must_be_named():
    with pytest.raises(ConfigError, match="Name a model") as error:
        Endpoint("https://host/v1", " ")
    assert error.value.argument == "model"


@pytest.mark.parametrize(
    ("address", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("192.168.1.20", True),
        ("10.0.0.3", True),
        ("93.184.216.34", False),
        ("2606:2800:220:1::1", False),
    ],
)
def test_plain_http_is_only_for_near_machines(monkeypatch, address, allowed):
    def look_up(host, *args, **options):
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 0))]

    monkeypatch.setattr(chat.socket, "getaddrinfo", look_up)
    if allowed:
        Chat(Endpoint("http://models.example/v1", "m"))
    else:
        with pytest.raises(ConfigError, match="not encrypted"):
            Chat(Endpoint("http://models.example/v1", "m"))
    Chat(Endpoint("https://models.example/v1", "m"))


def test_an_unknown_machine_is_named(monkeypatch):
    def look_up(*args, **options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(chat.socket, "getaddrinfo", look_up)
    with pytest.raises(ConfigError, match="no machine called nowhere"):
        Chat(Endpoint("http://nowhere/v1", "m"))
