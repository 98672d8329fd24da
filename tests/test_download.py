"""Downloading, against a server of our own on the loopback interface."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
import os
import random
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from ogkd import download as module
from ogkd.download import check_space, download
from ogkd.errors import DataError, StorageError
from tiny_server import TinyServer, serve

CONTENT = random.Random(1).randbytes(100_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyServer]:
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None))
    with serve() as running:
        running.files["/a.zip"] = CONTENT
        yield running


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "place" / "a.zip"


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_whole_and_alone(server: TinyServer, target: Path) -> None:
    found = download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert (found.path, found.sha256) == (target, SHA256)
    assert left_in(target.parent) == ["a.zip"]


def test_a_dropped_connection_is_taken_up_where_it_broke(server: TinyServer, target: Path) -> None:
    server.drop_after = [30_000, 20_000]
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["", "bytes=30000-", "bytes=50000-"]
    assert server.sent == len(CONTENT)


def test_a_second_run_fetches_only_what_is_missing(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.drop_after = [40_000] + [0] * 20
    with pytest.raises(DataError, match=r"ended after 40,000 of 100,000 bytes.*is kept"):
        download(f"{server.address}/a.zip", target)
    assert not target.exists()
    server.drop_after = []
    server.asked.clear()
    download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert server.asked == [("/a.zip", "bytes=40000-")]
    assert target.read_bytes() == CONTENT


def test_a_kill_before_the_rename_needs_no_second_transfer(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(_: Path) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "sha256_file", die)
        with pytest.raises(KeyboardInterrupt):
            download(f"{server.address}/a.zip", target)
    for _ in range(500):  # the server counts after the client has it
        if server.sent == len(CONTENT):
            break
        time.sleep(0.01)
    sent = server.sent
    download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT
    assert server.sent == sent


@pytest.mark.parametrize("ranges", [True, False])
def test_parts_of_two_versions_are_never_joined(
    server: TinyServer, target: Path, ranges: bool
) -> None:
    server.drop_after = [40_000] + [0] * 20
    with pytest.raises(DataError):
        download(f"{server.address}/a.zip", target)
    changed = CONTENT[::-1]
    server.files["/a.zip"] = changed
    server.drop_after = []
    server.ranges = ranges
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == changed


def test_a_shorter_new_version_is_fetched_from_its_start(server: TinyServer, target: Path) -> None:
    server.drop_after = [40_000] + [0] * 20
    with pytest.raises(DataError):
        download(f"{server.address}/a.zip", target)
    server.drop_after = []
    server.files["/a.zip"] = b"short"
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == b"short"


def test_without_a_version_tag_it_begins_anew(server: TinyServer, target: Path) -> None:
    server.tags = False
    server.drop_after = [40_000]
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["", ""]


def test_a_length_that_is_not_announced_is_no_obstacle(server: TinyServer, target: Path) -> None:
    server.lengths = False
    download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert target.read_bytes() == CONTENT


def test_a_wrong_hash_leaves_nothing(server: TinyServer, target: Path) -> None:
    with pytest.raises(DataError, match=f"expected sha256 {'0' * 64}\n  found    sha256 {SHA256}"):
        download(f"{server.address}/a.zip", target, sha256="0" * 64)
    assert left_in(target.parent) == []


def test_the_hash_that_a_hub_announces_is_held_against_the_file(
    server: TinyServer, target: Path
) -> None:
    server.redirects["/hub.zip"] = f"{server.address}/a.zip"
    server.redirect_headers = {"X-Linked-Etag": f'"{SHA256}"', "X-Repo-Commit": "c" * 40}
    found = download(f"{server.address}/hub.zip", target)
    assert found.commit == "c" * 40
    server.redirect_headers["X-Linked-Etag"] = f'"{"1" * 64}"'
    with pytest.raises(DataError, match=r"1{64}"):
        download(f"{server.address}/hub.zip", target)


def test_an_error_that_passes_is_waited_for(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=waits.append))
    server.failures = [500, 503, 502, 429]
    download(f"{server.address}/a.zip", target)
    assert target.read_bytes() == CONTENT
    assert len(waits) == 4
    assert all(later > sooner for sooner, later in itertools.pairwise(waits))


def test_a_server_may_say_how_long_to_wait(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=waits.append))
    server.failures = [503, 503]
    server.headers = {"Retry-After": "7"}
    download(f"{server.address}/a.zip", target)
    assert waits == [7.0, 7.0]
    server.failures = [429]
    server.headers = {"Retry-After": "86400"}
    download(f"{server.address}/a.zip", target)
    assert waits[-1] <= 60


def test_an_error_that_stays_is_said(server: TinyServer, target: Path) -> None:
    server.failures = [500] * 50
    with pytest.raises(DataError, match="answered 500"):
        download(f"{server.address}/a.zip", target)
    assert len(server.asked) < 10
    assert left_in(target.parent) == []


@pytest.mark.parametrize(
    ("status", "words"),
    [(404, "no longer exists"), (403, "refuses"), (401, "refuses"), (400, "400")],
)
def test_a_refusal_is_not_asked_again(
    server: TinyServer, target: Path, status: int, words: str
) -> None:
    server.failures = [status]
    with pytest.raises(DataError, match=words):
        download(f"{server.address}/a.zip", target)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://example.org/a.zip",
        "ftp://example.org/a.zip",
        "file:///etc/passwd",
        "http://10.0.0.1/a",
    ],
)
def test_only_https_is_spoken(url: str, target: Path) -> None:
    with pytest.raises(DataError, match="is not https"):
        download(url, target)
    assert not target.parent.exists()


@pytest.mark.parametrize(
    "place", ["http://example.org/a.zip", "ftp://127.0.0.1/a", "file:///etc/passwd"]
)
def test_a_redirect_away_from_https_is_refused(
    server: TinyServer, target: Path, place: str
) -> None:
    server.redirects["/a.zip"] = place
    with pytest.raises(DataError, match="leads to"):
        download(f"{server.address}/a.zip", target)
    assert left_in(target.parent) == []


def test_a_server_on_the_network_may_not_send_us_to_this_machine() -> None:
    with pytest.raises(DataError, match="leads to"):
        module._require_https("http://127.0.0.1/a", coming_from="https://example.org/a")
    module._require_https("https://cdn.example.org/a", coming_from="https://example.org/a")


def test_no_network_is_said_at_once(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(socket, "create_connection", fail)
    with pytest.raises(DataError, match=r"hub\.example cannot be reached.*Check the network"):
        download("https://hub.example/a.zip", target)


def test_nobody_at_the_address_is_said_after_some_attempts(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda _: None))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(DataError, match="no connection"):
        download(f"http://127.0.0.1:{port}/a.zip", target)


def test_a_disk_that_is_too_small_is_said_before_the_transfer(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(100_000, 50_000, 50_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(StorageError, match=r"a\.zip needs 0\.1 MB in .* are free"):
        download(f"{server.address}/a.zip", target)
    assert left_in(target.parent) == []


def test_a_disk_that_fills_up_midway_keeps_what_has_arrived(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_after_one(response: httpx.Response) -> Iterator[bytes]:
        yield next(iter(response.stream))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(httpx.Response, "iter_raw", full_after_one)
        with pytest.raises(StorageError, match="No space left"):
            download(f"{server.address}/a.zip", target)
    server.asked.clear()
    download(f"{server.address}/a.zip", target, sha256=SHA256)
    assert server.asked[0][1].startswith("bytes=")


def test_more_bytes_than_announced_are_refused(
    server: TinyServer, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_total", lambda response, have: 1000)
    with pytest.raises(DataError, match="more bytes than it announced"):
        download(f"{server.address}/a.zip", target)


def test_damaged_notes_of_an_earlier_run_are_ignored(server: TinyServer, target: Path) -> None:
    target.parent.mkdir()
    part = target.with_name("a.zip.part")
    for notes in ("not json", "[]", json.dumps({"url": "https://other", "tag": "x"})):
        part.write_bytes(b"rubbish")
        part.with_name("a.zip.part.json").write_text(notes)
        download(f"{server.address}/a.zip", target)
        assert target.read_bytes() == CONTENT
        target.unlink()


def test_a_place_that_cannot_be_written_is_said(server: TinyServer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="a file is where a folder should be"):
        download(f"{server.address}/a.zip", tmp_path / "file" / "a.zip")


def test_space_is_added_up_for_places_on_one_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(100, 0, 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_space({tmp_path / "not" / "yet": 60}, what="x", remedy="leave")
    with pytest.raises(StorageError, match="leave"):
        check_space({tmp_path / "a": 60, tmp_path / "b": 60}, what="x", remedy="leave")


def test_the_file_is_as_readable_as_any_new_file(server: TinyServer, target: Path) -> None:
    download(f"{server.address}/a.zip", target)
    mask = os.umask(0)
    os.umask(mask)
    assert target.stat().st_mode & 0o777 == 0o666 & ~mask
