"""Workers on one folder: resume, failures, damage, death, several at once."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from bench_data import make_dataset
from filelock import Timeout

from dying import die_after
from ogkd.bench import worker as worker_module
from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import RunGroup, Runner
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import lock_group
from ogkd.bench.workers import (
    _Processes,
    make_job,
    prepare,
    run_here,
    run_processes,
    visible_gpus,
)
from ogkd.errors import ConfigError, DataError, StorageError
from tiny_data import edit_sealed


@pytest.fixture
def bench(grid_file, tmp_path):
    def make(out="runs", **changes):
        grid = read_grid(grid_file, changes)
        plan, sources = expand(grid)
        folder = RunsFolder(tmp_path / out)
        prepare(folder, plan)
        return folder, plan, make_job(plan, sources, grid.backbone, device="cpu")

    return make


def content(folder):
    """Metrics and predictions of every run, as bytes where they must be equal."""
    return {
        run.spec.hash: (
            run.result["metrics"],
            (run.folder / "predictions.safetensors").read_bytes(),
        )
        for run in folder.runs()
    }


def test_what_is_done_is_not_run_again(bench, monkeypatch):
    folder, plan, job = bench(datasets=["first"])
    events = []
    run_here(folder, job, events.append)
    assert len(folder.runs()) == len(plan.cells)
    assert {event["event"] for event in events} == {"start", "done"}
    monkeypatch.setattr(Runner, "run", None)  # would fail if anything ran
    run_here(folder, job, events.append)


def test_a_failed_run_is_recorded_and_the_rest_goes_on(bench, datasets, monkeypatch):
    folder, plan, job = bench()
    whole = Runner.run

    def sometimes(self, group):
        if group.specs[0].method == "gda":
            raise ValueError("a mistake in the code")
        return whole(self, group)

    monkeypatch.setattr(Runner, "run", sometimes)
    events = []
    run_here(folder, job, events.append)
    assert len(folder.failures()) == 8
    assert all("a mistake in the code" in reason for _, reason in folder.failures())
    assert len(folder.runs()) == len(plan.cells) - 8
    monkeypatch.setattr(Runner, "run", whole)
    prepare(folder, plan)  # the next command tries them again
    run_here(folder, job, events.append)
    assert not folder.failures()
    assert len(folder.runs()) == len(plan.cells)


def test_a_full_disk_ends_the_work_at_once(bench, monkeypatch):
    folder, _, job = bench(datasets=["first"])

    def full(*_):
        raise StorageError("The disk is full.")

    monkeypatch.setattr(RunsFolder, "write", full)
    with pytest.raises(StorageError):
        run_here(folder, job, lambda _: None)
    assert not folder.failures()


def test_a_group_that_kills_its_process_is_given_up_after_three_times(bench):
    folder, plan, job = bench(datasets=["first"], only=["gda"], shots=[1])
    count = folder.root / ".claims" / f"{job.groups()[0].name}.tries"
    count.parent.mkdir()
    count.write_text("3")  # what three processes that were killed leave behind
    run_here(folder, job, lambda _: None)
    assert all("died 3 times" in reason for _, reason in folder.failures())
    assert len(folder.failures()) == 2
    prepare(folder, plan)  # the next command counts anew
    run_here(folder, job, lambda _: None)
    assert len(folder.runs()) == 2


def test_stopping_by_hand_is_no_death(bench, monkeypatch):
    folder, plan, job = bench(datasets=["first"], only=["gda"], shots=[1])
    whole = Runner.run

    def stop(*_):
        raise KeyboardInterrupt

    for _ in range(4):
        monkeypatch.setattr(Runner, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            run_here(folder, job, lambda _: None)
    monkeypatch.setattr(Runner, "run", whole)
    run_here(folder, job, lambda _: None)
    assert len(folder.runs()) == len(plan.cells)


def test_one_bad_run_does_not_take_its_group_with_it(bench, monkeypatch):
    folder, plan, job = bench(datasets=["first"], only=["OGKD"], shots=[1], seeds=[1, 2, 3])
    whole = Runner.run

    def fail_with_seed_2(self, group):
        if any(spec.seed == 2 for spec in group.specs):
            raise ConfigError("Seed 2 is unlucky.")
        return whole(self, group)

    monkeypatch.setattr(Runner, "run", fail_with_seed_2)
    run_here(folder, job, lambda _: None)
    assert sorted(run.spec.seed for run in folder.runs()) == [1, 3]
    assert [(spec.seed, reason) for spec, reason in folder.failures()] == [
        (2, "Seed 2 is unlucky.")
    ]
    assert len(plan.cells) == 3


def test_changed_images_are_not_mixed_into_one_table(grid_file, tmp_path):
    make_dataset(tmp_path / "data" / "first")

    def run(**changes):
        grid = read_grid(grid_file, {"data": str(tmp_path / "data"), "shots": [1], **changes})
        plan, sources = expand(grid)
        folder = RunsFolder(tmp_path / "runs")
        prepare(folder, plan)
        run_here(folder, make_job(plan, sources, grid.backbone, device="cpu"), lambda _: None)

    run(only=["gda"], seeds=[1])
    next((tmp_path / "data" / "first" / "test").rglob("*.png")).unlink()
    with pytest.raises(ConfigError, match="other images of 'first'"):
        run(only=["gda"], seeds=[1, 2])


def test_a_selection_that_hides_rows_is_told(bench):
    folder, plan, _ = bench(datasets=["first"])
    assert prepare(folder, plan) == []
    _, part, _ = bench(datasets=["first"], only=["gda"], out="elsewhere")
    (note,) = prepare(folder, part)
    assert "12 other runs" in note


def test_a_damaged_result_is_put_aside_and_run_again(bench):
    folder, plan, job = bench(datasets=["first"], only=["gda"])
    run_here(folder, job, lambda _: None)
    before = content(folder)
    broken, cut, swapped, edited = plan.cells
    (folder.folder_of(broken.spec) / "result.json").write_text("{")
    file = folder.folder_of(cut.spec) / "predictions.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    (folder.folder_of(swapped.spec) / "spec.json").write_text(
        json.dumps(broken.spec.model_dump(mode="json"))
    )
    result = folder.folder_of(edited.spec) / "result.json"
    result.write_text(re.sub(r'"accuracy": [^,]+,', '"accuracy": 0.99,', result.read_text()))
    notes = prepare(folder, plan)
    assert len(notes) == 4
    assert all("will be run again" in note for note in notes)
    assert any("changed after it was written" in note for note in notes)
    run_here(folder, job, lambda _: None)
    assert content(folder) == before
    assert len(list((folder.root / "damaged").iterdir())) == 4


def test_a_damaged_plan_is_replaced_by_running_its_grid_again(bench):
    folder, plan, _ = bench(datasets=["first"], only=["gda"])
    prepare(folder, plan)
    file = folder.root / "plans" / f"{plan.name}.json"
    for content in ("[]", "{", "name,title\n1,2\n"):
        file.write_text(content)
        with pytest.raises(DataError, match="Run its grid into this folder again"):
            folder.plans()
        assert prepare(folder, plan) == []
        assert folder.plans() == {plan.name: plan}


def test_results_of_a_newer_version_or_another_backbone_are_refused(bench):
    folder, plan, job = bench(datasets=["first"], only=["gda"], shots=[1])
    run_here(folder, job, lambda _: None)
    place = folder.folder_of(plan.cells[0].spec) / "result.json"
    result = json.loads(place.read_text())
    del result["sha256"]  # as an older version wrote it
    place.write_text(json.dumps({**result, "schema_version": 99}))
    with pytest.raises(ConfigError, match="newer ogkd"):
        prepare(folder, plan)
    place.write_text(json.dumps({**result, "backbone_digest": "0" * 64}))
    more, _, job = bench(datasets=["first"], only=["gda"], shots=[1, 3])
    with pytest.raises(ConfigError, match="with digest 000000000000"):
        run_here(more, job, lambda _: None)


def test_a_folder_of_something_else_is_refused(bench, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="not a folder of runs"):
        bench(out="mine")
    with pytest.raises(ConfigError, match="is a file"):
        bench(out="mine/thesis.txt")


def test_two_workers_do_everything_once_and_as_one_would(bench):
    folder, plan, job = bench(out="alone", shots=[1])
    run_here(folder, job, lambda _: None)
    other, _, job = bench(out="together", shots=[1])
    events = []
    run_processes(other, job, events.append, workers=2)
    done = [event["group"] for event in events if event["event"] == "done"]
    assert len(done) == len(set(done)) == len(job.groups())
    assert content(other) == content(folder)
    assert len(other.runs()) == len(plan.cells)


def test_a_killed_worker_is_replaced_and_nothing_is_lost(bench, monkeypatch):
    monkeypatch.setattr(worker_module, "_PAUSE", 0.05)
    folder, plan, job = bench(only=["OGKD"], settings={"train.epochs": 30})
    events, killed = [], []

    def watch(event):
        events.append(event)
        if event["event"] == "start" and not killed:
            killed.append(_kill_a_worker_of(folder))

    run_processes(folder, job, watch, workers=1)
    assert killed
    assert [event for event in events if event["event"] == "died"]
    assert len(folder.runs()) == len(plan.cells)
    assert not folder.failures()


def _kill_a_worker_of(folder):
    found = subprocess.run(
        ["pgrep", "-f", f"ogkd.bench.worker {folder.root}"], capture_output=True, text=True
    ).stdout.split()
    os.kill(int(found[0]), signal.SIGKILL)
    return found[0]


def test_kill_9_of_the_whole_command_loses_only_the_runs_in_flight(bench, grid_file, tmp_path):
    folder, plan, job = bench(out="whole", only=["gda", "OGKD"])
    run_here(folder, job, lambda _: None)
    expected = content(folder)
    out = tmp_path / "killed"
    words = ["bench", "run", str(grid_file), "--out", str(out)]
    words += ["--workers", "0", "--methods", "gda,OGKD", "--device", "cpu"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in this process: threads round differently
    die_after(words, "*/runs/[0-9a-f]*", 9, env=alone)
    half = RunsFolder(out)
    assert len(half.runs()) == 9 < len(plan.cells)
    again = subprocess.run(
        [sys.executable, "-m", "ogkd", *words], env=alone, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr
    assert content(half) == expected


def test_groups_that_overlap_are_not_worked_on_at_the_same_time(bench):
    folder, plan, _ = bench(shots=[1], only=["gda"], datasets=["first"], seeds=[1, 2, 3])
    one, two, three = (cell.spec for cell in plan.cells)
    ours, theirs = RunGroup((one, two)), RunGroup((three, two))
    with lock_group(folder, ours):
        with pytest.raises(Timeout):
            lock_group(folder, theirs)
        with lock_group(folder, RunGroup((three,))):  # was given back
            pass
    with lock_group(folder, theirs), pytest.raises(Timeout):
        lock_group(folder, ours)


def test_a_run_made_with_other_defaults_is_put_aside_and_run_again(bench):
    folder, plan, job = bench(shots=[1], only=["gda"], datasets=["first"], seeds=[1])
    run_here(folder, job, lambda _: None)
    assert prepare(folder, plan) == []
    (spec,) = job.specs
    path = folder.folder_of(spec) / "result.json"
    edit_sealed(path, lambda result: result["config"].update(prior="other"))
    (note,) = prepare(folder, plan)
    assert "another default or preset of gda: prior" in note
    assert not folder.has(spec)


def test_finished_runs_are_not_taken_for_other_images_or_prompts(bench, grid_file, tmp_path):
    data = tmp_path / "data"
    make_dataset(data / "first")
    bank = tmp_path / "bank.json"
    names = ("benign tumor", "malignant tumor", "normal lung", "striped cyst")
    bank.write_text(json.dumps({name: [f"a {name}"] for name in names}))
    changes = {"data": str(data), "only": ["zero-shot"], "banks": {"first": str(bank)}}
    plan, sources = expand(read_grid(grid_file, changes))
    folder = RunsFolder(tmp_path / "runs")
    prepare(folder, plan, sources)
    run_here(folder, make_job(plan, sources, read_grid(grid_file).backbone), lambda _: None)
    assert prepare(folder, plan, sources) == []
    bank.write_text(json.dumps({name: [f"the {name}"] for name in names}))
    with pytest.raises(ConfigError, match="other prompts of 'first'"):
        prepare(folder, plan, sources)
    bank.write_text(json.dumps({name: [f"a {name}"] for name in names}))
    (data / "first" / "test" / "normal_lung" / "0.png").unlink()
    with pytest.raises(ConfigError, match="other images of 'first'"):
        prepare(folder, plan, sources)
    shutil.rmtree(data)  # tables can be made without the images
    assert prepare(folder, plan, sources) == []


def test_workers_are_spread_over_the_gpus_that_this_process_sees(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(0) == []
    assert visible_gpus(3) == ["0", "1", "2"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f")
    assert visible_gpus(2) == ["2", "GPU-5f"]


def test_each_worker_sees_one_gpu_in_turn(monkeypatch, tmp_path):
    started = []

    class Process:
        stdout = None

        def __init__(self, command, *, env, **_):
            started.append(env.get("CUDA_VISIBLE_DEVICES"))

    monkeypatch.setattr("ogkd.bench.workers.subprocess.Popen", Process)
    monkeypatch.setattr("ogkd.bench.workers.threading.Thread.start", lambda _: None)
    processes = _Processes(RunsFolder(tmp_path), tmp_path / "job.json", None, ["0", "1"])
    for _ in range(3):
        processes.start()
    assert started == ["0", "1", "0"]
    second = list(processes._uses)[1]
    del processes._uses[second]  # it died: the one that takes over gets its GPU
    processes.start()
    assert started[-1] == "1"
