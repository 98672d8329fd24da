"""`import ogkd` offers everything by name, and costs nothing until it is used."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from importlib import metadata

import pytest

import ogkd

EXPECTED = {
    *("Calibration", "Classifier", "Method", "OGKDClassifier", "calibrate", "evaluate", "explain"),
    *("fit", "geometry", "load", "load_backbone", "losses", "methods", "plugins", "read_image"),
    *("read_dataset", "register", "teacher", "report", "show_results", "Policy", "zero_shot"),
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
    text = pydoc.render_doc(ogkd)
    assert 'ogkd.fit("my_images/", shots=16)' in text
    assert all(name in text for name in EXPECTED)
    shown = [name for name in dir(ogkd) if not name.startswith("_")]
    assert shown == sorted(name for name in ogkd.__all__ if not name.startswith("_"))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        ogkd.fitt  # noqa: B018


def test_importing_is_light():
    code = "import sys, ogkd; dir(ogkd); print(sorted({'torch', 'numpy'} & set(sys.modules)))"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"
