"""One file over https: resumed where it broke off, checked, and there whole or not at all.

Backbones come through huggingface_hub (backbones/_download.py); this is for any other file.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import json
import math
import os
import random
import re
import shutil
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any

from ogkd.errors import DataError, StorageError
from ogkd.files import sha256_file, storage_errors, write_json
from ogkd.progress import progress_bar

__all__ = ["Downloaded", "check_space", "download"]

_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 6  # in a row without progress
_LONGEST_WAIT = 60.0  # seconds between two attempts
_CHUNK = 1 << 18
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Downloaded:
    """A file that has arrived, and what the server said of it."""

    path: Path
    sha256: str
    commit: str | None = None  # of the hub's repository


class _TryAgainError(Exception):
    """The server or the line failed in a way that passes."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass
class _Answer:
    """Headers that a hub sends with its redirect: the file's own hash and commit."""

    sha256: str | None = None
    commit: str | None = None

    def note(self, headers: Message | http.client.HTTPMessage) -> None:
        tag = (headers.get("X-Linked-Etag") or "").strip('"')
        self.sha256 = tag if _SHA256.fullmatch(tag) else self.sha256
        self.commit = headers.get("X-Repo-Commit") or self.commit


def download(url: str, target: Path, *, sha256: str | None = None) -> Downloaded:
    """Fetch `url` to `target`; what has arrived of an earlier attempt is not fetched again.

    Only https is spoken, and http to this machine itself. `sha256` is what the file must
    hash to; where it is not known, the hash that the hub announces has to do.
    """
    _require_https(url)
    part = target.with_name(f"{target.name}.part")
    answer = _Answer()
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _fetch_all(url, part, answer)
        found = sha256_file(part)
        expected = sha256 or answer.sha256
        if expected and found != expected:
            _forget(part)
            raise DataError(
                f"{target.name} from {url} is not the file that is expected and was deleted.\n"
                f"  expected sha256 {expected}\n  found    sha256 {found}\n"
                "Run the command again. If it stays so, the publisher has changed the file: look "
                "at its page before you trust it."
            )
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        _forget(part)
    return Downloaded(target, found, answer.commit)


def check_space(needs: Mapping[Path, int], *, what: str, remedy: str) -> None:
    """Refuse before the work rather than in the middle of it; `needs` is bytes per place."""
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


def _fetch_all(url: str, part: Path, answer: _Answer) -> None:
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch_some(url, part, answer)
            return
        except _TryAgainError as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= _ATTEMPTS:
                raise DataError(
                    f"{url} cannot be fetched now: {error}. Check the network and run the command "
                    "again: what has arrived is kept."
                ) from error
            # Some randomness, so that many who were turned away do not come back at once.
            wait = error.wait or 2.0 ** (failures - 1) * random.uniform(0.75, 1.25)
            time.sleep(min(wait, _LONGEST_WAIT))


def _fetch_some(url: str, part: Path, answer: _Answer) -> None:
    """Fetch what is missing of the file; `_TryAgainError` if that broke off."""
    have = _resumable(part, url)
    with _opened(url, have, answer) as response:
        if response is None:  # the server has nothing beyond what is here, or another file
            if _remembered(part).get("size") == have:
                return
            _forget(part)
            raise _TryAgainError("the file has changed", wait=0.01)
        total = _total(response, have)
        facts = {"url": url, "tag": _tag(response.headers), "size": total}
        if have and (response.status != 206 or facts != _remembered(part)):
            if response.status == 206:  # the rest of some other file
                _forget(part)
                raise _TryAgainError("the file has changed", wait=0.01)
            have = 0  # the whole file, again from its start
        if total is not None:
            remedy = "choose another place (--folder, or OGKD_DATA for all benchmarks)"
            check_space({part.parent: total - have}, what=part.stem, remedy=remedy)
        if not have:
            part.unlink(missing_ok=True)
            write_json(_notes(part), facts)
        received = have + _append(response, part, have, total)
        if total is not None and received != total:
            raise _TryAgainError(f"the connection ended after {received:,} of {total:,} bytes")


def _append(response: http.client.HTTPResponse, part: Path, have: int, total: int | None) -> int:
    """Write what arrives to the end of `part`; returns the number of bytes."""
    received = 0
    megabytes = math.ceil(total / 1e6) if total is not None else None
    with progress_bar(f"{part.stem} (MB)", megabytes) as bar, part.open("ab") as file:
        bar.advance(int(have / 1e6))
        while chunk := _read(response):
            if total is not None and have + received + len(chunk) > total:
                raise DataError(f"{part.stem}: the server sends more than it said. Try later.")
            file.write(chunk)
            moved = int((have + received + len(chunk)) / 1e6) - int((have + received) / 1e6)
            received += len(chunk)
            bar.advance(moved)
    return received


def _read(response: http.client.HTTPResponse) -> bytes:
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise _TryAgainError(f"the connection broke off ({reason})") from error


@contextlib.contextmanager
def _opened(url: str, have: int, answer: _Answer) -> Iterator[http.client.HTTPResponse | None]:
    """The server's answer to a request for the bytes from `have` on; None for "no such bytes"."""
    headers = {"User-Agent": "ogkd", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    request = urllib.request.Request(url, headers=headers)
    try:
        response = _opener(url, answer).open(request, timeout=_TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code == 416:
                yield None
                return
            raise _refusal(url, error) from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):  # no such name: waiting does not help
            raise _offline(url, str(error.reason)) from error
        raise _TryAgainError(f"no connection ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        reason = str(error) or type(error).__name__
        raise _TryAgainError(f"no connection ({reason})") from error
    with response:
        answer.note(response.headers)
        yield response


def _refusal(url: str, error: urllib.error.HTTPError) -> Exception:
    if error.code in _RETRIED:
        after = error.headers.get("Retry-After", "") if error.headers else ""
        wait = float(after) if after.isdigit() else None
        return _TryAgainError(f"the server answered {error.code}", wait=wait)
    if 300 <= error.code < 400:  # what the standard library refuses to follow
        return DataError(f"{url} leads to no place on the web: {error.reason}. Not fetched.")
    if error.code in (404, 410):
        return DataError(
            f"There is no {url} any more ({error.code}). Its publisher may have moved it: see "
            "its page, and the file can be put in place by hand."
        )
    if error.code in (401, 403):
        return DataError(f"The server refuses {url} to you ({error.code}). See its page for terms.")
    return DataError(f"The server answered {error.code} for {url}. Try again later.")


def _offline(url: str, reason: str) -> DataError:
    host = urllib.parse.urlsplit(url).hostname
    return DataError(
        f"{host} cannot be reached ({reason}), so {url} was not fetched. Check the network; behind "
        "a proxy set HTTPS_PROXY. What had arrived before is kept."
    )


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but never from https to http."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def redirect_request(
        self, req: Any, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        _require_https(newurl, coming_from=req.full_url)
        self._answer.note(headers)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(url: str, answer: _Answer) -> urllib.request.OpenerDirector:
    """An opener of http and https alone: the standard one reads ftp and local files too."""
    opener = urllib.request.OpenerDirector()
    proxies: dict[str, str] | None = (
        {} if _is_loopback(url) else None
    )  # None: as the environment says
    for handler in (
        urllib.request.ProxyHandler(proxies),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(answer),
    ):
        opener.add_handler(handler)
    return opener


def _require_https(url: str, *, coming_from: str | None = None) -> None:
    scheme = urllib.parse.urlsplit(url).scheme.lower()
    # This machine may serve files to itself, but no server on the network may send us to it.
    local = _is_loopback(url) and (coming_from is None or _is_loopback(coming_from))
    if scheme == "https" or (scheme == "http" and local):
        return
    how = f"{coming_from} leads to {url}, which" if coming_from else url
    raise DataError(f"{how} is not https: it was not fetched, since anyone could change it.")


def _is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _total(response: http.client.HTTPResponse, have: int) -> int | None:
    """The size of the whole file, if the server says it."""
    if response.status == 206:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) != have:
            raise DataError("The server sends another part of the file than was asked for.")
        return int(found[2])
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdigit() else None


def _tag(headers: http.client.HTTPMessage) -> str:
    """What tells one version of the file from another; empty if the server says nothing."""
    tag = headers.get("ETag", "")
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
    """How many bytes to keep: none if it cannot be told that they are of the same file."""
    facts = _remembered(part)
    return _size(part) if facts.get("url") == url and facts.get("tag") else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _notes(part).unlink(missing_ok=True)
