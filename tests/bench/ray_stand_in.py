"""A stand-in for Ray without processes, and a worker that has its results at once."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np

from ogkd.bench.ray_workers import NodeState
from ogkd.bench.runner import RunResult
from ogkd.bench.runs import Predictions
from ogkd.bench.worker import GroupAnswer


class Lost(Exception):
    """Stands for every error of Ray itself."""


class StandIn:
    """As much of Ray as is used, without processes: an answer is computed when it is fetched."""

    def __init__(self, worker, *, cores=2.0, gpus=0.0, deaths=lambda method, *_: False):
        self.worker, self.cores, self.gpus, self.deaths = worker, cores, gpus, deaths
        self.options = []  # that workers were started with
        self.exceptions = SimpleNamespace(RayError=Lost)
        self.started = self.killed = 0
        self.calls = []
        self.order = itertools.count()

    def remote(self, _class):
        def options(**given):
            self.options.append(given)
            return SimpleNamespace(remote=self._start)

        return SimpleNamespace(options=options)

    def _start(self, *arguments):
        self.started += 1
        worker = self.worker(*arguments)

        def method(name):
            return SimpleNamespace(remote=lambda *given: (next(self.order), name, worker, given))

        return SimpleNamespace(start=method("start"), encode=method("encode"), run=method("run"))

    def wait(self, references, **_):
        return [min(references, key=lambda reference: reference[0])], []  # first asked, first done

    def get(self, reference):
        _, name, worker, given = reference
        self.calls.append((name, *given))
        if self.deaths(name, *given):
            raise Lost("the node is gone")
        return getattr(worker, name)(*given)

    def kill(self, _actor):
        self.killed += 1

    def nodes(self):
        has = {"CPU": self.cores, "GPU": self.gpus}
        return [{"Alive": True, "Resources": has}, {"Alive": False}]


def results(group, data="images"):
    one = Predictions(np.zeros(1, np.int64), np.ones((1, 1), np.float32), np.ones((1, 1)))
    names = {"class_names": {"test": ["a"]}, "normal": {"test": []}, "seconds": {"train": 1.0}}
    result = {"metrics": {"test": {"accuracy": 1.0}}, "backbone_digest": "d", **names}
    result["data_sha256"] = data
    return [RunResult(spec, result, {"test": one}) for spec in group.specs]


class Quick:
    """A worker that has its results at once."""

    state = NodeState("node", "d", shares_cache=True)

    def __init__(self, *_):
        pass

    def start(self):
        return self.state

    def encode(self, paths):
        return None

    def run(self, group):
        return GroupAnswer(results(group))
