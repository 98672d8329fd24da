"""The digest of a weight file is remembered, but never beyond a change of the file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ogkd.backbones import _folder
from ogkd.backbones._folder import backbone_digest
from ogkd.files import cache_dir, sha256_file


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were really read, with small ones worth remembering and no waiting."""
    seen: list[Path] = []

    def count(path: Path) -> str:
        seen.append(path)
        return sha256_file(path)

    monkeypatch.setattr(_folder, "sha256_file", count)
    monkeypatch.setattr(_folder, "_WORTH_REMEMBERING", 4)
    monkeypatch.setattr(_folder, "_TICK", 0)
    return seen


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"first content")
    return path


def test_an_unchanged_file_is_hashed_once(weights, hashed):
    assert backbone_digest(weights, {}) == backbone_digest(weights, {})
    assert hashed == [weights]


def test_a_changed_file_is_hashed_again_even_with_the_old_time_and_size(weights, hashed):
    before, times = backbone_digest(weights, {}), weights.stat()
    time.sleep(0.02)  # the clock of the file system
    weights.write_bytes(b"other content")
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert backbone_digest(weights, {}) != before
    assert len(hashed) == 2


@pytest.mark.parametrize("content", ["{}", "no JSON", '{"state": 1, "sha256": "0"}'])
def test_a_damaged_memory_is_not_believed(weights, hashed, content):
    expected = backbone_digest(weights, {})
    (place,) = (cache_dir() / "digests").iterdir()
    place.write_text(content)
    assert backbone_digest(weights, {}) == expected
    assert len(hashed) == 2
