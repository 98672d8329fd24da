from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from ogkd.errors import StorageError
from ogkd.files import (
    cache_dir,
    folder_atomically,
    sha256_file,
    write_atomically,
    write_json,
    write_text,
)


def fail_half_way(path):
    path.write_text("half")
    raise RuntimeError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_finished_write_replaces_the_old_content(tmp_path):
    write_text(tmp_path / "sub" / "a.txt", "old")
    write_text(tmp_path / "sub" / "a.txt", "new ü")
    assert (tmp_path / "sub" / "a.txt").read_text(encoding="utf-8") == "new ü"
    assert names(tmp_path / "sub") == ["a.txt"]


def test_a_failed_write_keeps_the_old_content_and_leaves_nothing_aside(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    with pytest.raises(RuntimeError), write_atomically(tmp_path / "a.txt") as aside:
        fail_half_way(aside)
    assert (tmp_path / "a.txt").read_text() == "old"
    assert names(tmp_path) == ["a.txt"]


def test_a_failed_folder_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), folder_atomically(tmp_path / "model") as aside:
        fail_half_way(aside / "weights")
    assert names(tmp_path) == []


def test_a_folder_replaces_a_folder_whole(tmp_path):
    for content in ("one", "two"):
        with folder_atomically(tmp_path / "model") as aside:
            (aside / content).write_text(content)
    assert names(tmp_path) == ["model"]
    assert names(tmp_path / "model") == ["two"]


def test_results_are_as_readable_as_any_new_file(tmp_path):
    (tmp_path / "plain").write_text("")
    usual = (tmp_path / "plain").stat().st_mode
    write_text(tmp_path / "file", "x")
    with folder_atomically(tmp_path / "folder") as aside:
        (aside / "inside").touch(mode=0o600)
    assert (tmp_path / "file").stat().st_mode == usual
    assert (tmp_path / "folder" / "inside").stat().st_mode == usual


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.ENOSPC, "No space left"),
        (errno.EACCES, "No permission"),
        (errno.EROFS, "No permission"),
    ],
)
def test_refusals_of_the_disk_become_one_message(tmp_path, code, words):
    with pytest.raises(StorageError, match=words), write_atomically(tmp_path / "a"):
        raise OSError(code, os.strerror(code))
    assert names(tmp_path) == []


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file is where a folder"):
        write_json(tmp_path / "file" / "a.json", {})


def test_kill_during_a_write_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from ogkd.files import write_atomically
        with write_atomically(Path(sys.argv[1])) as aside:
            aside.write_text("half")
            print("ready", flush=True)
            time.sleep(60)
        """
    )
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "a.txt")], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (tmp_path / "a.txt").read_text() == "old"


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256_file(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("OGKD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "ogkd"
