"""Download one file from an https URL: checked, resumed after an interruption, whole or absent."""

from __future__ import annotations

import ipaddress
import os
import shutil
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from ogkd.errors import DataError, StorageError
from ogkd.files import sha256_file, storage_errors
from ogkd.progress import progress_bar

HUB = "https://huggingface.co"
GITHUB = "https://raw.githubusercontent.com"  # files of public repositories
_MIRRORS = {HUB: "HF_ENDPOINT", GITHUB: "OGKD_GITHUB"}
_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 6
_TEMPORARY = {408, 425, 429, 500, 502, 503, 504}


@dataclass(frozen=True)
class Downloaded:
    """A file that has arrived, with its hash and the commit that the server reported."""

    path: Path
    sha256: str
    commit: str | None = None  # of a repository on the hub


def download(url: str, target: Path, *, sha256: str | None = None) -> Downloaded:
    """Fetch `url` to `target`, resuming what an earlier attempt has left.

    Only https is allowed, and http to this machine itself.
    """
    part = target.with_name(f"{target.name}.part")
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        commit = _fetch(url, part)
        digest = sha256_file(part)
        _tag_file(part).unlink(missing_ok=True)
        if sha256 and digest != sha256:
            part.unlink()
            raise DataError(
                f"{target.name} from {url} is not the expected file and was deleted: its sha256 is "
                f"{digest}, not {sha256}."
            )
        part.replace(target)
    return Downloaded(target, digest, commit)


def check_space(folder: Path, needed: int, *, what: str) -> None:
    """Raise if the disk of a folder, which need not exist yet, has less than `needed` bytes."""
    disk = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if (free := shutil.disk_usage(disk).free) < needed:
        raise StorageError(
            f"{what} needs {needed / 1e6:,.1f} MB in {folder}, where {free / 1e6:,.1f} MB are free."
        )


def hub_offline() -> bool:
    """Whether HF_HUB_OFFLINE is set; read at each call, as a program may set it late."""
    return os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


def mirrored(url: str) -> str:
    """The URL of a file on the hub or on GitHub at the mirror that the environment names."""
    for origin, variable in _MIRRORS.items():
        if url.startswith(origin) and (mirror := os.environ.get(variable)):
            return mirror.rstrip("/") + url.removeprefix(origin)
    return url


def parse_url(url: str) -> httpx.URL:
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise DataError(f"{url[:200]!r} is not a valid URL: {error}.", argument="url") from error
    if parts.scheme not in ("http", "https") or not parts.host:
        raise DataError(f"{url[:200]!r} is not a valid URL.", argument="url")
    return parts


def _fetch(url: str, part: Path) -> str | None:
    """Fetch a file in as many attempts as needed; the commit, if the server names it."""
    for attempt in range(_ATTEMPTS):
        try:
            return _fetch_rest(url, part)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            temporary = isinstance(error, httpx.TransportError | httpx.HTTPStatusError)
            if isinstance(error, httpx.HTTPStatusError):
                temporary = error.response.status_code in _TEMPORARY
            if attempt + 1 == _ATTEMPTS or not temporary or isinstance(error, httpx.ConnectError):
                reason = str(error) or type(error).__name__
                raise DataError(
                    f"{url} cannot be downloaded ({reason}). What has arrived is kept."
                ) from error
            time.sleep(2.0**attempt)
    raise AssertionError


def _fetch_rest(url: str, part: Path) -> str | None:
    """Fetch the part of the file that is missing, unless the server has another version now."""
    tag_file = _tag_file(part)
    tag = tag_file.read_text(encoding="utf-8") if tag_file.is_file() else ""
    have = part.stat().st_size if tag and part.is_file() else 0
    headers = {"User-Agent": "ogkd", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    local = _is_loopback(parse_url(url))
    client = httpx.Client(
        follow_redirects=True,
        timeout=_TIMEOUT,
        verify=ssl.create_default_context(),  # the system's certificates
        trust_env=not local,  # proxies
        event_hooks={"request": [lambda request: _require_https(request.url, local=local)]},
    )
    with client, client.stream("GET", url, headers=headers) as response:
        resumed = response.status_code == 206
        if response.status_code == 416 or (resumed and _version(response) != tag):
            tag_file.unlink()  # nothing beyond what is here, or the rest of another version
            return _fetch_rest(url, part)
        response.raise_for_status()
        have = have if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        check_space(part.parent, (total or 0) - have, what=part.stem)
        tag_file.write_text(_version(response), encoding="utf-8")
        megabytes = None if total is None else -(-total // 10**6)
        with (
            progress_bar(f"{part.stem} (MB)", megabytes) as bar,
            part.open("ab" if resumed else "wb") as file,
        ):
            bar.advance(have // 10**6)
            for chunk in response.iter_raw():
                file.write(chunk)
                bar.advance((have + len(chunk)) // 10**6 - have // 10**6)
                have += len(chunk)
            os.fsync(file.fileno())
        # The hub names the commit before it redirects to where the bytes are.
        commits = (answer.headers.get("X-Repo-Commit") for answer in (*response.history, response))
        return next(filter(None, commits), None)


def _version(response: httpx.Response) -> str:
    """What tells one version of the file from another; empty if the server says nothing."""
    tag: str = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


def _require_https(url: httpx.URL, *, local: bool) -> None:
    """Refuse http, except where this machine serves files to itself (`local`)."""
    if url.scheme != "https" and not (local and _is_loopback(url)):
        raise DataError(f"{url} is not https, so anyone on the way could change the file.")


def _is_loopback(url: httpx.URL) -> bool:
    try:
        return ipaddress.ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")
