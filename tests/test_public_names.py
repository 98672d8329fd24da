"""`import ogkd` offers everything by name, and costs nothing until it is used."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import ogkd

EXPECTED = {
    *("Calibration", "Classifier", "Method", "OGKDClassifier", "calibrate", "evaluate", "explain"),
    *("fit", "geometry", "load", "load_backbone", "losses", "methods", "plugins", "read_image"),
    *("read_dataset", "register", "teacher", "report", "Policy", "zero_shot"),
}


@pytest.mark.parametrize("name", ogkd.__all__)
def test_every_name_resolves(name):
    assert getattr(ogkd, name) is not None
    assert name in dir(ogkd)


def test_a_researcher_finds_what_they_expect():
    assert set(ogkd.__all__) >= EXPECTED
    assert callable(ogkd.explain)
    assert callable(ogkd.calibrate)
    assert ogkd.__version__ == metadata.version("ogkd")
    assert ogkd.methods.METHODS["coop"].Config().train.lr == 2e-3
    assert ogkd.losses.cross_entropy.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        ogkd.fitt  # noqa: B018


def test_importing_is_light():
    code = "import sys, ogkd; dir(ogkd); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"
