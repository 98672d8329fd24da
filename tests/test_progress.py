"""What a terminal or a notebook shows of long work; without them, nothing."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import types

import pytest
from rich.console import Console

from ogkd import progress
from ogkd.progress import progress_bar

LONG = "total 1.234  ce 0.456  sccm 0.789  gad 0.123  lgd 0.456  12.3 epochs/s"


def shown(monkeypatch, columns, description, total, note):
    """The last line of a bar on a terminal of so many columns, at the end."""
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=columns, color_system=None)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    with progress.progress_bar(description, total) as bar:
        bar.advance(total)
        bar.describe(note)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()).replace("\r", "\n").splitlines()
    return next(line.rstrip() for line in reversed(lines) if line.strip())


@pytest.mark.parametrize("columns", [80, 100, 120])
@pytest.mark.parametrize(
    ("description", "total"), [("Training", 50), ("a-very-long-archive-name.tar.gz (MB)", 100_000)]
)
@pytest.mark.parametrize("note", ["loss 1.234", LONG])
def test_bar_count_and_times_are_never_pushed_out(monkeypatch, columns, description, total, note):
    line = shown(monkeypatch, columns, description, total, note)
    assert len(line) <= columns
    assert f"{total}/{total}" in line
    assert len(re.findall(r"\d:\d\d:\d\d|-:--:--", line)) == 2
    assert len(re.findall("[━╸╺]", line)) >= 10
    assert "loss 1.234" in line or note == LONG
    assert "…" in line or note != LONG


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_a_short_name_leaves_room_for_a_wide_bar(monkeypatch, columns):
    line = shown(monkeypatch, columns, "Training", 50, "loss 1.234")
    assert len(re.findall("[━╸╺]", line)) >= 30


CODE = """
from ogkd.progress import progress_bar
with progress_bar("Training", 50) as bar:
    bar.advance(25)
    bar.describe("loss 1.234")
"""


def test_without_a_terminal_nothing_is_printed():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_a_terminal_of_eighty_columns_shows_bar_count_and_loss():
    import fcntl
    import pty
    import struct
    import termios

    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    clean = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    environment = {**clean, "TERM": "xterm"}
    done = subprocess.Popen([sys.executable, "-c", CODE], stderr=inner, env=environment)
    assert done.wait(timeout=600) == 0
    os.close(inner)
    seen = os.read(outer, 65536).decode()
    os.close(outer)
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).strip().splitlines()[-1]
    assert "━" in last
    assert "25/50" in last
    assert last.rstrip().endswith("loss 1.234")


class Kernel:
    """Stands for IPython: what would be displayed."""

    def __init__(self):
        self.shown = []

    def display(self, page, display_id):
        assert display_id
        self.update(page)
        return self

    def update(self, page):
        self.shown.append(page)


@pytest.fixture
def notebook(monkeypatch):
    kernel = Kernel()
    ipython, tools = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=kernel)
    tools.HTML, tools.display = str, kernel.display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", tools)
    monkeypatch.setattr(progress, "_PAUSE", 0.0)
    return kernel


def test_a_notebook_shows_one_bar_and_then_one_line(notebook, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    with progress_bar("Reading <b>", 3) as bar:
        bar.advance(2)
        bar.describe("9 images/s")
        bar.advance()
    assert 'Reading &lt;b&gt; <progress value="2" max="3"></progress> 2 of 3' in notebook.shown[0]
    assert "9 images/s" in notebook.shown[1]
    assert "<progress" not in notebook.shown[-1]
    assert "3 of 3" in notebook.shown[-1]
    assert capsys.readouterr() == ("", "")


def test_short_work_leaves_no_trace_in_a_notebook(notebook):
    with progress_bar("Reading", 3) as bar:
        bar.advance(3)
    assert notebook.shown == []


def test_a_bar_ends_when_the_work_fails(notebook, monkeypatch):
    monkeypatch.setattr(progress, "_DELAY", 0.0)

    def fail():
        with progress_bar("Reading") as bar:
            bar.advance()
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert "<progress></progress> 1, " in notebook.shown[0]
    assert "<progress" not in notebook.shown[-1]


def test_ipython_in_a_terminal_is_not_a_notebook(notebook, monkeypatch):
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: types.SimpleNamespace())
    with progress_bar("Reading", 3) as bar:
        bar.advance(3)
    assert notebook.shown == []
