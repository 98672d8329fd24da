"""Every promise of docs/reference/promises.md names a test that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/promises.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE)))


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_promised_test_exists(file, name):
    path = ROOT / "tests" / file
    assert path.is_file()
    functions = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    assert name in {node.name for node in functions if isinstance(node, ast.FunctionDef)}


def test_every_promise_names_a_test():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.endswith("| test |")]
    assert len(promises) > 40
    assert [row for row in promises if "::test_" not in row] == []
