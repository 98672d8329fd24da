from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from ogkd.model.drawing import background, draw, heat_map
from ogkd.model.explain import Evidence

DIM = 39  # what the grey level 60 becomes below the map


def flat(size, grid, patch, *, level=60):
    values = np.zeros(grid, np.float32)
    values[patch] = 1.0
    picture = Image.new("RGB", (size, size), (level,) * 3)
    return Evidence(None, picture, label=0, grid=values, rest=0.0, name="cyst")


def fundus(size=224):
    """An orange disc on a black ground with the noise of a JPEG."""
    rows, columns = np.mgrid[:size, :size] - size / 2
    picture = np.random.default_rng(0).integers(0, 5, (size, size, 3), np.uint8)
    disc = rows**2 + columns**2 < (0.45 * size) ** 2
    picture[disc] = (200, 110, 40)
    return picture, disc


def luminance(colour):
    """Of an sRGB colour, as WCAG 2 defines it."""
    shares = np.asarray(colour) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return linear @ [0.2126, 0.7152, 0.0722]


def test_heat_lies_where_the_evidence_is_and_nowhere_else():
    for size, side in ((32, 672), (128, 640), (384, 384), (1024, 672)):
        assert heat_map(flat(size, (4, 4), (0, 0))).size == (side, side)
    drawn = np.asarray(heat_map(replace(flat(224, (16, 16), (4, 12))))).astype(int)
    changed = np.abs(drawn - DIM).sum(axis=2)
    hottest = np.unravel_index(changed.argmax(), changed.shape)
    assert (hottest[0] // 42, hottest[1] // 42) == (4, 12)
    assert changed[:, :168].max() == 0  # smoothing reaches a few patches, no further
    assert changed[500:].max() == 0


@pytest.mark.parametrize("colour", [(225, 225, 225), (230, 140, 60), (128, 128, 128), (40, 20, 10)])
def test_the_strongest_place_stands_out_in_hue_and_in_lightness_on_any_ground(colour):
    evidence = replace(flat(224, (16, 16), (8, 8)), image=Image.new("RGB", (224, 224), colour))
    drawn = np.asarray(heat_map(evidence))
    ground, hot = drawn[10, 10], drawn[357, 357]
    contrast = (luminance(hot) + 0.05) / (luminance(ground) + 0.05)
    assert contrast > 2
    assert np.ptp(ground.astype(int)) == 0  # no colour but that of the evidence
    assert int(hot[2]) - int(hot[0]) > 60


def test_no_heat_falls_on_the_empty_background():
    picture, disc = fundus()
    grid = np.zeros((16, 16), np.float32)
    grid[0, 0], grid[8, 8] = 9.0, 2.0  # most of it in a black corner
    evidence = replace(flat(224, (16, 16), (0, 0)), image=Image.fromarray(picture), grid=grid)
    drawn = np.asarray(heat_map(evidence)).astype(int)
    outside = np.asarray(Image.fromarray(~disc).resize((672, 672), Image.Resampling.NEAREST))
    assert np.ptp(drawn[outside], axis=1).max() == 0  # grey as it was
    assert drawn[:100, :100].max() < 30
    inside = np.asarray(draw(evidence)).astype(int)
    assert drawn[357, 357, 2] > 200  # what is left is drawn at its full strength
    # The picture says that most of the evidence is not drawn.
    without = draw(replace(evidence, grid=np.where(grid == 9, 0, grid)))
    assert inside.shape[0] > without.height


@pytest.mark.parametrize("level", [0, 255])
def test_the_background_is_found_and_what_only_looks_dark_is_not(level):
    picture, disc = fundus()
    picture[~disc] = np.clip(picture[~disc].astype(int) + level, 0, 255)
    picture[100:120, 100:120] = level  # an even place inside the disc
    empty = background(picture)
    assert (empty == ~disc).mean() > 0.99
    assert not empty[100:120, 100:120].any()
    speckle = np.random.default_rng(1).integers(0, 40, (224, 224), np.uint8)
    assert background(np.repeat(speckle[..., None], 3, axis=2)).mean() < 0.01


def test_a_reason_not_to_rely_on_it_comes_first_and_greys_the_probability():
    evidence = replace(flat(224, (4, 4), (1, 1)), probability=0.982)
    plain, strange = (
        np.asarray(draw(replace(evidence, caution=text))).astype(int)
        for text in ("", "The image is unlike the images learned from.")
    )
    line = len(strange) - len(plain)
    assert line > 20
    first, second = strange[5:line], strange[line + 5 : 2 * line]
    assert (first[..., 0] - first[..., 2]).max() > 100  # a warning colour
    assert second.max() < 200  # and grey instead of white
    assert plain[5:line].max() > 240


@pytest.mark.parametrize("name", ["", "Ödem µ ≥ 2 – ж", "W" * 500, "two\nlines", "\udcff", "$x$"])
def test_any_class_name_can_be_drawn(name):
    drawn = draw(replace(flat(64, (4, 4), (1, 1)), name=name, probability=0.5))
    assert drawn.size == draw(flat(64, (4, 4), (1, 1))).size
    assert np.asarray(drawn)[:, -8:].max() < 30  # nothing runs over the edge
    unwritable, number = (
        draw(replace(flat(64, (4, 4), (1, 1)), name=text)) for text in ("腫瘍", "class 1")
    )
    assert unwritable == number


def test_what_speaks_against_the_class_has_a_colour_of_its_own():
    grid = np.zeros((8, 8), np.float32)
    grid[1:3, 1:3], grid[5:7, 5:7] = 1.0, -1.0
    ground = Image.new("RGB", (224, 224), (60, 60, 60))
    evidence = Evidence(ref=None, image=ground, label=0, grid=grid, name="cyst", rest=0.0)
    drawn = np.asarray(heat_map(evidence)).astype(int)
    cell = drawn.shape[0] // 8
    towards, away = drawn[2 * cell, 2 * cell], drawn[6 * cell, 6 * cell]
    assert towards[2] > towards[0] + 80  # blue
    assert away[0] > away[2] + 80  # orange
    assert np.ptp(drawn[0, -1]) == 0  # grey where nothing speaks
    assert draw(evidence).width > 900
