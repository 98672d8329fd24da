"""How long runs will take: guessed with a range, then learned from runs that end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ogkd.bench import workers
from ogkd.bench.progress import Pace, Progress, Span, estimate
from ogkd.bench.runner import _threads_that_pay
from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.worker import Job
from ogkd.methods import make_method


def spec_of(method, *, shots, seed=1):
    return RunSpec(dataset="busi", method=method, shots=shots, seed=seed)


def test_without_finished_runs_an_estimate_is_a_range():
    span = estimate([spec_of("ogkd", shots=16)] * 10, Pace())
    assert span.least * 5 < span.most
    assert " to " in str(span)


def test_measured_runs_of_the_same_kind_give_one_number():
    pace = Pace()
    for seconds in (2.0, 4.0, 90.0):
        pace.learn(spec_of("gda", shots=4), seconds)
    assert pace.of(spec_of("gda", shots=4)) == Span(4.0, 4.0)
    # For other shots: as long, or in proportion.
    assert pace.of(spec_of("gda", shots=16)) == Span(4.0, 16.0)
    assert str(estimate([spec_of("gda", shots=4)] * 15, pace)) == "about 1 min 00 s"


@pytest.mark.parametrize(
    ("method", "other"),
    [
        ("coop", {"train.epochs": 2}),
        ("ogkd", {"views": "online"}),
        ("gda", {"fidelity": "released"}),
    ],
)
def test_a_rehearsal_says_nothing_about_whole_runs(method, other):
    rehearsal = spec_of(method, shots=4).model_copy(update={"settings": other})
    pace = Pace()
    pace.learn(rehearsal, 3.0)
    assert pace.knows(rehearsal)
    assert not pace.knows(spec_of(method, shots=4))
    assert pace.of(rehearsal) == Span(3.0, 3.0)
    assert pace.of(spec_of(method, shots=4)) != Span(3.0, 3.0)


def test_a_swept_number_that_costs_no_time_is_the_same_kind():
    pace = Pace()
    pace.learn(spec_of("ogkd", shots=4).model_copy(update={"settings": {"gamma": 0.3}}), 3.0)
    assert pace.of(spec_of("ogkd", shots=4)) == Span(3.0, 3.0)


def test_a_slow_machine_makes_guesses_about_the_same_kind_of_work_longer():
    ogkd, logistic = spec_of("ogkd", shots=16), spec_of("logistic", shots=16)
    guess = {spec.method: Pace().of(spec).most for spec in (ogkd, logistic)}
    pace = Pace()
    pace.learn(spec_of("zero-shot", shots=16), 140.0)  # it has encoded the test images
    assert pace.of(ogkd).most == guess["ogkd"]
    pace.learn(spec_of("gda", shots=16), 20.0)  # ten times the guess
    assert pace.of(logistic).most == pytest.approx(10 * guess["logistic"])
    assert pace.of(ogkd).most == guess["ogkd"]
    pace.learn(spec_of("coop", shots=16), 360.0)
    assert pace.of(logistic).most == pytest.approx(10 * guess["logistic"])
    assert pace.of(ogkd).most == pytest.approx(3 * guess["ogkd"])


def test_an_adapter_with_twenty_views_is_not_the_measure_of_one_with_one():
    released = {"settings": {"fidelity": "released"}}
    pace = Pace()
    pace.learn(spec_of("clap", shots=16).model_copy(update=released), 400.0)
    whole = pace.of(spec_of("gda", shots=16)).most
    assert whole == pytest.approx(400.0 / 20 * 5)  # in the range of a guess
    ten = pace.of(spec_of("gda", shots=16).model_copy(update=released)).most
    assert ten == pytest.approx(10 * whole)


def test_the_time_left_follows_the_runs_that_end(monkeypatch, capsys):
    clock = iter(range(0, 1000, 10))
    monkeypatch.setattr("ogkd.bench.progress.time.perf_counter", lambda: float(next(clock)))
    specs = [spec_of("gda", shots=4, seed=seed) for seed in range(6)]
    hashes = [spec.hash for spec in specs]
    progress = Progress(specs, done=0, pace=Pace(), workers=2)
    event = {"group": hashes[0], "runs": 2, "what": "two", "specs": hashes[:2]}
    progress({"event": "start"} | event)
    progress({"event": "done"} | event)
    took = progress._pace.of(specs[0]).most  # of one of two runs in a group
    assert progress.remaining == Span(4 * took / 2, 4 * took / 2)
    assert f"done   2/6  two  {2 * took:.1f} s, about" in capsys.readouterr().err


@pytest.mark.parametrize("own", ["1", "3", None])
def test_worker_processes_use_the_users_threads_or_share_the_cores(tmp_path, monkeypatch, own):
    seen = {}

    class Processes(workers._Processes):
        def start(self):
            seen["environment"] = self._environment.get("OMP_NUM_THREADS")
            seen["job"] = json.loads(Path(self._command[-1]).read_text())["threads"]

        def wait(self, on_event):
            pass

    monkeypatch.setattr(workers, "_Processes", Processes)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if own is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", own)
    job = Job(specs=(), sources={}, backbone="builtin")
    workers.run_processes(RunsFolder(tmp_path), job, print, workers=2)
    expected = {"environment": own, "job": None} if own else {"environment": "4", "job": 4}
    assert seen == expected


def test_small_heads_are_fitted_with_one_thread(monkeypatch):
    used = SimpleNamespace(now=4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: used.now)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: setattr(used, "now", count))
    for method, images, threads in (("gda", 64, 1), ("gda", 100_000, 4), ("ogkd", 64, 4)):
        with _threads_that_pay(make_method(method), images, 512):
            assert used.now == threads
        assert used.now == 4
