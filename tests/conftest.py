"""Fixtures that many tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)  # tests run in parallel processes, one core each


@pytest.fixture(scope="session")
def shared() -> Path:
    """The developers' shared folder, or a skip that says how to have it."""
    folder = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    if not (folder / "data" / "MANIFEST.json").is_file():
        pytest.skip(f"no shared folder at {folder}: set OGKD_SHARED to run this test")
    return folder


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache, nor reaches for the network."""
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
