from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.report.charts import reliability_chart, risk_chart


def points(line):
    return [tuple(map(float, pair.split(","))) for pair in line[0].split()]


def curve(risks, overall):
    coverage = np.arange(1, len(risks) + 1) / len(risks)
    return risk_chart(coverage, risks, np.zeros(len(risks)), overall=overall, text="t")


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1))
def test_nothing_is_drawn_outside_the_frame(risks, overall):
    chart = curve(risks, overall)
    for line in chart.lines:
        for x, y in points(line):
            assert chart.left <= x <= chart.right
            assert chart.top <= y <= chart.bottom


def test_a_rate_stands_at_its_own_tick():
    chart = curve([0.0, 0.1, 0.3], 0.3)
    ticks = {text: at for at, text in chart.y_ticks}
    assert [y for _, y in points(chart.lines[-1])] == [ticks["0 %"], ticks["10 %"], ticks["30 %"]]


@pytest.mark.parametrize("overall", [0.0, 0.04, 0.1, 0.15, 0.25, 0.35, 0.5, 0.75, 1.0])
def test_ticks_are_round_and_reach_above_the_curve(overall):
    chart = curve([overall], overall)
    shares = [float(text.removesuffix(" %")) for _, text in chart.y_ticks]
    assert shares[-1] >= 100 * overall
    gaps = np.diff(shares)
    assert np.allclose(gaps, gaps[0])  # also fails where rounding hides a fraction


def test_long_curves_are_thinned_but_keep_their_ends():
    chart = curve(np.linspace(0, 0.3, 5000), 0.3)
    drawn = points(chart.lines[-1])
    assert len(drawn) <= 400
    assert drawn[-1] == (chart.right, chart.top)
    assert drawn[0][1] == chart.bottom


def test_dots_stand_where_certainty_and_truth_meet():
    chart = reliability_chart([0.5, 1.0], [0.5, 0.25], [1, 4], text="t")
    first, second = chart.dots
    assert first.y == first.even  # as sure as right
    assert second.x == chart.right
    assert second.y == {text: at for at, text in chart.y_ticks}["25 %"]
    assert second.even == chart.top
    assert second.radius > first.radius
    assert second.text == "4 images: 100 % confident, 25 % correct"
