"""Downloading, against a server of our own on the loopback interface."""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from ogkd import download as module
from ogkd.download import HUB, check_space, download, mirrored
from ogkd.errors import DataError, StorageError
from stub_server import StubServer, serve

CONTENT = random.Random(1).randbytes(100_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=seconds.append))
    return seconds


@pytest.fixture
def server(waits: list[float]) -> Iterator[StubServer]:
    with serve() as running:
        running.files["/a.zip"] = CONTENT
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "a.zip"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("lengths", [True, False])
def test_a_file_arrives_whole_and_alone(server: StubServer, target: Path, lengths: bool) -> None:
    server.lengths = lengths
    server.headers = {"X-Repo-Commit": "c" * 40}
    file = download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert (file.path, file.sha256, file.commit) == (target, SHA256, "c" * 40)
    assert left_in(target.parent) == ["a.zip"]


@pytest.mark.parametrize("tags", [True, False])
def test_a_dropped_connection_is_resumed(server: StubServer, target: Path, tags: bool) -> None:
    target.parent.mkdir()
    target.with_name("a.zip.part").write_bytes(b"of an earlier run")
    server.drop_after = [30_000, 20_000]
    server.tags = tags
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == CONTENT
    ranges = [wanted for _, wanted in server.asked]
    assert ranges == (["", "bytes=30000-", "bytes=50000-"] if tags else [""] * 3)
    assert not tags or server.sent == len(CONTENT)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("changed", [CONTENT, CONTENT[::-1], b"short"], ids=["same", "as long", ""])
def test_a_second_run_continues_the_same_version_alone(
    server: StubServer, target: Path, ranges: bool, changed: bytes
) -> None:
    server.drop_after = [40_000] + [0] * 20
    with pytest.raises(DataError):
        download(f"{server.address}/a.zip", target)
    assert not target.exists()
    server.files["/a.zip"] = changed
    server.drop_after = []
    server.asked.clear()
    server.ranges = ranges
    download(f"{server.address}/a.zip", target)
    assert server.asked[0] == ("/a.zip", "bytes=40000-")
    assert target.read_bytes() == changed


def test_a_wrong_hash_leaves_nothing(server: StubServer, target: Path) -> None:
    with pytest.raises(DataError, match=f"{SHA256}, not {'0' * 64}"):
        download(f"{server.address}/a.zip", target, sha256="0" * 64)
    assert left_in(target.parent) == []


def test_temporary_errors_are_retried_with_growing_waits(
    server: StubServer, target: Path, waits: list[float]
) -> None:
    server.failures = [500, 503, 502, 429]
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == CONTENT
    assert waits == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(("status", "attempts"), [(500, 6), (404, 1), (403, 1), (401, 1), (400, 1)])
def test_an_error_status_ends_in_one_message(
    server: StubServer, target: Path, status: int, attempts: int
) -> None:
    server.failures = [status] * 50
    with pytest.raises(DataError, match=str(status)):
        download(f"{server.address}/a.zip", target)
    assert len(server.asked) == attempts
    assert left_in(target.parent) == []


@pytest.mark.parametrize(
    "url",
    [
        *("http://example.org/a", "ftp://example.org/a", "file:///etc/passwd", "http://10.0.0.1"),
        *("http://[::1", "https://", "http://a\x00b", "https://" + "x" * 70_000, "nonsense"),
    ],
    ids=range(9),
)
def test_only_https_is_allowed_also_by_redirects(
    url: str, server: StubServer, target: Path
) -> None:
    with pytest.raises(DataError):
        download(url, target)
    server.redirects["/a.zip"] = url
    with pytest.raises(DataError):
        download(f"{server.address}/a.zip", target)
    assert left_in(target.parent) == []


def test_a_server_on_the_network_may_not_redirect_to_this_machine() -> None:
    with pytest.raises(DataError):
        module._require_https(httpx.URL("http://127.0.0.1/a"), local=False)
    module._require_https(httpx.URL("http://127.0.0.1/a"), local=True)
    module._require_https(httpx.URL("https://cdn.example.org/a"), local=False)


def test_what_does_not_fit_is_refused_before_the_transfer(
    server: StubServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(100_000, 90_000, 10_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError):
        download(f"{server.address}/a.zip", target)
    assert not target.exists()
    check_space(target / "not" / "yet", 9_000, what="x")
    with pytest.raises(StorageError):
        check_space(target / "not" / "yet", 16_000, what="x")


def test_a_file_on_the_hub_names_its_commit_before_a_redirect(
    server: StubServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.redirects["/data/resolve/main/a.zip"] = "/a.zip"
    server.redirect_headers = {"X-Repo-Commit": "d" * 40}
    monkeypatch.setenv("HF_ENDPOINT", f"{server.address}/")
    url = mirrored(f"{HUB}/data/resolve/main/a.zip")
    assert download(url, target).commit == "d" * 40
    assert mirrored("https://example.org/a") == "https://example.org/a"
