"""Benchmarks from a server of our own: whole, checked, resumed after a kill, found by name."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from ogkd.data import catalog
from ogkd.data import fetch as module
from ogkd.data.case import Dataset
from ogkd.data.catalog import Benchmark, benchmarks
from ogkd.data.fetch import (
    download_benchmark,
    locate_benchmark,
    named_benchmark,
    read_benchmark,
    resolve_data,
)
from ogkd.errors import DataError, OgkdWarning
from ogkd.files import blob_id
from stub_server import StubServer, serve
from tiny_benchmark import COUNTS, PATHS, SPLIT, SPLIT_BYTES, SPLIT_SHA256, content, packed, record


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # as read when it was imported
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.delenv("OGKD_DATA", raising=False)
    with serve() as running:
        running.files["/TINY.zip"] = content()
        yield running


@pytest.fixture
def known(server: StubServer, monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """The tiny benchmark, in the catalogue under its name."""
    tiny = record(server)
    for place in (module, catalog):
        monkeypatch.setattr(place, "benchmarks", lambda: {"tiny": tiny, **benchmarks()})
    return tiny


def left_in(folder: Path) -> list[str]:
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return sorted(names - {".tiny.lock"})


def refused(tiny: Benchmark, words: str) -> None:
    with pytest.raises(DataError, match=words):
        download_benchmark(tiny)
    assert locate_benchmark(tiny) is None
    assert "tiny" not in left_in(module.data_dir())


@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"images": "TINY/", "split": "split_TINY.json"},
        {"images": "", "split": "split_TINY.json"},
        {"images": "deep/er/TINY/", "split": "deep/split_TINY.json"},
    ],
)
def test_a_benchmark_arrives_in_one_layout_whatever_the_archive_has(
    server: StubServer, layout: dict[str, str]
) -> None:
    server.files["/TINY.zip"] = content(**layout)
    server.headers = {"X-Repo-Commit": "d" * 40}
    tiny = record(server)
    assert locate_benchmark(tiny) is None
    folder = download_benchmark(tiny)
    source = json.loads((folder / "source.json").read_text())
    assert source["archive_sha256"] == hashlib.sha256(server.files["/TINY.zip"]).hexdigest()
    assert (source["split_sha256"], source["revision"]) == (SPLIT_SHA256, "d" * 40)
    assert folder == module.data_dir() / "tiny" == locate_benchmark(tiny)
    assert left_in(folder) == ["TINY", "source.json", "split_TINY.json"]
    assert left_in(folder.parent) == ["tiny"]
    dataset = read_benchmark(tiny)
    assert dataset.names == ("no finding", "tumor")
    assert [case.image.file for case in dataset.cases] == [folder / "TINY" / path for path in PATHS]
    assert [case.target for case in dataset.cases] == [1, 0, 1, 1, 0]
    assert all(
        case.image.file.read_bytes() == random.Random(path).randbytes(400)
        for case, path in zip(dataset.cases, PATHS, strict=True)
    )


def test_the_folder_of_benchmarks_may_be_set_and_nothing_is_fetched_again(
    server: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = record(server)
    monkeypatch.setenv("OGKD_DATA", str(tmp_path / "a b"))
    assert download_benchmark(tiny) == tmp_path / "a b" / "tiny" == locate_benchmark(tiny)
    assert len(read_benchmark(tiny).cases) == 5
    assert download_benchmark(tiny) == tmp_path / "a b" / "tiny"
    assert len(server.asked) == 1


def test_an_archive_without_its_split_file_gets_it_from_its_own_address(
    server: StubServer,
) -> None:
    server.files["/TINY.zip"] = content(split=None)
    with pytest.raises(DataError, match=r"does not contain split_TINY\.json"):
        download_benchmark(record(server))
    server.files["/split.json"] = SPLIT_BYTES
    tiny = record(server, split_url=f"{server.address}/split.json")
    server.files["/split.json"] = SPLIT_BYTES + b" "
    refused(tiny, "not the expected file")
    server.files["/split.json"] = SPLIT_BYTES
    assert (download_benchmark(tiny) / "split_TINY.json").read_bytes() == SPLIT_BYTES


@pytest.mark.parametrize(
    "change",
    [
        {"class_names": ("tumor", "no finding")},
        {"split_sha256": "0" * 64},
        {"archive_sha256": "0" * 64},
    ],
)
def test_data_that_differ_from_the_catalogue_are_refused(
    server: StubServer, change: dict[str, Any]
) -> None:
    refused(record(server, **change), "tiny|TINY")
    right = hashlib.sha256(server.files["/TINY.zip"]).hexdigest()
    assert download_benchmark(record(server, archive_sha256=right))


OUTSIDE = json.dumps({**SPLIT, "val": [["../../etc/passwd", 1, "tumor"]]}).encode()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({f"TINY/{path}": b"1" for path in PATHS[:-2]}, r"(?s)2 file.*TINY/tumor/1\.png"),
        ({"readme": b"1"}, r"does not contain tumor/2\.png"),
        ({"TINY/tumor/2.png": b"1", "split_TINY.json": OUTSIDE}, "leaves the data folder"),
        ({"../../evil": b"1"}, "does not contain"),
        ({"zeros": bytes(5_000_000)}, "was refused"),
    ],
)
def test_an_archive_whose_images_are_not_those_of_its_split_is_refused(
    server: StubServer, files: dict[str, bytes], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_BYTES", 1_000_000)
    server.files["/TINY.zip"] = packed({"split_TINY.json": SPLIT_BYTES, **files})
    refused(record(server, split_sha256=None), words)
    assert not list(module.data_dir().parent.rglob("evil"))


@pytest.mark.parametrize("keep", [0, 0.6])
def test_a_damaged_archive_is_fetched_anew(server: StubServer, keep: float) -> None:
    good = server.files["/TINY.zip"]
    server.files["/TINY.zip"] = good[: int(keep * len(good))]
    refused(record(server), "damaged or incomplete")
    server.files["/TINY.zip"] = good
    assert download_benchmark(record(server))


def test_a_mirror_of_the_hub_is_used(server: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"{server.address}/")
    server.files["/datasets/o/n/resolve/main/TINY.zip"] = server.files.pop("/TINY.zip")
    url = "https://huggingface.co/datasets/o/n/resolve/main/TINY.zip"
    assert download_benchmark(record(server, url=url))


def test_offline_is_respected(server: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    refused(record(server), "HF_HUB_OFFLINE is set")
    assert server.asked == []


PROGRAM = """
import sys, time
from ogkd.data import fetch
from ogkd.data.catalog import Benchmark
def slow(record, aside, work):
    print("unpacked", flush=True)
    time.sleep(60)
fetch._arrange = slow
fetch.download_benchmark(Benchmark.model_validate_json(sys.argv[1]))
"""


def test_a_kill_during_the_unpacking_is_resumed_without_a_transfer(server: StubServer) -> None:
    tiny = record(server)
    words = [sys.executable, "-c", PROGRAM, tiny.model_dump_json()]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    assert process.stdout is not None
    assert process.stdout.readline() == "unpacked\n"
    process.kill()
    process.communicate()
    assert len(left_in(module.data_dir())) == 2  # the archive, and a half-made folder
    assert locate_benchmark(tiny) is None
    server.asked.clear()
    assert download_benchmark(tiny)
    assert server.asked == []
    assert left_in(module.data_dir()) == ["tiny"]


def test_a_name_stands_for_the_downloaded_benchmark(known: Benchmark) -> None:
    with pytest.raises(DataError, match="ogkd data download tiny"):
        resolve_data("tiny")
    download_benchmark(known)
    dataset = resolve_data("tiny")
    assert dataset == resolve_data(Path("TINY")) == read_benchmark(known)
    assert resolve_data(dataset) is dataset
    assert named_benchmark("tiny") == known


def test_a_folder_that_exists_goes_before_a_name(
    known: Benchmark, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(pictures, tmp_path / "tiny")
    assert named_benchmark("tiny") is None
    assert "striped tissue" in resolve_data("tiny").names
    assert named_benchmark("some/btmri") is None


def test_a_folder_of_the_released_code_is_recognised(
    known: Benchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(download_benchmark(known), tmp_path / "data" / "TINY")
    dataset = resolve_data(tmp_path / "data" / "TINY")
    assert [case.target for case in dataset.cases] == [1, 0, 1, 1, 0]
    monkeypatch.setenv("OGKD_DATA", str(tmp_path / "data"))
    assert locate_benchmark(known) == tmp_path / "data" / "TINY"
    split = tmp_path / "data" / "TINY" / "split_TINY.json"
    split.write_bytes(SPLIT_BYTES + b"\n")
    with pytest.raises(DataError, match="not the official split file"):
        resolve_data("tiny")


def test_other_data_is_read_as_before(pictures: Path) -> None:
    dataset = resolve_data(str(pictures))
    assert isinstance(dataset, Dataset)
    assert len(dataset.names) == 3
    with pytest.raises(DataError, match="no folder or table"):
        resolve_data("nothing-like-it")
    with pytest.raises(DataError, match="Did you mean 'kvasir'"):
        resolve_data("kvasirr")


def test_a_split_file_known_by_its_name_in_git_is_checked_and_its_counts_are_a_warning(
    server: StubServer,
) -> None:
    known = blob_id(SPLIT_BYTES)
    other = record(server, split_sha256=None, split_git_blob="0" * 40)
    with pytest.raises(DataError, match=f"hash is {known}"):
        download_benchmark(other)
    assert left_in(module.data_dir()) in ([], [".tiny.download"])
    counts = COUNTS | {"train": 97}
    right = record(server, split_sha256=None, split_git_blob=known, counts=counts)
    with pytest.warns(OgkdWarning, match="97"):
        download_benchmark(right)
    assert read_benchmark(right).names == ("no finding", "tumor")
