"""Workers on one folder: resume, failures, damage, death, several at once."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest
import torch
from filelock import Timeout

from dying import die_after
from ogkd.bench import worker
from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import Runner, prepare
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import Job, lock_group, run_processes, work
from ogkd.errors import ConfigError, OgkdError
from tiny_data import edit_sealed
from tiny_runs import make_dataset


def content(folder):
    """Metrics and predictions of every run, as bytes where they must be equal."""
    return {
        run.spec.hash: (
            run.result.metrics,
            (run.folder / "predictions.safetensors").read_bytes(),
        )
        for run in folder.runs()
    }


def test_long_groups_come_first_and_datasets_take_turns(bench):
    _, _, job = bench()
    first = [group[0] for group in job.groups()]
    assert [spec.dataset for spec in first[:4]] == ["first", "second"] * 2
    assert [spec.shots for spec in first[:4]] == [3, 3, 3, 3]
    assert {spec.method for spec in first[:8]} == {"coop", "ogkd"}
    assert {(spec.method, spec.shots) for spec in first[-4:]} == {("gda", 1), ("zero-shot", 1)}


def test_group_is_given_up_after_it_killed_three_processes(bench):
    folder, plan, job = bench(datasets=["first"], only=["gda"], shots=[1])
    count = folder.attempts_of(job.groups()[0][0])
    count.parent.mkdir()
    count.write_text("3")  # what three processes that were killed leave behind
    work(job)
    assert all("died 3 times" in str(why) for why in folder.failures().values())
    assert len(folder.failures()) == 2
    prepare(folder, plan, {})  # the next command counts anew
    work(job)
    assert len(folder.runs()) == 2


def test_only_the_run_with_the_error_fails_and_the_next_command_tries_it_again(bench, monkeypatch):
    folder, plan, job = bench(datasets=["first"], only=["OGKD"], shots=[1], seeds=[1, 2, 3])
    whole = Runner.run

    def fail_with_seed_2(self, group):
        if any(spec.seed == 2 for spec in group):
            raise ConfigError("Seed 2 is unlucky.")
        return whole(self, group)

    monkeypatch.setattr(Runner, "run", fail_with_seed_2)
    work(job)
    assert sorted(run.spec.seed for run in folder.runs()) == [1, 3]
    (failure,) = folder.failures().values()
    assert (failure.spec.seed, failure.error) == (2, "Seed 2 is unlucky.")
    monkeypatch.setattr(Runner, "run", whole)
    broken = plan.cells[0].spec
    (folder.folder_of(broken) / "result.json").write_text("{")
    (note,) = prepare(folder, plan, {})
    assert broken.hash in note
    work(job)
    assert not folder.failures()
    assert len(folder.runs()) == len(plan.cells) == 3
    monkeypatch.setattr(Runner, "run", None)  # would fail if anything ran
    work(job)


def test_runs_that_change_towers_resume_with_the_same_bits(bench):
    grid = {"datasets": ["first"], "shots": [1], "rows": []}
    grid["methods"] = ["biomed-dpt", "evi-steer"]
    folder, plan, job = bench(**grid)

    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work(job, stop)
    assert 0 < len(folder.runs()) < len(plan.cells) == 4
    work(job)
    whole, _, job = bench(out="whole", **grid)
    work(job)
    assert content(folder) == content(whole)


def test_results_of_a_newer_version_or_another_backbone_are_refused(bench):
    folder, plan, job = bench(datasets=["first"], only=["gda"], shots=[1])
    work(job)
    file = folder.folder_of(plan.cells[0].spec) / "result.json"
    edit_sealed(file, lambda result: result.update(backbone_digest="0" * 64))
    _, _, job = bench(datasets=["first"], only=["gda"], shots=[1, 3])
    with pytest.raises(ConfigError) as caught:
        work(job)
    assert caught.value.argument == "out"
    edit_sealed(file, lambda result: result.update(schema_version=99))
    with pytest.raises(ConfigError):
        prepare(folder, plan, {})


def test_folder_without_plans_is_refused(bench, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for out in ("mine", "mine/thesis.txt"):
        with pytest.raises(ConfigError) as caught:
            bench(out=out)
        assert caught.value.argument == "out"


def test_two_commands_on_one_folder_give_the_results_of_one_process(bench, grid_file, tmp_path):
    folder, plan, job = bench(out="alone", shots=[1])
    work(job)
    words = ["bench", "run", str(grid_file), "--out", str(tmp_path / "both"), "--shots", "1"]
    commands = [
        subprocess.Popen(
            [sys.executable, "-m", "ogkd", *words, "--workers", workers, "--device", "cpu"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # threads round differently
        )
        for workers in ("1", "2")
    ]
    ends = [command.communicate()[1] for command in commands]
    assert [command.returncode for command in commands] == [0, 0], ends
    assert content(RunsFolder(tmp_path / "both")) == content(folder)
    assert len(folder.runs()) == len(plan.cells)


def test_what_a_killed_worker_leaves_is_done(bench):
    folder, plan, job = bench(only=["OGKD"], settings={"train.epochs": 30})
    killed = []

    def kill_first():
        workers = [
            child
            for child in psutil.Process().children()
            if child.status() != psutil.STATUS_ZOMBIE and "ogkd.bench" in " ".join(child.cmdline())
        ]
        if workers and list((folder.root / ".claims").glob("*.tries")) and not killed:
            workers[0].kill()
            killed.append(workers[0].pid)

    run_processes(job, workers=1, notify=kill_first)
    assert killed
    assert len(folder.runs()) == len(plan.cells)
    assert not folder.failures()


def test_no_worker_and_no_file_outlives_a_killed_command(grid_file, tmp_path):
    out = tmp_path / "killed"
    words = ["bench", "run", str(grid_file), "--out", str(out), "--workers", "2"]
    words += ["--set", "train.epochs=5000", "--methods", "OGKD", "--device", "cpu"]
    with subprocess.Popen([sys.executable, "-m", "ogkd", *words], stderr=subprocess.DEVNULL) as run:
        deadline = time.monotonic() + 120
        while not list(out.glob(".claims/*.tries")) and time.monotonic() < deadline:
            time.sleep(0.1)
        children = psutil.Process(run.pid).children(recursive=True)
        run.kill()
    assert len(children) == 2
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert {path.name for path in out.iterdir()} <= {".claims", "plans", "runs", "workers.log"}


def test_workers_that_cannot_start_are_one_error(bench, monkeypatch):
    _, _, job = bench()
    monkeypatch.setattr(worker, "_WORKER", "raise SystemExit(1)")
    monkeypatch.setattr(worker, "_PAUSE", 0.01)
    with pytest.raises(ConfigError) as caught:
        run_processes(job, workers=2)
    assert caught.value.argument == "workers"


def test_an_error_that_a_worker_meets_ends_the_command(bench):
    _, _, job = bench(datasets=["first"], only=["gda"], shots=[1])
    with pytest.raises(OgkdError, match="/no/backbone"):
        run_processes(job.model_copy(update={"backbone": "/no/backbone"}), workers=1)


def test_kill_9_of_the_whole_command_loses_only_the_runs_in_flight(bench, grid_file, tmp_path):
    folder, plan, job = bench(out="whole", only=["gda", "OGKD"])
    work(job)
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
    ours, theirs = (one, two), (three, two)
    with lock_group(folder, ours):
        with pytest.raises(Timeout):
            lock_group(folder, theirs)
        with lock_group(folder, (three,)):  # was given back
            pass
    with lock_group(folder, theirs), pytest.raises(Timeout):
        lock_group(folder, ours)


def test_run_made_with_other_defaults_is_moved_and_run_again(bench):
    folder, plan, job = bench(shots=[1], only=["gda"], datasets=["first"], seeds=[1])
    work(job)
    assert prepare(folder, plan, {}) == []
    (spec,) = plan.specs.values()
    path = folder.folder_of(spec) / "result.json"
    edit_sealed(path, lambda result: result["config"].update(prior="other"))
    (note,) = prepare(folder, plan, {})
    assert "other defaults: prior" in note
    assert not folder.has(spec)


def test_finished_runs_are_not_taken_for_other_images_or_prompts(bench, grid_file, tmp_path):
    data = tmp_path / "data"
    make_dataset(data / "first")
    bank = tmp_path / "prompts" / "first.json"
    bank.parent.mkdir()
    names = ("benign tumor", "malignant tumor", "normal lung", "striped cyst")
    bank.write_text(json.dumps({name: [f"a {name}"] for name in names}))
    changes = {"data": str(data), "only": ["zero-shot"], "prompts": str(bank.parent)}
    plan, sources = expand(read_grid(grid_file, changes))
    folder = RunsFolder(tmp_path / "runs")
    prepare(folder, plan, sources)
    backbone = read_grid(grid_file).backbone
    work(Job(out=folder.root, plan=plan, sources=sources, backbone=backbone))
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


def test_each_worker_gets_one_gpu_and_its_share_of_the_cores(bench, monkeypatch):
    _, _, job = bench()
    started = []

    def start(job, environment):
        started.append((environment, job.threads))
        return SimpleNamespace(poll=lambda: 0)

    monkeypatch.setattr(worker, "_start", start)
    monkeypatch.setattr(worker, "_stop", lambda _: "")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5f")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    anywhere = job.model_copy(update={"device": "auto"})
    run_processes(anywhere, workers=3)
    assert [environment["CUDA_VISIBLE_DEVICES"] for environment, _ in started] == [
        "2", "GPU-5f", "2",
    ]  # fmt: skip
    assert {(environment["OMP_NUM_THREADS"], threads) for environment, threads in started} == {
        ("2", 2)
    }
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    started.clear()
    run_processes(anywhere, workers=3)
    run_processes(job, workers=3)  # on the CPU
    names = [environment.get("CUDA_VISIBLE_DEVICES") for environment, _ in started]
    assert names == ["0", "1", "0", None, None, None]
    assert {threads for _, threads in started} == {None}  # the user's choice
