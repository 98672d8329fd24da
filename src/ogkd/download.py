"""Download one file over https: resumed after an interruption, checked, never left half written.

Backbones come through huggingface_hub (backbones/_repository.py); this is for any other file.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import math
import os
import random
import re
import shutil
import socket
import ssl
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ogkd.errors import ConfigError, DataError, StorageError
from ogkd.files import sha256_file, storage_errors, write_json
from ogkd.progress import progress_bar

_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 6  # in a row without progress
_LONGEST_WAIT = 60.0  # seconds between two attempts
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_SHA256 = re.compile("[0-9a-f]{64}")
GITHUB = "https://raw.githubusercontent.com"  # files of public repositories


@dataclass(frozen=True)
class Downloaded:
    """A file that has arrived, with its hash and the commit that the server reported."""

    path: Path
    sha256: str
    commit: str | None = None  # of a repository on the hub


class _TryAgainError(Exception):
    """A temporary failure of the server or the connection."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass
class _Trail:
    """What the redirects on the way to the file say: a hub sends the file's hash and commit."""

    url: str | None = None
    sha256: str | None = None
    commit: str | None = None

    def before(self, request: httpx.Request) -> None:
        """Called for the first request and for every redirect."""
        _require_https(str(request.url), coming_from=self.url)
        self.url = str(request.url)

    def after(self, response: httpx.Response) -> None:
        tag = response.headers.get("X-Linked-Etag", "").strip('"')
        self.sha256 = tag if _SHA256.fullmatch(tag) else self.sha256
        self.commit = response.headers.get("X-Repo-Commit") or self.commit


def download(url: str, target: Path, *, sha256: str | None = None) -> Downloaded:
    """Fetch `url` to `target`, resuming what an earlier attempt has left.

    Only https is allowed, and http to this machine itself. The file must hash to `sha256`;
    if that is None, to the hash that the hub announces, if it announces one.
    """
    _require_https(url)
    part = target.with_name(f"{target.name}.part")
    trail = _Trail()
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_all(url, part, trail)
        found = sha256_file(part)
        expected = sha256 or trail.sha256
        if expected and found != expected:
            _discard(part)
            raise DataError(
                f"{target.name} from {url} is not the expected file and was deleted.\n"
                f"  expected sha256 {expected}\n  found    sha256 {found}\n"
                "Try again. If the hash still differs, the publisher has changed the file: check "
                "the publisher's page before you trust it."
            )
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        _discard(part)
    return Downloaded(target, found, trail.commit)


def check_space(needs: Mapping[Path, int], *, what: str, remedy: str) -> None:
    """Raise if the disks cannot take `needs`, the number of bytes for each folder."""
    disks: dict[int, tuple[Path, int]] = {}
    for place, size in needs.items():
        while not place.exists():
            place = place.parent
        device = place.stat().st_dev
        disks[device] = (place, size + disks.get(device, (place, 0))[1])
    for place, needed in disks.values():
        free = shutil.disk_usage(place).free
        if free < needed:
            raise StorageError(
                f"{what} needs {needed / 1e6:,.1f} MB in {place}, where {free / 1e6:,.1f} MB are "
                f"free. Free some space, or {remedy}."
            )


def _fetch_all(url: str, part: Path, trail: _Trail) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch_rest(url, part, trail)
            return
        except _TryAgainError as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= _ATTEMPTS:
                raise DataError(
                    f"{url} cannot be downloaded now: {error}. Check the network and try again: "
                    "what has arrived is kept."
                ) from error
            # Random, so that many clients that failed together do not all return together.
            wait = error.wait or 2.0 ** (failures - 1) * random.uniform(0.75, 1.25)
            time.sleep(min(wait, _LONGEST_WAIT))


def _fetch_rest(url: str, part: Path, trail: _Trail) -> None:
    """Fetch the part of the file that is missing; `_TryAgainError` if the connection breaks."""
    have = _resumable(part, url)
    with _opened(url, have, trail) as response:
        if response.status_code == 416:  # nothing beyond what is here, or another file
            if _remembered(part).get("size") == have:
                return
            _discard(part)
            raise _TryAgainError("the file has changed", wait=0.01)
        total = _total(response, have)
        facts = {"url": url, "tag": _tag(response.headers), "size": total}
        if have and (response.status_code != 206 or facts != _remembered(part)):
            if response.status_code == 206:  # the rest of another file
                _discard(part)
                raise _TryAgainError("the file has changed", wait=0.01)
            have = 0  # the server sends the whole file again
        if total is not None:
            remedy = "choose another folder (OGKD_DATA sets the one for all benchmarks)"
            check_space({part.parent: total - have}, what=part.stem, remedy=remedy)
        if not have:
            _discard(part)
            write_json(_notes(part), facts, ours=True)
        _append(response, part, have, total)


def _append(response: httpx.Response, part: Path, have: int, total: int | None) -> None:
    megabytes = math.ceil(total / 1e6) if total is not None else None
    reason = ""
    with progress_bar(f"{part.stem} (MB)", megabytes) as bar, part.open("ab") as file:
        bar.advance(int(have / 1e6))
        try:
            for chunk in response.iter_raw():
                if total is not None and have + len(chunk) > total:
                    raise DataError(
                        f"{part.stem}: the server sends more bytes than it announced. Try later."
                    )
                file.write(chunk)
                bar.advance(int((have + len(chunk)) / 1e6) - int(have / 1e6))
                have += len(chunk)
        except httpx.TransportError as error:
            reason = f"the connection broke ({str(error) or type(error).__name__})"
    if total is not None and have != total:
        raise _TryAgainError(f"the connection ended after {have:,} of {total:,} bytes")
    if reason:
        raise _TryAgainError(reason)


@contextlib.contextmanager
def _opened(url: str, have: int, trail: _Trail) -> Iterator[httpx.Response]:
    """The server's answer (200, 206 or 416) to a request for the bytes from `have` on."""
    trail.url = None
    headers = {"User-Agent": "ogkd", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with contextlib.ExitStack() as stack:
        try:
            client = httpx.Client(
                follow_redirects=True,
                timeout=_TIMEOUT,
                verify=ssl.create_default_context(),  # the system's certificates
                trust_env=not _is_loopback(url),  # proxies
                event_hooks={"request": [trail.before], "response": [trail.after]},
            )
            stack.enter_context(client)
            response = stack.enter_context(client.stream("GET", url, headers=headers))
        except httpx.TransportError as error:
            if _is_unknown_host(error):  # waiting does not help
                raise DataError(
                    f"{httpx.URL(url).host} cannot be reached ({error}), so {url} was not "
                    "downloaded. Check the network; behind a proxy set HTTPS_PROXY. What arrived "
                    "before is kept."
                ) from error
            reason = str(error) or type(error).__name__
            raise _TryAgainError(f"no connection ({reason})") from error
        except (httpx.TooManyRedirects, httpx.InvalidURL) as error:
            raise DataError(
                f"{url} could not be followed: {error}. It was not downloaded."
            ) from error
        if response.status_code not in (200, 206, 416):
            raise _refusal(url, response)
        yield response


def _is_unknown_host(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, socket.gaierror):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refusal(url: str, response: httpx.Response) -> Exception:
    status = response.status_code
    if status in _RETRIED:
        after = response.headers.get("Retry-After", "")
        wait = float(after) if after.isdecimal() else None
        return _TryAgainError(f"the server answered {status}", wait=wait)
    if status in (404, 410):
        return DataError(
            f"{url} no longer exists ({status}). Its publisher may have moved it: see the "
            "publisher's page, or put the file in place yourself."
        )
    if status in (401, 403):
        return DataError(
            f"The server refuses access to {url} ({status}). See its page for the terms of use."
        )
    return DataError(f"The server answered {status} for {url}. Try again later.")


def _require_https(url: str, *, coming_from: str | None = None) -> None:
    # This machine may serve files to itself, but no server on the network may redirect us to it.
    local = _is_loopback(url) and (coming_from is None or _is_loopback(coming_from))
    scheme = parsed(url).scheme
    if scheme == "https" or (scheme == "http" and local):
        return
    subject = f"{coming_from} leads to {url}, which" if coming_from else url
    raise DataError(
        f"{subject} is not https, so anyone on the way could change the file. It was not "
        "downloaded."
    )


def parsed(url: str) -> httpx.URL:
    """The parts of a URL; a DataError if it is not valid."""
    try:
        found = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise DataError(f"'{url[:200]}' is not a valid URL: {error}. Check it.") from error
    if found.scheme in ("http", "https") and not found.host:
        raise DataError(f"'{url[:200]}' is not a valid URL: it names no host. Check it.")
    return found


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set; read at each call, as a program may set it late."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def hub_mirror() -> str | None:
    """HF_ENDPOINT, a mirror of the hub, if it is set."""
    return _mirror("HF_ENDPOINT", "the hub")


def mirrored(url: str) -> str:
    """The URL of a file on GitHub at the mirror that OGKD_GITHUB names, if it is set."""
    mirror = _mirror("OGKD_GITHUB", GITHUB)
    return url.replace(GITHUB, mirror, 1) if mirror else url


def _mirror(variable: str, of: str) -> str | None:
    if not (endpoint := os.environ.get(variable)):
        return None
    try:
        found = parsed(endpoint)
    except DataError as error:
        raise ConfigError(f"{variable} is wrong: {error}") from error
    if found.scheme not in ("http", "https"):
        raise ConfigError(
            f"{variable} is wrong: '{endpoint[:200]}' starts with neither https:// nor http://. "
            f"Set it to a mirror of {of}, or unset it."
        )
    return endpoint.rstrip("/")


def _is_loopback(url: str) -> bool:
    host = parsed(url).host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _total(response: httpx.Response, have: int) -> int | None:
    """The size of the whole file, if the server says it."""
    if response.status_code == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            raise DataError("The server sent another part of the file than the one requested.")
        return int(found[2])
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _tag(headers: httpx.Headers) -> str:
    """What tells one version of the file from another; empty if the server says nothing."""
    tag: str = headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else headers.get("Last-Modified", "")


def _notes(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remembered(part: Path) -> dict[str, Any]:
    try:
        facts = json.loads(_notes(part).read_text(encoding="utf-8"))
        return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        return {}


def _resumable(part: Path, url: str) -> int:
    """How many bytes to keep: none unless they are known to be of the same file."""
    facts = _remembered(part)
    return _size(part) if facts.get("url") == url and facts.get("tag") else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)
