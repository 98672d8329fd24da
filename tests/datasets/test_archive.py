"""Unpacking: ordinary archives come out as they went in, hostile ones leave nothing."""

from __future__ import annotations

import io
import shutil
import stat
import struct
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ogkd.datasets.archive import Limits, extract_into
from ogkd.errors import DataError, StorageError
from ogkd.files import folder_atomically

FILES = {
    "BTMRI/glioma_tumor/image 1.jpg": b"one" * 1000,
    "BTMRI/normal_brain/größe.png": b"",
    "split_BTMRI.json": b"{}",
}


def make_zip(path: Path, files: dict[str, bytes], **options: int) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def extract(archive: Path, target: Path, *, limits: Limits | None = None) -> Path:
    """As the download of a benchmark does it."""
    with folder_atomically(target) as aside:
        extract_into(archive, aside, limits=limits)
    return target


def unpacked(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def refused(archive: Path, words: str, **limits: float) -> None:
    """It must be refused with these words, and leave nothing, here or anywhere near."""
    near = archive.parent.parent
    before = sorted(near.rglob("*"))
    bounds = Limits(**limits) if limits else None  # type: ignore[arg-type]
    with pytest.raises(DataError, match=words):
        extract(archive, archive.parent / "out", limits=bounds)
    assert sorted(near.rglob("*")) == before


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder two levels down, so that what escapes is seen."""
    folder = tmp_path / "deep"
    folder.mkdir()
    return folder


def test_a_zip_comes_out_as_it_went_in(place: Path) -> None:
    archive = make_zip(place / "a.zip", FILES)
    assert unpacked(extract(archive, place / "out")) == FILES
    assert sorted(path.name for path in place.iterdir()) == ["a.zip", "out"]


def test_folders_shadow_files_and_odd_but_harmless_paths(place: Path) -> None:
    archive = place / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("./", "")
        file.writestr("empty/", "")
        file.writestr("./a//b.txt", "b")
        file.writestr("a/..hidden", "h")
        file.writestr("__MACOSX/a/._b.txt", "shadow")
    out = extract(archive, place / "out")
    assert unpacked(out) == {"a/b.txt": b"b", "a/..hidden": b"h"}
    assert (out / "empty").is_dir()


def test_nothing_unpacked_can_be_run_or_is_private(place: Path) -> None:
    archive = place / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        info = zipfile.ZipInfo("run.sh")
        info.external_attr = (stat.S_IFREG | 0o4777) << 16
        file.writestr(info, "#!/bin/sh")
    mode = (extract(archive, place / "out") / "run.sh").stat().st_mode
    assert not mode & (stat.S_ISUID | 0o111)
    assert mode & stat.S_IRUSR


ESCAPES = [
    "../evil",
    "a/../../evil",
    "/tmp/evil",
    "//server/evil",
    "..\\evil",
    "a\\b",
    "C:\\evil",
    "C:/evil",
    "a/c:evil",
    "a\nb",
    "a\x01b",
    "x" * 300,
    "y/" * 1200 + "z",
]


@pytest.mark.parametrize("name", ESCAPES)
def test_a_path_that_leads_out_is_refused(place: Path, name: str) -> None:
    refused(make_zip(place / "a", {"good": b"1", name: b"2"}), "refused: its entry")


def test_a_name_with_a_null_byte_is_refused(place: Path) -> None:
    archive = make_zip(place / "a.zip", {"image_png": b"1"})
    archive.write_bytes(archive.read_bytes().replace(b"image_png", b"image\0png"))
    refused(archive, "not plain")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO])
def test_links_and_devices_in_a_zip_are_refused(place: Path, kind: int) -> None:
    archive = place / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        info = zipfile.ZipInfo("link")
        info.external_attr = (kind | 0o777) << 16
        file.writestr(info, "/etc/passwd")
        file.writestr("link/evil", "1")
    refused(archive, "link or a device")


COLLISIONS = [
    ("A.png", "a.png"),
    ("a.png", "./a.png"),
    ("Tumor/1.png", "tumor/2.png"),
    ("a", "a/b"),
    ("a/b", "a"),
    ("e\u0301.png", "\u00e9.png"),
    ("stra\u00dfe", "STRASSE"),
]


@pytest.mark.parametrize("names", COLLISIONS)
def test_entries_that_fall_on_one_file_are_refused(place: Path, names: tuple[str, str]) -> None:
    refused(make_zip(place / "a", dict.fromkeys(names, b"1")), "collides with")


def test_the_same_name_twice_is_refused(place: Path) -> None:
    archive = place / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a", "first")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a", "second")
    refused(archive, "collides with 'a'")


def test_an_encrypted_zip_is_refused(place: Path) -> None:
    archive = make_zip(place / "a.zip", {"secret": b"1"})
    content = bytearray(archive.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[central + 8] |= 1
    archive.write_bytes(content)
    refused(archive, "is encrypted")


def test_a_compression_with_unbounded_growth_is_refused(place: Path) -> None:
    archive = place / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as file:
        file.writestr("a", "1")
    refused(archive, "compressed in a way")


def test_a_bomb_is_refused_before_it_is_unpacked(place: Path) -> None:
    refused(make_zip(place / "a.zip", {"zeros": bytes(5_000_000)}), "too densely")


def test_text_and_a_nested_archive_are_not_bombs(place: Path) -> None:
    nested = make_zip(place / "inner.zip", {"zeros": bytes(5_000_000)}).read_bytes()
    rows = [f"normal_brain/image{index}.jpg" for index in range(60_000)]
    files = {"inner.zip": nested, "split.json": "\n".join(rows).encode()}
    out = extract(make_zip(place / "a.zip", files), place / "out")
    assert unpacked(out) == files  # what is inside stays packed


def test_too_much_and_too_many_are_refused(place: Path) -> None:
    archive = make_zip(place / "a", {str(index): bytes(100) for index in range(20)})
    refused(archive, r"larger than", total=1999)
    refused(archive, "one of more than 19", members=19)
    extract(archive, place / "out", limits=Limits(total=2000, members=20))


def lie_about_size(archive: Path, size: int) -> None:
    """Write another unpacked size into both headers of the only entry."""
    content = bytearray(archive.read_bytes())
    central = content.index(b"PK\x01\x02")
    content[22:26] = struct.pack("<I", size)
    content[central + 24 : central + 28] = struct.pack("<I", size)
    archive.write_bytes(content)


@pytest.mark.parametrize("size", [10, 5_000_001])
def test_a_zip_that_lies_about_its_size_is_refused(place: Path, size: int) -> None:
    archive = make_zip(place / "a.zip", {"zeros": bytes(5_000_000)})
    lie_about_size(archive, size)
    refused(archive, "damaged|larger than the archive says", ratio=1e9)


def test_a_member_that_grows_beyond_its_size_is_stopped(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_zip(place / "a.zip", {"a": b"12345"})
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: io.BytesIO(bytes(10_000_000)))
    refused(archive, "larger than the archive says")
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: io.BytesIO(b"1"))
    refused(archive, "is incomplete")


def test_entries_that_share_bytes_are_refused(place: Path) -> None:
    """One packed body, listed twice: the quoted bomb in its simplest form."""
    archive = make_zip(place / "a.zip", {"a": b"x" * 5000, "b": b"y" * 5000})
    content = bytearray(archive.read_bytes())
    second = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 4)
    content[second + 42 : second + 46] = struct.pack("<I", 0)  # "b" begins where "a" does
    archive.write_bytes(content)
    refused(archive, "shares its bytes")


@pytest.mark.parametrize("keep", [0, 1, 50, 0.3, 0.6, 0.9, 0.999])
def test_a_truncated_archive_leaves_nothing(place: Path, keep: float) -> None:
    archive = make_zip(place / "a", {"a": bytes(range(256)) * 40, "b": b"2" * 3000})
    content = archive.read_bytes()
    cut = content[: int(keep * len(content)) if keep < 1 else int(keep)]
    archive.write_bytes(cut)
    refused(archive, "damaged or incomplete")


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_damaged_archive_never_writes_elsewhere_nor_fails_oddly(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    place = tmp_path_factory.mktemp("near") / "deep"
    place.mkdir()
    archive = make_zip(place / "a", {"a/b": b"hello" * 50, "c": b"2"})
    content = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    archive.write_bytes(content)
    try:
        extract(archive, place / "out")
    except DataError:
        assert sorted(path.name for path in place.iterdir()) == ["a"]
    assert [path.name for path in place.parent.iterdir()] == ["deep"]


def test_a_file_that_is_no_archive_is_said(place: Path) -> None:
    (place / "a.tar").write_bytes(b"name" + bytes(2000))  # only zip is read
    refused(place / "a.tar", "damaged")
    (place / "a.zip").write_text("<html>Sign in</html>" * 100)
    refused(place / "a.zip", "damaged")
    with pytest.raises(DataError, match="no archive"):
        extract(place / "gone.zip", place / "out")


def test_a_disk_that_is_too_small_is_said_before_the_first_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = make_zip(place / "a.zip", {"a": bytes(1000)})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(999, 0, 999))
    with pytest.raises(StorageError, match="unpacked"):
        extract(archive, place / "out")
    assert [path.name for path in place.iterdir()] == ["a.zip"]


def test_nothing_that_stands_in_the_folder_is_overwritten(place: Path) -> None:
    archive = make_zip(place / "a.zip", {"a": b"new"})
    (place / "out").mkdir()
    (place / "victim").write_text("old")
    (place / "out" / "a").symlink_to(place / "victim")
    with pytest.raises(FileExistsError):
        extract_into(archive, place / "out")
    assert (place / "victim").read_text() == "old"
