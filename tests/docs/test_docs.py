"""The code of README.md and docs/ is run: blocks that start with ```python test or ```bash test.

The blocks of a page run in order, in an empty folder. Python blocks share their names; a bash
block holds `ogkd` commands, one after the other, with `> FILE` at most.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from ogkd.cli import main

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|bash) test\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks_of(text):
    return [
        (match[1], match[2], text[: match.start()].count("\n") + 2)
        for match in BLOCK.finditer(text)
    ]


PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if blocks_of(page.read_text(encoding="utf-8"))
]


def run_bash(code, monkeypatch):
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        assert words[0] == "ogkd", f"only ogkd commands can be run: {line}"
        place = Path(words.pop()) if words[-2:-1] == [">"] else None
        if place is not None:
            words.pop()
        monkeypatch.setattr(sys, "argv", words)
        output = sys.stdout if place is None else place.open("w", encoding="utf-8")
        with redirect_stdout(output), pytest.raises(SystemExit) as stop:
            main()
        if place is not None:
            output.close()
        assert not stop.value.code, f"exit code {stop.value.code}: {line}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__docs__"}
    for language, code, line in blocks_of(page.read_text(encoding="utf-8")):
        if language == "bash":
            run_bash(code, monkeypatch)
        else:
            # Line numbers of errors are those of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), names)


def test_the_pages_that_teach_by_code_are_among_them():
    names = {page.relative_to(ROOT).as_posix() for page in PAGES}
    taught = {f"docs/how-to/{page}.md" for page in ("datasets", "images", "predict", "python")}
    assert names >= taught | {"README.md", "docs/get-started/first-model.md"}


def test_the_page_on_methods_shows_the_example_package():
    page = ROOT / "docs" / "how-to" / "add-a-method.md"
    shown = blocks_of(page.read_text(encoding="utf-8"))[0][1]
    example = ROOT / "examples" / "margin-method" / "ogkd_margin.py"
    assert shown == example.read_text(encoding="utf-8")
