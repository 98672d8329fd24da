"""Charts stay in their frame; text is readable on every colour."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ogkd.report
from ogkd.evaluation.sections import Chart, Line
from ogkd.report.page import DARKEST, Drawing

STYLE = (Path(ogkd.report.__file__).parent / "templates" / "style.css").read_text(encoding="utf-8")


def drawing(risks, dots=()):
    x = tuple((np.arange(1, len(risks) + 1) / len(risks)).tolist())
    line = Line("model", "this model", x, tuple(risks))
    return Drawing(Chart("t", "kept", "errors", (line,), tuple(dots)))


def points(drawn):
    pairs = drawn.points(drawn.chart.lines[0]).split()
    return [tuple(map(float, pair.split(","))) for pair in pairs]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_nothing_is_drawn_outside_the_frame(risks):
    drawn = drawing(risks)
    for x, y in points(drawn):
        assert drawn.left <= x <= drawn.right
        assert drawn.top <= y <= drawn.bottom


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
