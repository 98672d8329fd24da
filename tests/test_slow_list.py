"""slow.txt lists tests that exist; one that was renamed would silently become a fast one."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent


def test_every_slow_test_exists():
    lines = (TESTS / "slow.txt").read_text(encoding="utf-8").splitlines()
    entries = [entry for line in lines if (entry := line.split("#")[0].strip())]
    gone = []
    for entry in entries:
        file, _, name = entry.partition("::")
        source = TESTS / file
        if not source.is_file() or f"def {name}" not in source.read_text(encoding="utf-8"):
            gone.append(entry)
    assert entries
    assert not gone
