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
GRID = f"""
name = "margins"
data = "phantoms"
backbone = "{BACKBONE}"
datasets = ["us-breast"]
shots = [1]
seeds = [1, 2]
methods = ["margin", "means"]

[settings]
"train.epochs" = 2

[phantoms]
train = 2
val = 1
test = 2
"""
MEANS = """
import torch
from ogkd.methods import FeatureMethod, LinearHead, register

@register
class Means(FeatureMethod):
    name, summary = "means", "class means"

    def fit_rows(self, rows, text, *, seed):
        W = rows.one_hot.mT @ rows.features
        return LinearHead(W, torch.zeros(len(W)))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the installed example; nothing is fetched."""
    place = tmp_path_factory.mktemp("site")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("example") / "margin-method")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--target", str(place)]
    subprocess.run([*pip, *options, str(source)], check=True, capture_output=True)
    return place


def ogkd(*words, site=None, cwd=None):
    paths = [*([str(site)] if site else []), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ogkd", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=cwd)


def fine(*words, **options):
    outcome = ogkd(*words, **options)
    assert outcome.returncode == 0, outcome.stderr
    return outcome.stdout


def refused(*words, **options):
    outcome = ogkd(*words, **options)
    assert outcome.returncode == 2, outcome
    assert "Traceback" not in outcome.stderr
    return outcome.stderr


def fit(pictures, out, *words):
    return ["fit", pictures, "--backbone", BACKBONE, "-m", "margin", *QUICK, "-o", out, *words]


def labels(table):
    return [row["prediction"] for row in csv.DictReader(io.StringIO(table))]


def test_an_installed_package_adds_a_method_everywhere(site, pictures, tmp_path):
    listed = {row["name"]: row for row in json.loads(fine("methods", "--json", site=site))}
    assert listed["margin"]["plugin"] == "ogkd-margin"
    fine(*fit(pictures, tmp_path / "m", "--set", "margin=0.2"), site=site)
    card = json.loads((tmp_path / "m" / "model.json").read_text())
    assert (card["method"], card["plugin"]) == ("margin", "ogkd-margin")
    assert card["config"]["margin"] == 0.2
    predict = ["predict", tmp_path / "m", pictures / "test" / "dark_field"]
    assert len(labels(fine(*predict, site=site))) == 4

    said = refused(*predict)
    assert "method 'margin' from the plugin 'ogkd-margin', which is not loaded" in said
    assert "--plugin" in said


def test_two_bench_workers_find_packages_and_files(site, tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    (tmp_path / "means.py").write_text(MEANS)
    run = ["bench", "run", "grid.toml", "--out", "runs", "--workers", "2", "--plugin", "means.py"]
    fine(*run, site=site, cwd=tmp_path)
    done = [json.loads(file.read_text()) for file in (tmp_path / "runs").rglob("spec.json")]
    assert sorted(spec["method"] for spec in done) == ["margin", "margin", "means", "means"]


def test_a_file_is_enough(pictures, tmp_path):
    file = shutil.copy(EXAMPLE / "ogkd_margin.py", tmp_path / "mine.py")
    fine(*fit(pictures, tmp_path / "m"), "--plugin", file)
    card = (tmp_path / "m" / "model.json").read_text()
    assert json.loads(card)["plugin"] == "mine"
    assert str(tmp_path) not in card.replace(str(BACKBONE), "")
    predict = ["predict", tmp_path / "m", pictures / "test" / "dark_field"]
    # A file of that name where the command runs must not be imported by itself.
    assert "the plugin 'mine', which is not loaded" in refused(*predict, cwd=tmp_path)
    assert len(labels(fine("--plugin=mine.py", *predict, cwd=tmp_path))) == 4
