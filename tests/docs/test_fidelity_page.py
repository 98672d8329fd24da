"""docs/concepts/fidelity.md says what the code does."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from ogkd.core.fidelity import PAPER, RELEASED

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "concepts" / "fidelity.md").read_text(encoding="utf-8")
PRESETS = ROOT / "src" / "ogkd" / "methods" / "presets"


def rows(start, columns):
    """The cells of the first table with that many columns after a text."""
    found = []
    for line in PAGE[PAGE.index(start) :].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) == columns:
            found.append(cells)
        elif found:
            break
    return found[2:]


def value(cell):
    """The literal that a cell starts with: `word`, true, a number."""
    word = re.match(r"`?([\w.]+)", cell)[1]
    return {"true": True, "false": False}.get(word, float(word) if word[0].isdigit() else word)


def test_every_option_is_listed_with_both_values():
    table = {cells[1]: (value(cells[2]), value(cells[3])) for cells in rows("## Choosing", 4)}
    released, paper = RELEASED.model_dump(), PAPER.model_dump()
    assert table == {f"`options.{name}`": (released[name], paper[name]) for name in released}


LAST = 54


def test_items_are_numbered_without_a_gap():
    numbers = [str(number) for number in range(1, LAST + 1)]
    assert re.findall(r"^\*\*(\d+)\. ", PAGE, re.MULTILINE) == numbers


def test_hyper_parameters_are_those_of_the_presets():
    presets = tomllib.loads((PRESETS / "ogkd.toml").read_text(encoding="utf-8"))
    names = ("alpha", "tau", "lambda_sccm", "lambda_gad", "lambda_lgd", "gamma", "top_ratio")
    table, dataset = {}, ""
    for cells in rows("## Hyper-parameters", 9):
        dataset = cells[0] or dataset
        table[f"paper/{cells[1]}/{dataset}"] = dict(zip(names, map(float, cells[2:]), strict=True))
    settings = {
        name: presets["shared"].get(name.rsplit("/", 1)[0], {}) | row
        for name, row in presets.items()
        if name.startswith("paper/")
    }
    assert set(table) == set(settings)
    for name, row in table.items():
        shown = {key: settings[name].get(key) for key in row}
        assert shown == pytest.approx(row), name


def test_the_source_cites_numbers_that_exist():
    cited = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert "AUDIT" not in text, f"{file.name} cites a document that is not in the repository"
        for found in re.findall(r"fidelity\.md, (\d+)", text):
            cited.add(int(found))
    assert cited <= set(range(1, LAST + 1))
    assert cited
