"""Groups of runs: what is shared, what is drawn, what comes out."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from ogkd.bench.grid import expand, read_grid
from ogkd.bench.runner import Runner, group_runs
from ogkd.data.case import images_of
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation.metrics import summary_metrics
from ogkd.fitting.pipeline import fit_request
from ogkd.fitting.request import FitRequest
from tiny_runs import make_dataset


@pytest.fixture
def plan_of(grid_file, bert_backbone):
    def make(**changes):
        plan, sources = expand(read_grid(grid_file, {"datasets": ["first"], **changes}))
        return [cell.spec for cell in plan.cells], Runner(lambda: bert_backbone, sources)

    return make


def run_all(specs, runner):
    return {done.spec.hash: done for group in group_runs(specs) for done in runner.run(group)}


def test_seeds_and_free_settings_share_a_pass(plan_of):
    specs, _ = plan_of(only=["OGKD"], sweep={"gamma": [0.0, 0.3]}, shots=[3], flips=[0, 1])
    groups = group_runs(specs)
    assert [len(group) for group in groups] == [8]  # seeds x gamma x flips
    specs, _ = plan_of(only=["OGKD"], sweep={"top_ratio": [0.2, 0.5]}, shots=[3])
    assert [len(group) for group in group_runs(specs)] == [2, 2]
    assert [len(group) for group in group_runs([*specs, *specs])] == [2, 2]


def test_a_run_is_what_fit_and_evaluate_give(plan_of, datasets, bert_backbone):
    specs, runner = plan_of(only=["OGKD", "gda"], shots=[3])
    outcome = run_all(specs, runner)
    dataset = read_dataset(datasets / "first")
    for spec in specs:
        request = FitRequest(
            dataset,
            backbone=bert_backbone,
            method=spec.method,
            preset=spec.preset,
            settings=spec.settings,
            shots=3,
            seed=spec.seed,
        )
        model = fit_request(request)
        predictions = outcome[spec.hash].predictions["test"]
        cases = dataset.part("test")
        expected = model.predict_proba(images_of(cases))
        np.testing.assert_allclose(predictions.probabilities, expected, atol=2e-5)
        assert predictions.labels.tolist() == dataset.targets(cases)
        metrics = outcome[spec.hash].result.metrics["test"]
        assert (
            metrics["accuracy"]
            == summary_metrics(predictions.labels, predictions.probabilities)["accuracy"]
        )
        np.testing.assert_allclose(predictions.W.sum(axis=1), 1, atol=1e-5)


def test_base_to_novel_learns_the_base_classes_and_judges_both(plan_of):
    specs, runner = plan_of(protocol="base-to-novel", only=["OGKD", "zero-shot"], shots=[3])
    for done in run_all(specs, runner).values():
        assert list(done.predictions) == ["base", "novel"]
        assert done.result.class_names["base"] == ["benign tumor", "malignant tumor"]
        assert done.result.class_names["novel"] == ["normal lung", "striped cyst"]
        assert done.result.normal == {"base": [], "novel": [0]}
        for outcome in done.predictions.values():
            assert outcome.probabilities.shape == (6, 2)
            assert sorted(set(outcome.labels.tolist())) == [0, 1]


def test_a_budget_takes_the_first_prompts_and_not_more_than_there_are(plan_of):
    specs, runner = plan_of(only=["zero-shot"], budgets=[2], shots=[1], seeds=[1])
    runner.run(group_runs(specs)[0])
    side = runner._text(specs[0].dataset, 2, (0, 1, 2, 3))
    assert runner._text.cache_info().currsize == 1  # it is what the run has used
    assert {len(row) for row in side.prompts} == {2}
    specs, runner = plan_of(only=["zero-shot"], budgets=[999], shots=[1], seeds=[1])
    with pytest.raises(ConfigError):
        runner.run(group_runs(specs)[0])


def test_of_two_workers_one_encodes_a_dataset(plan_of, datasets):
    specs, first = plan_of(only=["zero-shot"], shots=[1], seeds=[1])
    _, second = plan_of(only=["zero-shot"], shots=[1], seeds=[1])
    images = len(read_dataset(datasets / "first").part("test"))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda runner: run_all(specs, runner), (first, second)))
    assert sorted(runner._store.encoded for runner in (first, second)) == [0, images]


def test_images_of_each_class_are_counted_where_there_are_fewer_than_k(plan_of):
    specs, runner = plan_of(only=["gda", "zero-shot"], shots=[3, 9], seeds=[1])
    counted = {
        (done.spec.method, done.spec.shots): done.result.images_per_class
        for done in run_all(specs, runner).values()
    }
    assert counted[("gda", 3)] == [3] * 4
    assert counted[("gda", 9)] == [4] * 4
    assert counted[("zero-shot", 9)] is None


def test_what_trains_refuses_a_class_without_images(tmp_path, plan_of):
    make_dataset(tmp_path / "data" / "first")
    shutil.rmtree(tmp_path / "data" / "first" / "train" / "striped_cyst")
    specs, runner = plan_of(data=str(tmp_path / "data"), only=["OGKD"], shots=[1])
    with pytest.raises(DataError):
        run_all(specs, runner)
    specs, runner = plan_of(
        data=str(tmp_path / "data"), only=["OGKD"], shots=[1], protocol="base-to-novel"
    )
    assert len(run_all(specs, runner)) == 2  # it is a novel class there


def test_the_same_group_gives_the_same_bits(plan_of):
    specs, runner = plan_of(only=["OGKD"], shots=[3])
    first, second = run_all(specs, runner), run_all(specs, runner)
    for name, done in first.items():
        a, b = done.predictions["test"], second[name].predictions["test"]
        assert torch.equal(torch.from_numpy(a.probabilities), torch.from_numpy(b.probabilities))


def test_false_alarms_are_normal_images_called_a_disease(plan_of):
    specs, runner = plan_of(only=["zero-shot"], shots=[1], seeds=[1])
    ((_, done),) = run_all(specs, runner).items()
    outcome = done.predictions["test"]
    said = outcome.probabilities.argmax(axis=1)
    normal = done.result.normal["test"][0]
    metrics = done.result.metrics["test"]
    assert metrics["false_alarms"] == np.mean(said[outcome.labels == normal] != normal)
    assert metrics["sensitivity"] == np.mean(said[outcome.labels != normal] != normal)
