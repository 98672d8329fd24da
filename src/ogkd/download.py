"""Download one file, checked and never left half written: from the hub, or from any https URL.

huggingface_hub fetches what is on the hub; other files are resumed after an interruption, too.
"""

from __future__ import annotations

import contextlib
import ipaddress
import math
import os
import re
import shutil
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from ogkd.errors import ConfigError, DataError, OgkdError, StorageError
from ogkd.files import sha256_file, storage_errors
from ogkd.progress import progress_bar

GITHUB = "https://raw.githubusercontent.com"  # files of public repositories
_TIMEOUT = 30  # seconds without a byte
_ATTEMPTS = 6  # in a row without progress
_LONGEST_WAIT = 60.0  # seconds between two attempts
_RETRIED = {408, 425, 429, 500, 502, 503, 504}
_SHA256 = re.compile("[0-9a-f]{64}")
_HUB_FILE = re.compile(r"(.*)/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_LARGER_DISK = "choose another folder (OGKD_DATA sets the one for all benchmarks)"


@dataclass(frozen=True)
class Downloaded:
    """A file that has arrived, with its hash and the commit that the server reported."""

    path: Path
    sha256: str
    commit: str | None = None  # of a repository on the hub


def download(url: str, target: Path, *, sha256: str | None = None) -> Downloaded:
    """Fetch `url` to `target`, resuming what an earlier attempt has left.

    Only https is allowed, and http to this machine itself. The file must hash to `sha256`;
    if that is None, to the hash that the hub announces, if it announces one.
    """
    _require_https(url)
    part = target.with_name(f"{target.name}.part")
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if on_hub := _HUB_FILE.fullmatch(url):
            commit, announced = _fetch_from_hub(*on_hub.groups(), part=part)
        else:
            commit, announced = _fetch(url, part), None
        digest = sha256_file(part)
        expected = sha256 or announced
        if expected and digest != expected:
            _discard(part)
            raise DataError(
                f"{target.name} from {url} is not the expected file and was deleted.\n"
                f"  expected sha256 {expected}\n  found    sha256 {digest}\n"
                "Try again. If the hash still differs, the publisher has changed the file: check "
                "the publisher's page before you trust it."
            )
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
        _discard(part)
    return Downloaded(target, digest, commit)


def check_space(needs: Mapping[Path, int], *, what: str, remedy: str) -> None:
    """Raise if the disks cannot take `needs`, the number of bytes for each folder."""
    disks: dict[int, tuple[Path, int]] = {}
    for folder, size in needs.items():
        while not folder.exists():
            folder = folder.parent
        device = folder.stat().st_dev
        disks[device] = (folder, size + disks.get(device, (folder, 0))[1])
    for folder, needed in disks.values():
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise StorageError(
                f"{what} needs {needed / 1e6:,.1f} MB in {folder}, where {free / 1e6:,.1f} MB are "
                f"free. Free some space, or {remedy}."
            )


def parsed(url: str) -> httpx.URL:
    """The parts of a URL; a DataError if it is not valid."""
    try:
        parts = httpx.URL(url)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise DataError(f"{url[:200]!r} is not a valid URL: {error}. Check it.") from error
    if parts.scheme in ("http", "https") and not parts.host:
        raise DataError(f"{url[:200]!r} is not a valid URL: it names no host. Check it.")
    return parts


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


def explain_hub_error(error: BaseException, hub_id: str, *, page: str, revision: str) -> str:
    """What an error of huggingface_hub means, and what to do about it."""
    from huggingface_hub import errors

    login = "log in with `hf auth login` (or set HF_TOKEN to a token that may read it)"
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{hub_id} is gated: its publisher asks you to accept terms. Accept them on {page}, "
            f"then {login} and try again."
        )
    if isinstance(error, errors.RepositoryNotFoundError | errors.HFValidationError):
        return (
            f"The hub has no repository {hub_id}, or it is private. Check the name; for a private "
            f"repository {login}."
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{hub_id} has no revision {revision}. See {page}."
    if isinstance(error, errors.EntryNotFoundError):
        return f"{hub_id} no longer has the file. Its publisher may have moved it: see {page}."
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return f"The hub refuses access to {hub_id} ({status}): {login}, and accept its terms."
        return f"The hub answered {status} for {hub_id}. Try again in a few minutes."
    return (
        f"The download of {hub_id} was interrupted ({error}). Check the network and try again: "
        "what has arrived is kept."
    )


def _fetch_from_hub(
    endpoint: str, hub_id: str, revision: str, name: str, *, part: Path
) -> tuple[str | None, str | None]:
    """Fetch a file of a dataset to `part`; its commit and the hash that the hub announces."""
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_download, hf_hub_url

    folder = part.with_name(f".{part.name}")  # keeps what has arrived
    repository = {"repo_id": hub_id, "repo_type": "dataset", "endpoint": endpoint}
    try:
        url = hf_hub_url(filename=name, revision=revision, **repository)
        facts = get_hf_file_metadata(url, timeout=_TIMEOUT, endpoint=endpoint)
        check_space({part.parent: facts.size or 0}, what=part.stem, remedy=_LARGER_DISK)
        path = hf_hub_download(filename=name, revision=revision, local_dir=folder, **repository)
        Path(path).replace(part)
    except Exception as error:  # from HTTP, the file transfer or the disk
        of_hub = isinstance(error, errors.HfHubHTTPError | errors.EntryNotFoundError)
        if isinstance(error, OgkdError | OSError) and not of_hub:
            raise
        page = f"{endpoint}/datasets/{hub_id}"
        words = explain_hub_error(error, hub_id, page=page, revision=revision)
        raise DataError(words) from error
    shutil.rmtree(folder, ignore_errors=True)
    tag = facts.etag or ""
    return facts.commit_hash, tag if _SHA256.fullmatch(tag) else None


def _fetch(url: str, part: Path) -> str | None:
    """Fetch a file in as many attempts as needed; the commit, if the server says it."""
    failures = 0
    while True:
        before = _size(part)
        try:
            return _fetch_rest(url, part)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            failures = 1 if _size(part) > before else failures + 1
            if failures >= _ATTEMPTS or not _is_temporary(error):
                raise DataError(_explain(url, error)) from error
            time.sleep(min(2.0 ** (failures - 1), _LONGEST_WAIT))


def _fetch_rest(url: str, part: Path) -> str | None:
    """Fetch the part of the file that is missing."""
    tag = _read_tag(part)
    have = _size(part) if tag else 0
    headers = {"User-Agent": "ogkd", "Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": tag}
    client = httpx.Client(
        follow_redirects=True,
        timeout=_TIMEOUT,
        verify=ssl.create_default_context(),  # the system's certificates
        trust_env=not _is_loopback(url),  # proxies
        event_hooks={"request": [lambda request: _require_https(str(request.url), first=url)]},
    )
    with client, client.stream("GET", url, headers=headers) as response:
        resumed = response.status_code == 206
        if response.status_code == 416 or (resumed and _tag(response) != tag):
            _discard(part)  # nothing beyond what is here, or the rest of another version
            return _fetch_rest(url, part)
        response.raise_for_status()
        have = have if resumed else 0
        length = response.headers.get("Content-Length", "")
        total = have + int(length) if length.isdigit() else None
        check_space({part.parent: (total or 0) - have}, what=part.stem, remedy=_LARGER_DISK)
        _tag_file(part).write_text(_tag(response), encoding="utf-8")
        megabytes = math.ceil(total / 1e6) if total is not None else None
        with (
            progress_bar(f"{part.stem} (MB)", megabytes) as bar,
            part.open("ab" if resumed else "wb") as file,
        ):
            bar.advance(int(have / 1e6))
            for chunk in response.iter_raw():
                file.write(chunk)
                bar.advance(int((have + len(chunk)) / 1e6) - int(have / 1e6))
                have += len(chunk)
        commit: str | None = response.headers.get("X-Repo-Commit")
        return commit


def _is_temporary(error: Exception) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _RETRIED
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.ConnectError)


def _explain(url: str, error: Exception) -> str:
    if isinstance(error, httpx.HTTPStatusError) and not _is_temporary(error):
        return (
            f"The server answered {error.response.status_code} for {url}. See the publisher's page "
            "for where the file is and for its terms, or put the file in place yourself."
        )
    return (
        f"{url} cannot be downloaded now ({str(error) or type(error).__name__}). Check the "
        "network (behind a proxy set HTTPS_PROXY) and try again: what has arrived is kept."
    )


def _require_https(url: str, *, first: str | None = None) -> None:
    """Refuse a URL, or one that the server of `first` redirects to, that is not safe."""
    # This machine may serve files to itself, but no server on the network may redirect us to it.
    local = _is_loopback(url) and (first is None or _is_loopback(first))
    scheme = parsed(url).scheme
    if scheme != "https" and not (scheme == "http" and local):
        raise DataError(
            f"{url} is not https, so anyone on the way could change the file. It was not "
            "downloaded."
        )


def _is_loopback(url: str) -> bool:
    host = parsed(url).host
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _mirror(variable: str, of: str) -> str | None:
    if not (endpoint := os.environ.get(variable)):
        return None
    try:
        scheme = parsed(endpoint).scheme
    except DataError as error:
        raise ConfigError(f"{variable} is wrong: {error}") from error
    if scheme not in ("http", "https"):
        raise ConfigError(
            f"{variable} is wrong: '{endpoint[:200]}' starts with neither https:// nor http://. "
            f"Set it to a mirror of {of}, or unset it."
        )
    return endpoint.rstrip("/")


def _tag(response: httpx.Response) -> str:
    """What tells one version of the file from another; empty if the server says nothing."""
    tag: str = response.headers.get("ETag", "")
    return tag if tag and not tag.startswith("W/") else response.headers.get("Last-Modified", "")


def _tag_file(part: Path) -> Path:
    return part.with_name(f"{part.name}.tag")


def _read_tag(part: Path) -> str:
    """The version that the stored bytes are of."""
    with contextlib.suppress(OSError, ValueError):
        return _tag_file(part).read_text(encoding="utf-8")
    return ""


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _discard(part: Path) -> None:
    part.unlink(missing_ok=True)
    _tag_file(part).unlink(missing_ok=True)
