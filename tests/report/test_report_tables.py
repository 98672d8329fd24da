from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import ogkd.report
from ogkd.report.charts import confusion_table, graph_table

STYLE = (Path(ogkd.report.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")
DARKEST = 0.55


def test_confusion_cells_have_counts_and_shares_of_their_row():
    heat = confusion_table(np.array([[3, 1], [0, 0]]), ("a", "b"))
    (_, first), (_, second) = heat.rows
    assert [(cell.text, cell.note, cell.off) for cell in first] == [
        ("3", "75 %", False),
        ("1", "25 %", True),
    ]
    assert float(first[0].shade) == pytest.approx(0.75 * DARKEST, abs=1e-3)
    assert [cell.note for cell in second] == ["", ""]  # no image, no share


def test_many_classes_are_numbered_above_the_columns():
    names = [f"class {letter}" for letter in "abcdefghij"]
    heat = confusion_table(np.eye(10, dtype=np.int64), names)
    assert heat.columns == tuple(map(str, range(1, 11)))
    assert heat.rows[9][0] == "10 class j"
    assert confusion_table(np.eye(2, dtype=np.int64), names[:2]).columns == ("class a", "class b")


def test_the_graph_is_shaded_between_its_smallest_and_largest_value():
    heat = graph_table(np.array([[0.75, 0.25], [0.4, 0.6]]), ("a", "b"), caption="W")
    shades = [[float(cell.shade) for cell in cells] for _, cells in heat.rows]
    assert shades[0] == [DARKEST, 0.0]
    assert [[cell.text for cell in cells] for _, cells in heat.rows] == [
        ["75.0", "25.0"],
        ["40.0", "60.0"],
    ]
    even = graph_table(np.full((2, 2), 0.5), ("a", "b"), caption="W")
    assert {cell.shade for _, cells in even.rows for cell in cells} == {"0.000"}


def luminance(rgb):
    parts = [value / 255 for value in rgb]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def colours(dark):
    """The variables of the style sheet in one theme; #rrggbb and bare triples alike."""
    tones = {}
    light, _, rest = STYLE.partition("@media (prefers-color-scheme: dark)")
    night = rest[: rest.index("}\n}")]
    for part in (light, night) if dark else (light,):
        for name, value in re.findall(r"--([\w-]+): (#[0-9a-f]{6}|\d+ \d+ \d+);", part):
            bare = value.startswith("#")
            rgb = bytes.fromhex(value[1:]) if bare else map(int, value.split())
            tones[name] = tuple(rgb)
    return tones


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_readable_on_every_ground(dark):
    tone = colours(dark)
    for ground in ("ground", "card"):
        for ink in ("text", "quiet", "error", "warning", "note", "good"):
            assert contrast(tone[ink], tone[ground]) >= 4.5, (ink, ground)
    for heat in ("heat", "wrong"):  # the darkest cell of a table
        pairs = zip(tone[heat], tone["ground"], strict=True)
        cell = [DARKEST * over + (1 - DARKEST) * under for over, under in pairs]
        assert contrast(tone["text"], cell) >= 4.5, heat
    assert contrast(tone["model"], tone["ground"]) >= 3  # lines and dots
