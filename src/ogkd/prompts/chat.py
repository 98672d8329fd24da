"""One question to an OpenAI-compatible endpoint, local or hosted: patient, bounded, discreet.

The key goes to that endpoint and nowhere else: no redirect is followed, no message shows it.
"""

from __future__ import annotations

import email.utils
import http.client
import ipaddress
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ogkd.errors import ConfigError

__all__ = ["Chat", "Endpoint", "Messages"]

Messages = Sequence[Mapping[str, str]]

_BUSY = (408, 425, 429, 500, 502, 503, 504, 529)
_LONGEST_WAIT = 120.0  # seconds between two attempts, whatever the endpoint asks for
_MOST_BYTES = 4_000_000  # of an answer
_PATH = "/chat/completions"


@dataclass(frozen=True)
class Endpoint:
    """Where to ask which model; `url` is the base, such as http://localhost:11434/v1."""

    url: str
    model: str
    key: str | None = field(default=None, repr=False)
    timeout: float = 120.0  # seconds for one whole answer
    attempts: int = 5

    def __post_init__(self) -> None:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"'{self.url}' is no web address. Give the base URL of an OpenAI-compatible "
                "endpoint with --url or OGKD_LLM_URL, such as http://localhost:11434/v1."
            )
        if parts.username or parts.password or parts.query or parts.fragment:
            # Not repeated here: it may be a secret.
            raise ConfigError(
                "The endpoint's URL must be plain: no user, password or query. Put a key in "
                "OGKD_LLM_KEY instead."
            )
        if self.key and (not self.key.isascii() or not self.key.isprintable()):
            raise ConfigError("The key has characters that no key has. Set OGKD_LLM_KEY anew.")
        if not self.model.strip():
            raise ConfigError("Name a model of the endpoint with --model.")

    @property
    def address(self) -> str:
        """The full address that is asked."""
        base = self.url.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH


class Chat:
    """Questions to one endpoint; `sleep` is a parameter for tests."""

    def __init__(self, endpoint: Endpoint, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        parts = urllib.parse.urlsplit(endpoint.url)
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if parts.scheme == "http":
            _refuse_open_network(str(parts.hostname))
            handlers.append(urllib.request.ProxyHandler({}))  # a near machine needs no proxy
        self._opener = urllib.request.build_opener(*handlers)

    def ask(self, messages: Messages) -> str:
        """The text of the answer; waits and asks again where the endpoint is busy or garbled."""
        reason = ""
        for attempt in range(self.endpoint.attempts):
            try:
                return _content(self._post(messages))
            except urllib.error.HTTPError as error:
                with error:
                    if error.code not in _BUSY:
                        raise self._refused(error) from None
                    reason = f"it answered {error.code}"
                    wait = _retry_after(error.headers.get("Retry-After")) or 2.0**attempt
            except (urllib.error.URLError, OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                if isinstance(cause, ConnectionRefusedError | socket.gaierror):
                    raise ConfigError(
                        f"No connection to {self.endpoint.url} ({cause}). Is the server running? "
                        "Check --url or OGKD_LLM_URL."
                    ) from None
                reason = f"the connection failed ({cause or type(cause).__name__})"
                wait = 2.0**attempt
            except ValueError as error:
                reason, wait = f"the answer is no chat completion ({error})", 2.0**attempt
            if attempt + 1 < self.endpoint.attempts:
                self._sleep(min(wait, _LONGEST_WAIT))
        raise ConfigError(
            f"{self.endpoint.address} gave no answer in {self.endpoint.attempts} attempts: "
            f"{self._redact(reason)}. Try again later; what has been gathered is kept."
        )

    def _post(self, messages: Messages) -> bytes:
        body = json.dumps({"model": self.endpoint.model, "messages": list(messages)}).encode()
        request = urllib.request.Request(self.endpoint.address, data=body, method="POST")
        request.add_header("Content-Type", "application/json")
        request.add_header("Accept", "application/json")
        if self.endpoint.key:
            request.add_unredirected_header("Authorization", f"Bearer {self.endpoint.key}")
        deadline = time.monotonic() + self.endpoint.timeout
        with self._opener.open(request, timeout=self.endpoint.timeout) as answer:
            parts, size = [], 0
            while chunk := answer.read1(65536):
                parts.append(chunk)
                size += len(chunk)
                # A timeout of the socket starts anew with every byte: bound the whole, too.
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
                if size > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES} bytes")
            if answer.length:  # of the announced bytes, these never came
                raise http.client.IncompleteRead(b"", answer.length)
        return b"".join(parts)

    def _refused(self, error: urllib.error.HTTPError) -> ConfigError:
        advice = {
            401: "Set the key in OGKD_LLM_KEY.",
            403: "Check that the key in OGKD_LLM_KEY may use this model.",
            404: "Check --url (it usually ends in /v1) and --model.",
        }.get(error.code, "Check --url and --model.")
        if error.code in (301, 302, 303, 307, 308):
            advice = "It redirects elsewhere, which is not followed. Give the final URL with --url."
        try:
            said = error.read(2000).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            said = ""
        said = " ".join("".join(c if c.isprintable() else " " for c in said).split())[:200]
        quote = f" ({self._redact(said)})" if said else ""
        return ConfigError(f"{self.endpoint.address} answered {error.code}{quote}. {advice}")

    def _redact(self, text: str) -> str:
        return text.replace(self.endpoint.key, "***") if self.endpoint.key else text


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None  # the redirect then is an HTTPError


def _refuse_open_network(host: str) -> None:
    """Plain http shows key and texts to everyone on the way: only near machines may use it."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(f"There is no machine called {host} ({error}). Check the URL.") from None
    for *_, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not (ip.is_loopback or ip.is_private or ip.is_link_local):
            raise ConfigError(
                f"http://{host} is not encrypted and lies outside this network. Use https."
            )


def _content(body: bytes) -> str:
    """The message's text of a chat completion; ValueError where it has none."""
    try:
        answer = json.loads(body)
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(content, str):
        raise ValueError("its message has no text")
    return content


def _retry_after(value: str | None) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    if not value:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
