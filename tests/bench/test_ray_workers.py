"""Runs on a Ray cluster: the accounting with a stand-in for Ray, the rest with a real cluster."""

from __future__ import annotations

import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ray_stand_in import Quick, StandIn, results

from ogkd.bench import ray_workers
from ogkd.bench.grid import expand, read_grid
from ogkd.bench.ray_workers import NodeState, RunActor, run_ray
from ogkd.bench.runner import RunGroup
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import GroupAnswer, Ledger, lock_group
from ogkd.bench.workers import make_job, prepare, run_here
from ogkd.errors import ConfigError, StorageError
from ogkd.features import ray_cluster as cluster_module
from ogkd.features.ray_encode import RayWorkers

HERE = Path(__file__).parent
WORDS = [sys.executable, "-m", "ogkd", "bench", "run"]


@pytest.fixture
def bench(grid_file, tmp_path):
    def make(out="runs", **changes):
        grid = read_grid(grid_file, {"shots": [1], "seeds": [1], **changes})
        plan, sources = expand(grid)
        folder = RunsFolder(tmp_path / out)
        prepare(folder, plan)
        return folder, plan, make_job(plan, sources, grid.backbone, device="cpu")

    return make


TWO_GAMMAS = [
    {"method": "ogkd", "label": "right", "settings": {"gamma": 0.3}},
    {"method": "ogkd", "label": "wrong", "settings": {"gamma": [0.1, 0.2]}},  # of four classes
]


@pytest.fixture
def stand_in(monkeypatch):
    def use(worker=Quick, **options):
        ray = StandIn(worker, **options)
        monkeypatch.setattr(ray_workers, "cluster", lambda *_, **__: _given(ray))
        monkeypatch.setattr(ray_workers, "_PAUSE", 0.01)
        return ray

    return use


class _given:  # noqa: N801
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        return None


def write(folder, group):
    Ledger(folder, [group], lambda _: None).store(group, GroupAnswer(results(group)))


def done(events):
    return Counter(event["group"] for event in events if event["event"] == "done")


def test_every_group_is_run_once_and_workers_are_ended(bench, stand_in):
    folder, plan, job = bench()
    ray = stand_in()
    events = []
    run_ray(folder, job, events.append)
    assert len(folder.finished(plan)) == len(plan.cells)
    assert done(events) == {group.name: 1 for group in job.groups()}
    assert ray.started == ray.killed == 2


def test_test_images_are_encoded_once_before_the_runs_of_their_dataset(bench, stand_in):
    folder, _, job = bench()
    ray = stand_in()
    run_ray(folder, job, lambda _: None)
    encoded = [call[1] for call in ray.calls if call[0] == "encode"]
    assert sorted(len(paths) for paths in encoded) == [12, 12]
    assert len({path for paths in encoded for path in paths}) == 24
    names = [call[0] for call in ray.calls if call[0] != "start"]
    assert names[:2] == ["encode", "encode"]


def test_where_validation_images_judge_no_test_image_is_encoded(bench, stand_in):
    folder, _, job = bench(datasets=["first"], judge="val")
    ray = stand_in()
    run_ray(folder, job, lambda _: None, RayWorkers(count=1))
    (paths,) = [call[1] for call in ray.calls if call[0] == "encode"]
    assert paths
    assert all("/val/" in path for path in paths)


def test_without_a_common_cache_nothing_is_encoded_beforehand(bench, stand_in):
    class Alone(Quick):
        state = NodeState("node", "d", shares_cache=False)

    folder, plan, job = bench()
    ray = stand_in(Alone)
    run_ray(folder, job, lambda _: None)
    assert not [call for call in ray.calls if call[0] == "encode"]
    assert len(folder.finished(plan)) == len(plan.cells)


def test_what_a_lost_worker_was_doing_is_done_by_another(bench, stand_in):
    folder, plan, job = bench()
    left = Counter({"run": 2, "encode": 1, "start": 1})

    def die(name, *_):
        left[name] -= 1
        return left[name] >= 0

    ray = stand_in(deaths=die)
    events = []
    run_ray(folder, job, events.append)
    assert len(folder.finished(plan)) == len(plan.cells)
    assert not folder.failures()
    assert set(done(events).values()) == {1}
    assert sum(event["event"] == "died" for event in events) == 4  # each one is reported
    assert ray.killed == ray.started


def test_a_group_that_costs_three_workers_fails_and_the_rest_goes_on(bench, stand_in):
    folder, plan, job = bench()
    fatal = job.groups()[3]
    stand_in(deaths=lambda name, *given: name == "run" and given[0].name == fatal.name)
    run_ray(folder, job, lambda _: None)
    assert {spec.hash for spec, _ in folder.failures()} == {spec.hash for spec in fatal.specs}
    assert all("died 3 times" in reason for _, reason in folder.failures())
    assert len(folder.finished(plan)) == len(plan.cells) - len(fatal.specs)


def test_workers_that_never_start_are_one_clear_error(bench, stand_in):
    folder, _, job = bench()
    ray = stand_in(deaths=lambda name, *_: name == "start")
    with pytest.raises(ConfigError, match=r"cannot be started.*the node is gone.*every node"):
        run_ray(folder, job, lambda _: None)
    assert ray.killed == ray.started


def test_an_error_of_a_run_is_recorded_and_a_full_disk_ends_the_work(bench, stand_in):
    class Wrong(Quick):
        def run(self, group):
            return GroupAnswer(error="no such prompt")

    class Full(Quick):
        def run(self, group):
            return GroupAnswer(error="No space left", no_space=True)

    folder, plan, job = bench()
    stand_in(Wrong)
    run_ray(folder, job, lambda _: None)
    assert {reason for _, reason in folder.failures()} == {"no such prompt"}
    prepare(folder, plan)
    ray = stand_in(Full)
    with pytest.raises(StorageError, match="No space left"):
        run_ray(folder, job, lambda _: None)
    assert ray.killed == ray.started


def test_only_the_guilty_run_of_a_group_fails_as_in_one_process(bench, stand_in):
    changes = {"methods": [], "rows": TWO_GAMMAS, "datasets": ["first"]}
    alone, _, job = bench("alone", **changes)
    assert [len(group.specs) for group in job.groups()] == [2]
    run_here(alone, job, lambda _: None)
    folder, plan, job = bench("cluster", **changes)
    ray = stand_in(RunActor)
    events = []
    run_ray(folder, job, events.append, RayWorkers(count=1))
    assert [label for label, _ in folder.finished(plan)] == ["right"]
    assert_same_results(folder, alone)
    ((spec, reason),) = folder.failures()
    assert spec.settings["gamma"] == [0.1, 0.2]
    assert "gamma has 2 values, but there are 4 classes" in reason
    assert folder.failures() == alone.failures()
    tried = [len(call[1].specs) for call in ray.calls if call[0] == "run"]
    assert tried == [2, 1, 1]
    assert Counter(event["event"] for event in events) == {"start": 3, "done": 1, "failed": 1}


def test_runs_that_are_there_are_not_tried_again_when_their_group_fails(bench, stand_in):
    class Wrong(Quick):
        def run(self, group):
            return GroupAnswer(error="no such prompt")

    folder, _, job = bench(seeds=[1, 2], datasets=["first"], only=["gda"])
    (group,) = job.groups()
    there = RunGroup(group.specs[:1])
    write(folder, there)
    ray = stand_in(Wrong)
    run_ray(folder, job, lambda _: None)
    assert [call[1] for call in ray.calls if call[0] == "run"] == [group, RunGroup(group.specs[1:])]
    assert folder.failures() == [(group.specs[1], "no such prompt")]
    assert folder.has(group.specs[0])


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ([NodeState("n1", problem="there is no folder X")], "node n1 .*no folder X"),
        ([NodeState("n1", "d", True), NodeState("n2", "e", True)], "another backbone on node n2"),
    ],
)
def test_a_node_that_is_not_like_the_others_is_named(bench, stand_in, states, words):
    waiting = list(states)

    class Odd(Quick):
        def start(self):
            return waiting.pop(0)

    folder, _, job = bench()
    stand_in(Odd)
    with pytest.raises(ConfigError, match=words):
        run_ray(folder, job, lambda _: None)


def test_results_of_another_backbone_are_not_mixed(bench, stand_in):
    folder, _, job = bench()
    stand_in()
    run_ray(folder, job.model_copy(update={"specs": job.specs[:2]}), lambda _: None)

    class Other(Quick):
        state = NodeState("node", "other", shares_cache=True)

    stand_in(Other)
    with pytest.raises(ConfigError, match=r"digest d, but this one has other.*another folder"):
        run_ray(folder, job, lambda _: None)


@pytest.mark.parametrize("first", [2, 0])
def test_results_on_other_images_are_not_mixed(bench, stand_in, first):
    """Images of a dataset that is there already, or of another node."""
    folder, _, job = bench(datasets=["first"])
    stand_in()
    run_ray(folder, job.model_copy(update={"specs": job.specs[:first]}), lambda _: None)
    answers = itertools.count(first)

    class Other(Quick):
        def run(self, group):
            return GroupAnswer(results(group, data="images" if next(answers) == 0 else "others"))

    ray = stand_in(Other)
    with pytest.raises(ConfigError, match=r"other images of 'first'.*another folder"):
        run_ray(folder, job, lambda _: None)
    assert ray.killed == ray.started
    assert {run.result["data_sha256"] for run in folder.runs()} == {"images"}


def test_what_another_process_works_on_is_left_to_it(bench, stand_in):
    folder, plan, job = bench()
    ray = stand_in()
    theirs = job.groups()[0]
    lock = lock_group(folder, theirs)
    ours = len(job.groups()) - 1
    count, finished = Counter(), []

    def on_event(event):
        count[event["event"]] += 1
        if count["done"] == ours and not finished:  # the other process finishes
            write(folder, theirs)
            lock.close()
            finished.append(theirs)

    run_ray(folder, job, on_event)
    assert count["done"] == ours
    assert theirs.name not in {call[1].name for call in ray.calls if call[0] == "run"}
    assert len(folder.finished(plan)) == len(plan.cells)


def test_a_run_larger_than_every_node_is_refused(bench, stand_in):
    folder, _, job = bench()
    stand_in(cores=2.0)
    with pytest.raises(ConfigError, match=r"No node .*4 CPU\(s\) and 0 GPU\(s\)"):
        run_ray(folder, job, lambda _: None, RayWorkers(cpus=4))
    with pytest.raises(ConfigError, match=r"1 CPU\(s\) and 0\.5 GPU\(s\)"):
        run_ray(folder, job, lambda _: None, RayWorkers(gpus=0.5))


@pytest.mark.parametrize(("device", "given"), [("auto", 1.0), ("cpu", 0.0)])
def test_workers_have_the_gpus_of_the_cluster_unless_the_device_is_the_cpu(
    bench, stand_in, device, given
):
    folder, plan, job = bench()
    ray = stand_in(cores=8.0, gpus=2.0)
    run_ray(folder, job.model_copy(update={"device": device}), lambda _: None)
    assert {options["num_gpus"] for options in ray.options} == {given}
    assert len(folder.finished(plan)) == len(plan.cells)


def test_without_ray_the_message_says_how_to_install_it(bench, monkeypatch):
    folder, _, job = bench()
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'pip install "ogkd\[ray\]"'):
        run_ray(folder, job, lambda _: None)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", r"cluster at '127\.0\.0\.1:1': .*refused"),  # Ray would try for minutes
        ("auto", r"cluster at 'auto': nobody listens\. Give the address"),
    ],
)
def test_a_cluster_that_cannot_be_reached_is_one_clear_error(monkeypatch, address, words):
    def init(**_):
        raise ConnectionError("nobody listens\nmore words")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", ray)
    join = cluster_module.cluster(address)
    with pytest.raises(ConfigError, match=words):
        join.__enter__()


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


def assert_same_results(found, expected):
    """Equal up to rounding: two workers may encode one image, each in a batch of its own."""
    theirs = {run.spec.hash: run for run in expected.runs()}
    ours = {run.spec.hash: run for run in found.runs()}
    assert ours.keys() == theirs.keys()
    for name, run in ours.items():
        said, other = run.predictions(), theirs[name].predictions()
        assert (said.labels == other.labels).all()
        np.testing.assert_allclose(said.probabilities, other.probabilities, atol=1e-4)
        assert run.metric("accuracy") == theirs[name].metric("accuracy")


@pytest.mark.timeout(1800)  # many processes start: a busy machine takes minutes
def test_a_real_cluster_that_loses_a_node_ends_with_the_results_of_one_process(
    bench, datasets, grid_file, nodes, tmp_path
):
    data = shutil.copytree(datasets, tmp_path / "data")
    next((data / "second" / "test").rglob("*.png")).write_bytes(b"no picture")
    text = grid_file.read_text().replace('epochs" = 2', 'epochs" = 25')
    grid_file.write_text(text.replace(str(datasets), str(data)))
    where = ["--ray", "--address", nodes.address, "--device", "cpu"]
    with subprocess.Popen(
        [*WORDS, grid_file, "--out", tmp_path / "cluster", *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    ) as process:
        said, finished = [], []
        for line in process.stderr:
            said.append(line)
            if line.startswith("done"):
                finished.append(line.split()[1])
                if len(finished) == 1:
                    nodes.lose()
        assert process.stdout.read() == ""
    assert process.returncode == 1, said  # some runs fail, and only those that must
    # Once for the worker that was lost; again if Ray starts one on a node that it believes alive.
    assert 1 <= sum(line.startswith("A worker died") for line in said) <= 3, said

    folder, plan, job = bench("alone", shots=None, seeds=None)
    run_here(folder, job, lambda _: None)
    cluster = RunsFolder(tmp_path / "cluster")
    assert len(folder.runs()) == len(folder.failures()) == len(plan.cells) // 2 == 16
    assert_same_results(cluster, folder)
    assert cluster.failures() == folder.failures()
    # Nothing is doubled: each of the eight groups of two runs is reported once.
    assert finished == [f"{count}/32" for count in range(2, 17, 2)]
