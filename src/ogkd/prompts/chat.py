"""Ask an OpenAI-compatible endpoint, local or hosted, one question at a time.

Retries are bounded. The key is sent only to that endpoint: no redirect is followed, and no
message shows it.
"""

from __future__ import annotations

import contextlib
import email.utils
import ipaddress
import json
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from ogkd.errors import ConfigError

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
        try:
            parts = httpx.URL(self.url)
        except (httpx.InvalidURL, UnicodeError):
            parts = httpx.URL("")
        if parts.scheme not in ("http", "https") or not parts.host:
            raise ConfigError(
                f"'{self.url}' is not a valid URL. Give the base URL of an OpenAI-compatible "
                "endpoint (or set OGKD_LLM_URL), such as http://localhost:11434/v1.",
                argument="url",
            )
        if parts.userinfo or parts.query or parts.fragment:
            # Not repeated here: it may be a secret.
            raise ConfigError(
                "The endpoint's URL must be plain: no user, password or query. Put a key in "
                "OGKD_LLM_KEY instead.",
                argument="url",
            )
        if self.key and (not self.key.isascii() or not self.key.isprintable()):
            raise ConfigError(
                "The key has characters that cannot be part of a key. Set OGKD_LLM_KEY again."
            )
        if not 0 < self.timeout <= 86_400:  # not a number fails, too
            raise ConfigError(
                f"timeout must be between 0 and 86400 seconds, but is {self.timeout}.",
                argument="timeout",
            )
        if not self.model.strip():
            raise ConfigError("Name a model of the endpoint.", argument="model")

    @property
    def address(self) -> str:
        base = self.url.rstrip("/")
        return base if base.endswith(_PATH) else base + _PATH


class Chat:
    """Questions to one endpoint; `sleep` is a parameter for tests."""

    def __init__(self, endpoint: Endpoint, *, sleep: Callable[[float], None] = time.sleep) -> None:
        self.endpoint = endpoint
        self._sleep = sleep
        url = httpx.URL(endpoint.url)
        plain = url.scheme == "http"
        if plain:
            _require_near(url.host)
        headers = {"Accept": "application/json", "User-Agent": "ogkd"}
        if endpoint.key:
            headers["Authorization"] = f"Bearer {endpoint.key}"
        self._client = httpx.Client(
            headers=headers,
            timeout=endpoint.timeout,
            follow_redirects=False,
            trust_env=not plain,  # a machine nearby needs no proxy
            verify=ssl.create_default_context(),  # the system's certificates
        )

    def ask(self, messages: Messages) -> str:
        """The text of the answer; retries if the endpoint is busy or its answer is garbled."""
        reason = ""
        for attempt in range(self.endpoint.attempts):
            wait = 2.0**attempt
            try:
                response, body = self._post(messages)
                if response.is_success:
                    return _content(body)
                if response.status_code not in _BUSY:
                    raise self._refused(response.status_code, body)
                reason = f"it answered {response.status_code}"
                wait = _retry_after(response.headers.get("Retry-After", "")) or wait
            except httpx.ConnectError as error:
                raise ConfigError(
                    f"No connection to {self.endpoint.url} ({error}). Is the server running? "
                    "Check the URL (or OGKD_LLM_URL).",
                    argument="url",
                ) from None
            except httpx.HTTPError as error:
                reason = f"the connection failed ({error or type(error).__name__})"
            except ValueError as error:
                reason = f"the answer is not a chat completion ({error})"
            if attempt + 1 < self.endpoint.attempts:
                self._sleep(min(wait, _LONGEST_WAIT))
        raise ConfigError(
            f"{self.endpoint.address} gave no answer in {self.endpoint.attempts} attempts: "
            f"{self._redact(reason)}. Try again later; what has been collected is kept."
        )

    def _post(self, messages: Messages) -> tuple[httpx.Response, bytes]:
        request = {"model": self.endpoint.model, "messages": list(messages)}
        deadline = time.monotonic() + self.endpoint.timeout
        with self._client.stream("POST", self.endpoint.address, json=request) as response:
            body = bytearray()
            for chunk in response.iter_bytes():
                body += chunk
                # httpx's timeout restarts with every byte: bound the whole answer, too.
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout("timed out")
                if len(body) > _MOST_BYTES:
                    raise ValueError(f"more than {_MOST_BYTES} bytes")
        return response, bytes(body)

    def _refused(self, status: int, body: bytes) -> ConfigError:
        advice = {
            401: "Set the key in OGKD_LLM_KEY.",
            403: "Check that the key in OGKD_LLM_KEY may use this model.",
            404: "Check the URL (it usually ends in /v1) and the model's name.",
        }.get(status, "Check the URL and the model's name.")
        if status in (301, 302, 303, 307, 308):
            advice = "It redirects elsewhere, which is not followed. Give the final URL."
        said = body[:2000].decode("utf-8", "replace")
        said = " ".join("".join(c if c.isprintable() else " " for c in said).split())[:200]
        quote = f" ({self._redact(said)})" if said else ""
        return ConfigError(f"{self.endpoint.address} answered {status}{quote}. {advice}")

    def _redact(self, text: str) -> str:
        return text.replace(self.endpoint.key, "***") if self.endpoint.key else text


def _require_near(host: str) -> None:
    """Raise unless `host` is nearby: plain http shows key and texts to everyone on the way."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"There is no machine called {host} ({error}). Check the URL.", argument="url"
        ) from None
    for *_, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        if not (ip.is_loopback or ip.is_private or ip.is_link_local):
            raise ConfigError(
                f"http://{host} is not encrypted and lies outside this network. Use https.",
                argument="url",
            )


def _content(body: bytes) -> str:
    """The text of a chat completion; ValueError if it has none."""
    try:
        answer = json.loads(body)
        content = answer["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    if not isinstance(content, str):
        raise ValueError("its message has no text")
    return content


def _retry_after(value: str) -> float | None:
    """Seconds of a Retry-After header, which is a number or a date."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return None
