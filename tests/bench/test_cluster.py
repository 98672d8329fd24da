"""Workers on a Ray cluster: what they are given, what they refuse, and a real cluster."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ogkd.bench import worker
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import work
from ogkd.errors import ConfigError
from ogkd.features.cluster import Cluster, settings_for_workers

HERE = Path(__file__).parent
CPU = ["--device", "cpu"]
WORDS = [sys.executable, "-m", "ogkd", "bench", "run"]
NODES = [
    {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}},
    {"Alive": True, "Resources": {"CPU": 4.0}},
    {"Alive": False, "Resources": {"GPU": 4.0}},
]
RAY = SimpleNamespace(nodes=lambda: NODES, cluster_resources=lambda: {"CPU": 12.0, "GPU": 2.0})


@pytest.mark.parametrize(
    ("count", "cpus", "device", "gpus", "fit"),
    [
        (None, 1, "auto", 1.0, 2),
        (2, 1, "cuda", 1.0, 2),
        (3, 1, "auto", 0.5, 3),  # two on one GPU
        (5, 1, "auto", 1 / 3, 5),
        (None, 1, "cpu", 0.0, 12),
        (None, 3, "cpu", 0.0, 3),
    ],
)
def test_each_worker_gets_a_gpu_or_a_share_of_one(count, cpus, device, gpus, fit):
    cluster = Cluster(count=count, cpus=cpus)
    resources = cluster.resources(RAY, device)
    assert resources == {"num_cpus": cpus, "num_gpus": gpus}
    assert cluster.workers(RAY, resources) == fit


@pytest.mark.parametrize(
    ("cluster", "device", "argument"),
    [(Cluster(cpus=9), "cpu", "cpus_per_worker"), (Cluster(), "cuda:1", "device")],
)
def test_workers_that_no_node_can_take_are_refused(cluster, device, argument):
    with pytest.raises(ConfigError) as caught:
        cluster.resources(RAY, device)
    assert caught.value.argument == argument


def test_node_that_lacks_the_folder_or_software_is_refused(bench, tmp_path):
    _, _, job = bench(datasets=["first"], shots=[1], seeds=[1])
    here = worker.version("ogkd")
    for changes, version, missing in (
        ({}, "0.0.0", "ogkd 0.0.0"),
        ({"out": str(tmp_path / "elsewhere")}, here, "elsewhere"),
        ({"backbone": "/no/backbone"}, here, "/no/backbone"),
    ):
        content = job.model_copy(update=changes).model_dump_json()
        error = worker.work_on_node(content, settings_for_workers(), version)
        assert missing in error["message"]
    content = job.model_dump_json()
    assert worker.work_on_node(content, settings_for_workers(), here) is None


@pytest.fixture
def nodes(monkeypatch):
    """A head and two worker nodes; `lose()` kills one of the workers."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "ogkd[ray]" to run this test')
    for name, value in (("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"), ("RAY_AUTH_MODE", "disabled")):
        monkeypatch.setenv(name, value)
    with subprocess.Popen(
        [sys.executable, HERE / "ray_cluster.py"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        address = process.stdout.readline().strip()
        assert address.startswith("127.0.0.1:"), "the cluster did not start"

        def lose():
            process.stdin.write("lose\n")
            process.stdin.flush()
            assert process.stdout.readline().strip() == "lost"

        yield SimpleNamespace(address=address, lose=lose)
        process.stdin.close()  # it ends what it started
        process.wait(timeout=300)


def assert_same_results(actual, expected):
    """Equal up to rounding: two workers may encode one image, each in its own batch."""
    theirs = {run.spec.hash: run for run in expected.runs()}
    ours = {run.spec.hash: run for run in actual.runs()}
    assert ours.keys() == theirs.keys()
    for name, run in ours.items():
        predictions, other = run.predictions(), theirs[name].predictions()
        assert (predictions.labels == other.labels).all()
        np.testing.assert_allclose(predictions.probabilities, other.probabilities, atol=1e-4)
        assert run.metric("accuracy") == theirs[name].metric("accuracy")


@pytest.mark.timeout(1800)  # many processes start: a busy machine takes minutes
def test_a_real_cluster_that_loses_a_node_gives_the_results_of_one_process(
    bench, datasets, grid_file, nodes, tmp_path
):
    data = shutil.copytree(datasets, tmp_path / "data")
    next((data / "second" / "test").rglob("*.png")).write_bytes(b"not an image")
    text = grid_file.read_text().replace('epochs" = 2', 'epochs" = 25')
    grid_file.write_text(text.replace(str(datasets), str(data)))
    with subprocess.Popen(
        [*WORDS, grid_file, "--out", tmp_path / "cluster", "--ray", nodes.address, *CPU],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        while process.poll() is None and not list((tmp_path / "cluster").glob("runs/*")):
            time.sleep(0.1)
        nodes.lose()
        output, errors = process.communicate()
    assert output == ""
    assert process.returncode == 1, errors  # some runs fail, and only those that must
    folder, plan, job = bench("alone")
    work(job)
    cluster = RunsFolder(tmp_path / "cluster")
    assert len(folder.runs()) == len(folder.failures()) == len(plan.cells) // 2 == 16
    assert_same_results(cluster, folder)
    assert cluster.failures() == folder.failures()
