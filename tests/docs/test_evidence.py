"""The tables of docs/evidence are those of the results in the repository."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
evidence = importlib.import_module("benchmarks.evidence")


def test_pages_show_what_was_measured():
    for page in evidence.pages():
        text = page.read_text()
        assert evidence.filled(text) == text, f"{page.name}: run `python -m benchmarks write`"


def test_results_say_where_they_come_from():
    for name, experiment in evidence.experiments().items():
        record = experiment.record
        assert record.keys() >= {"commit", "date", "machine", "versions", "digest"}, name
        assert str(ROOT) not in json.dumps(record)
        assert experiment.frame is not None, name
        assert len(experiment.frame) > 0, name


def test_every_picture_of_a_page_is_drawn():
    for page in evidence.pages():
        for name in re.findall(r"\]\(pictures/([\w-]+\.png)\)", page.read_text()):
            assert (evidence.PICTURES / name).exists(), f"{page.name}: {name}"


def test_results_are_older_than_their_code_only_if_it_does_something_else(tmp_path):
    file = tmp_path / "a.py"
    file.write_text('"""Doc."""\n\n\ndef f(x):\n    """Doc."""\n    return x + 1  # a comment\n')
    same = tmp_path / "b.py"
    same.write_text("def f(x):\n    return x + 1\n")
    other = tmp_path / "c.py"
    other.write_text("def f(x):\n    return x + 2\n")
    assert evidence.code_of(file) == evidence.code_of(same) != evidence.code_of(other)


def test_a_difference_is_paired_by_dataset_and_seed():
    from benchmarks.common import mean_and_spread, paired

    rows = [
        {
            "dataset": d,
            "seed": s,
            "label": m,
            "accuracy": 0.5 + 0.1 * d + 0.01 * s + 0.02 * (m == "a"),
        }
        for d in range(5)
        for s in range(4)
        for m in "ab"
    ]
    frame = pd.DataFrame(rows)
    assert paired(frame, "a", "b", "accuracy") == pytest.approx((0.02, 0.02, 0.02))
    mean, spread = mean_and_spread(frame[frame["label"] == "b"], "accuracy")
    assert mean == pytest.approx(0.715)
    assert spread == pytest.approx(pd.Series([0, 0.01, 0.02, 0.03]).std(ddof=0))
