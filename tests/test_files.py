from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ogkd.errors import ConfigError, StorageError
from ogkd.files import (
    blob_id,
    cache_dir,
    fail_if_locked,
    folder_atomically,
    holds_files,
    read_bytes,
    read_json,
    read_toml,
    recover,
    write_atomically,
    write_json,
    write_new,
    write_text,
)


def fail_half_way(path):
    path.write_text("half")
    raise RuntimeError


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_write_is_whole_or_not_at_all(tmp_path):
    write_text(tmp_path / "sub" / "a.txt", "old")
    write_text(tmp_path / "sub" / "a.txt", "new ü")
    with pytest.raises(RuntimeError), write_atomically(tmp_path / "sub" / "a.txt") as aside:
        fail_half_way(aside)
    assert (tmp_path / "sub" / "a.txt").read_text(encoding="utf-8") == "new ü"
    assert names(tmp_path / "sub") == ["a.txt"]


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    for content in ("one", "two"):
        with folder_atomically(tmp_path / "model") as aside:
            (aside / content).write_text(content)
    with pytest.raises(RuntimeError), folder_atomically(tmp_path / "model") as aside:
        fail_half_way(aside / "half")
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


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO])
def test_refusals_of_the_disk_become_one_error(tmp_path, code):
    refused = pytest.raises(StorageError, match=os.strerror(code))
    with refused as caught, write_atomically(tmp_path / "a"):
        raise OSError(code, os.strerror(code))
    assert caught.value.argument == "out"
    assert names(tmp_path) == []


def test_kill_during_a_write_keeps_the_old_file(tmp_path):
    write_text(tmp_path / "a.txt", "old")
    program = textwrap.dedent(
        """
        import os, sys
        from pathlib import Path
        from ogkd.files import write_atomically
        with write_atomically(Path(sys.argv[1])) as aside:
            aside.write_text("half")
            os.kill(os.getpid(), 9)
        """
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.txt")])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "a.txt").read_text() == "old"
    (left,) = (path for path in tmp_path.iterdir() if path.name != "a.txt")
    (tmp_path / "a.txt").unlink()
    assert not holds_files(tmp_path)
    left.with_name(".mine").touch()
    assert holds_files(tmp_path)


def test_the_cache_can_be_moved(monkeypatch, tmp_path):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "mine"))
    assert cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("OGKD_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "ogkd"
    monkeypatch.setenv("OGKD_CACHE", "~nouser/x")
    with pytest.raises(ConfigError, match="no such home folder"):
        cache_dir()


KILLED = """
    import os, sys, ogkd.files as files
    from pathlib import Path
    path, rename, count = Path(sys.argv[1]), Path.rename, iter(range(9))
    def kill(self, to):
        if next(count) == int(sys.argv[2]):
            os.kill(os.getpid(), 9)
        return rename(self, to)
    Path.rename = kill
    with files.folder_atomically(path) as aside:
        (aside / "new").touch()
"""


@pytest.mark.parametrize("moment", [0, 1])
def test_a_folder_survives_a_kill_between_the_renames(tmp_path, moment):
    with folder_atomically(tmp_path / "m") as aside:
        (aside / "old").touch()
    code = textwrap.dedent(KILLED)
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "m"), str(moment)])
    assert done.returncode == -signal.SIGKILL
    assert (tmp_path / "m").exists() == (moment == 0)
    recover(tmp_path / "m")
    assert names(tmp_path / "m") == ["old"]
    with folder_atomically(tmp_path / "m") as aside:
        (aside / "new").touch()
    assert names(tmp_path) == ["m"]  # what the killed process left is gone
    assert names(tmp_path / "m") == ["new"]


def test_what_a_running_process_writes_is_not_swept(tmp_path):
    with write_atomically(tmp_path / "a.txt") as one, write_atomically(tmp_path / "a.txt") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a.txt").read_text() == "one"


@pytest.mark.parametrize("name", ["scan.png", "notes", "results.csv", "RESULTS.TXT"])
def test_only_a_file_with_the_suffix_of_the_result_is_replaced(tmp_path, name):
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(StorageError) as caught:
        write_json(path, {})
    assert caught.value.argument == "out"
    assert path.read_text() == "old"
    assert names(tmp_path) == [name]
    path.write_text("")  # nothing is lost
    write_json(path, {})
    write_text(path, "anything", ours=True)
    write_json(tmp_path / "a.JSON", {"new": 1})
    write_json(tmp_path / "a.JSON", {"new": 2})


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors", "calibration.json"])
def test_files_of_a_model_are_never_replaced(tmp_path, name):
    (tmp_path / "model.json").write_text("{}")
    (tmp_path / name).write_text("{}")
    with pytest.raises(StorageError), write_atomically(tmp_path / name):
        pass
    assert (tmp_path / name).read_text() == "{}"


def test_readers_refuse_pipes_devices_and_what_is_too_large(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="pipe or a device"):
            read_bytes(path)
    with pytest.raises(StorageError):
        write_new(Path("/dev/zero"), "text")
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(OSError, match="larger than"):
        read_bytes(tmp_path / "large", most=4)


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        *((read_json, text) for text in ("[" * 200_000, '{"a": "\\ud800"}', "1" * 5000, "{")),
        *((read_toml, text) for text in ("a = " + "[" * 5000, "a = " + "1" * 5000, "a")),
    ],
)
def test_content_that_cannot_be_used_is_a_value_error(tmp_path, reader, text):
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011
        reader(tmp_path / "file")


HOLD = """
import sys, time
from pathlib import Path
from ogkd.files import fail_if_locked
with fail_if_locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_folder_is_refused_while_another_process_writes_it_and_not_after_a_kill(
    tmp_path: Path,
) -> None:
    target = tmp_path / "deep" / "model"
    command = [sys.executable, "-c", HOLD, str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(StorageError, match="Another process is writing"),
            fail_if_locked(target),
        ):
            pass
        other.kill()
    with fail_if_locked(target):
        pass
    assert list(target.parent.iterdir()) == []


def test_a_blob_id_is_gits_own():
    assert blob_id(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"  # git hash-object /dev/null


def test_text_that_is_half_a_character_is_not_written(tmp_path):
    with pytest.raises(ConfigError, match="half a character"):
        write_json(tmp_path / "a.json", {"method": "a\udc00b"})
    assert names(tmp_path) == []
