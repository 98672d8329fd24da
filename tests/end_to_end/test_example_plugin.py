"""The example package of examples/, installed and used as a researcher would: every step is a
process of its own, as plugins must be found wherever a method is asked for by name."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "margin-method"
BACKBONE = ROOT / "tests" / "parity" / "fixtures" / "class_token_mlp"
QUICK = ("--set", "train.epochs=2", "--set", "views=1")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the installed example; nothing is fetched."""
    place = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("example") / "margin-method")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, *options, str(source)], check=True, capture_output=True)
    return place


def run(*words, site=None):
    paths = [*([str(site)] if site else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ogkd", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_an_installed_package_adds_a_method_everywhere(site, pictures, tmp_path):
    lines = run("methods", site=site).stdout.splitlines()
    assert any(line.startswith("margin: ") and "[plugin ogkd-margin]" in line for line in lines)
    fit = ["fit", pictures, "--backbone", BACKBONE, "-m", "margin", *QUICK, "-o", tmp_path / "m"]
    fitted = run(*fit, "--set", "margin=0.2", site=site)
    assert fitted.returncode == 0, fitted.stderr
    card = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (card["method"], card["plugin"]) == ("margin", "ogkd-margin")
    assert card["config"]["margin"] == 0.2
    predict = ["predict", tmp_path / "m", pictures / "test" / "dark_field"]
    table = run(*predict, site=site).stdout
    assert len(list(csv.DictReader(io.StringIO(table)))) == 4
    without = run(*predict)
    assert without.returncode == 2
    assert "method 'margin' from the plugin 'ogkd-margin', which is not loaded" in without.stderr
    assert "Traceback" not in without.stderr
