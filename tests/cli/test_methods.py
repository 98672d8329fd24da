from __future__ import annotations

import json

from ogkd.methods import METHODS


def test_every_method_is_listed_with_what_it_needs_and_where_it_is_from(ogkd):
    outcome = ogkd("methods")
    assert outcome.code == 0, outcome.err
    for name, method in METHODS.items():
        assert name in outcome.out
        assert method.summary in outcome.out
        assert method.citation in outcome.out


def test_one_method_shows_its_settings_and_presets(ogkd):
    outcome = ogkd("methods", "ogkd")
    assert outcome.code == 0, outcome.err
    assert "train.epochs = 100" in outcome.out
    assert "paper/few-shot/btmri" in outcome.out


def test_programs_get_json(ogkd):
    listed = json.loads(ogkd("methods", "--json").out)
    assert [entry["name"] for entry in listed] == sorted(METHODS)
    gda = json.loads(ogkd("methods", "gda", "--json").out)
    assert gda["needs"] == ["labelled images", "validation images if there are any"]
    assert "views" in gda["settings"]


def test_a_slip_of_the_pen_gets_a_hint(refused):
    assert "Did you mean 'ogkd'?" in refused("methods", "ogdk")
