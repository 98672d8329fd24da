"""What a terminal or a log shows of long work."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ogkd import progress
from ogkd.progress import progress_bar


def shown(monkeypatch, columns, description, total, note):
    """The last line of a bar on a terminal of so many columns, at the end."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with progress_bar(description, total) as bar:
        bar.advance(total)
        bar.describe(note)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n").splitlines()
    return next(line.rstrip() for line in reversed(lines) if line.strip())


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    ("description", "total"), [("Training", 50), ("a-very-long-archive-name.tar.gz (MB)", 100_000)]
)
@pytest.mark.parametrize("note", ["loss 1.234", "total 1.234  ce 0.456  sccm 0.789  gad 0.123"])
def test_bar_count_and_times_fit_on_a_line(monkeypatch, columns, description, total, note):
    line = shown(monkeypatch, columns, description, total, note)
    assert len(line) <= columns
    assert f"{total}/{total}" in line
    assert len(re.findall(r"\d:\d\d:\d\d|-:--:--", line)) == 2
    assert len(re.findall("[━╸╺]", line)) >= 4
    assert ("loss 1.234" in line) == (note == "loss 1.234")


@pytest.mark.parametrize("interval", [0.0, 30.0])
def test_long_work_without_a_terminal_prints_lines(monkeypatch, capsys, interval):
    monkeypatch.setattr(progress, "_INTERVAL", interval)
    with progress_bar("Training", 50) as bar:
        bar.describe("loss 1.234")
        bar.advance(25)
    line = "" if interval else "Training 25/50 loss 1.234\n"
    assert capsys.readouterr() == ("", line)


def test_a_step_of_longer_work_is_shown_below_it_while_it_lasts(monkeypatch):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    with progress_bar("Learning curve", 2) as outer:
        for _ in range(2):
            with progress_bar("Training", 5) as inner:
                inner.advance(5)
                assert [task.description for task in inner._progress.tasks] == [
                    "Learning curve",
                    "Training",
                ]
            outer.advance()
        assert [task.completed for task in outer._progress.tasks] == [2]
