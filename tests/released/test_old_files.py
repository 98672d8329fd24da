"""What `write_release.py` wrote with earlier releases is read by this one: the same answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from write_release import IMAGES, answers

from ogkd.bench.runs import RunsFolder
from ogkd.serve.studio.project import Project

RELEASES = sorted(path for path in Path(__file__).parent.iterdir() if path.name[0].isdigit())


@pytest.fixture(scope="module", params=RELEASES, ids=lambda folder: folder.name)
def release(request, tmp_path_factory):
    """A copy of the files of a release, what it answered, and what this version answers."""
    folder = tmp_path_factory.mktemp("released") / "copy"
    shutil.copytree(request.param, folder)
    recorded = json.loads((folder / "answers.json").read_text(encoding="utf-8"))
    return folder, recorded, answers(folder)


@pytest.mark.parametrize("name", IMAGES)
def test_a_released_model_answers_as_it_did(release, name):
    _, recorded, observed = release
    assert len(recorded["models"][name]) >= 4
    for before, now in zip(recorded["models"][name], observed["models"][name], strict=True):
        np.testing.assert_allclose(now.pop("probabilities"), before.pop("probabilities"), atol=2e-4)
        assert now == before


def test_a_released_studio_project_keeps_its_labels(release):
    folder, recorded, observed = release
    assert observed["studio"] == recorded["studio"]
    project = Project.open(folder / "studio")
    project.mark("../img/c.png", "label", "normal")
    assert len(project.labels) == len(recorded["studio"]["labels"]) + 1


def test_released_benchmark_results_are_read(release):
    folder, recorded, observed = release
    assert observed["runs"] == pytest.approx(recorded["runs"])
    runs = RunsFolder(folder / "runs")
    (plan,) = runs.plans().values()
    assert len(runs.finished(plan)) == len(recorded["runs"])
