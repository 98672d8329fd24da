"""The paired bootstrap: right on simulated runs, symmetric, and strict about its input."""

import itertools
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ogkd.bench.compare import compare_labels, compare_methods, differences_markdown, resample
from ogkd.bench.runs import FinishedRun, Plan, Predictions, RunsFolder, RunSpec
from ogkd.bench.tidy import Condition
from ogkd.errors import ConfigError, DataError
from relative_time import units
from tiny_runs import make_plan, write_run


class Simulated(FinishedRun):
    """A run that holds its predictions itself."""

    def predictions(self, part: str = "test") -> Predictions:
        right = self.result["right"]
        labels = np.arange(len(right)) % 2
        guess = np.where(right, labels, 1 - labels)
        return Predictions(labels, np.eye(2, dtype=np.float32)[guess], np.eye(2, dtype=np.float32))


def make(method: str, right: dict[str, np.ndarray]) -> list[FinishedRun]:
    """Runs of a method from what was right: {dataset: [S, N]}, seeds from 1."""
    return [
        Simulated(
            RunSpec(dataset=dataset, method=method, shots=4, seed=seed),
            {"metrics": {"test": {}}, "right": row},
            Path(f"{dataset}-{method}-{seed}"),
        )
        for dataset, table in right.items()
        for seed, row in enumerate(table, start=1)
    ]


def _simulate(rng: np.random.Generator, seeds: int, images: int, effect: float) -> np.ndarray:
    """[2, S, N]: images have a difficulty, seeds and methods a strength, the rest is chance."""
    hard = rng.normal(0, 1.2, images)
    own = rng.normal(0, 0.5, (2, 1, images)) + rng.normal(0, 0.2, (2, seeds, 1))
    score = 0.6 + hard + own + rng.normal(0, 1, (2, seeds, images))
    score[0] += effect
    return (score > 0).astype(np.float32)


def _truth(effect: float) -> float:
    spread = NormalDist(0, float(np.sqrt(1.2**2 + 0.5**2 + 0.2**2 + 1)))
    return spread.cdf(0.6 + effect) - spread.cdf(0.6)


@pytest.mark.parametrize(("seeds", "effect"), [(8, 0.0), (8, 0.2), (3, 0.0)])
def test_the_interval_covers_the_truth_as_often_as_it_says(seeds: int, effect: float) -> None:
    rng = np.random.default_rng(7)
    covered, widths, means = 0, [], []
    repeats = 150
    for _ in range(repeats):
        draws, mean = np.zeros(300), 0.0
        for _ in range(4):
            table = _simulate(rng, seeds, 100, effect)
            (a, b), drawn = resample([table], resamples=300, rng=rng)
            mean += (a - b) / 4
            draws += (drawn[0] - drawn[1]) / 4
        low, high = np.quantile(draws, [0.025, 0.975])
        covered += low <= _truth(effect) <= high
        widths.append(draws.std())
        means.append(mean)
    assert 0.89 <= covered / repeats <= 0.99
    # The spread of the draws is the spread that the mean really has.
    assert np.mean(widths) / np.std(means) == pytest.approx(1, abs=0.17)


def test_p_is_small_about_as_often_as_it_should_be_when_nothing_differs() -> None:
    rng = np.random.default_rng(3)
    small = 0
    for repeat in range(60):
        tables = {f"d{repeat}-{k}": _simulate(rng, 4, 80, 0.0) for k in range(2)}
        a = make("ogkd", {name: table[0] for name, table in tables.items()})
        b = make("coop", {name: table[1] for name, table in tables.items()})
        small += compare_methods(a, b, resamples=300, seed=repeat).p < 0.1
    assert 1 <= small <= 14  # 6 expected; outside with probability 0.003


def test_a_large_difference_is_found_and_a_clear_one_per_dataset() -> None:
    rng = np.random.default_rng(0)
    tables = {name: _simulate(rng, 3, 200, 1.0) for name in ("one", "two")}
    a = make("ogkd", {name: table[0] for name, table in tables.items()})
    b = make("coop", {name: table[1] for name, table in tables.items()})
    result = compare_methods(a, b)
    expected = np.mean([table[0].mean() - table[1].mean() for table in tables.values()])
    assert result.mean == pytest.approx(expected, abs=1e-6)
    assert 0 < result.low < result.mean < result.high
    assert result.p < 0.01
    assert [(single.name, single.seeds, single.images) for single in result.per_dataset] == [
        ("one", 3, 200),
        ("two", 3, 200),
    ]
    back = compare_methods(b, a)
    assert (back.mean, back.low, back.high) == pytest.approx(
        (-result.mean, -result.high, -result.low), abs=0.01
    )


def test_one_seed_resamples_images_as_the_plain_paired_bootstrap() -> None:
    table = _simulate(np.random.default_rng(5), 1, 400, 0.5)
    result = compare_methods(make("ogkd", {"one": table[0]}), make("coop", {"one": table[1]}))
    difference = table[0, 0] - table[1, 0]
    error = difference.std() / np.sqrt(400)  # what the bootstrap of a mean estimates
    assert (result.high - result.low) / (2 * 1.96) == pytest.approx(error, rel=0.08)


def test_what_learns_nothing_is_paired_with_every_seed() -> None:
    table = _simulate(np.random.default_rng(1), 4, 60, 0.5)
    result = compare_methods(
        make("ogkd", {"one": table[0]}), make("zero-shot", {"one": table[1][:1]})
    )
    assert result.per_dataset[0].seeds == 4
    assert result.per_dataset[0].b == pytest.approx(table[1][0].mean())


def test_seeds_and_datasets_that_only_one_has_are_left_out() -> None:
    table = _simulate(np.random.default_rng(1), 4, 60, 0.5)
    result = compare_methods(
        make("ogkd", {"one": table[0], "two": table[0]}), make("coop", {"one": table[1][:2]})
    )
    (only,) = result.per_dataset
    assert (only.name, only.seeds) == ("one", 2)
    assert result.left_out == ("two",)


def _half_finished(folder: RunsFolder, done: list[tuple[str, str, int, int]]) -> Plan:
    """A plan of two methods, datasets, seeds and three shots, of which these runs are done."""
    cells = []
    for method in ("ogkd", "coop"):
        for dataset, shots, seed in itertools.product(("one", "two"), (1, 4, 16), (1, 2)):
            spec = RunSpec(dataset=dataset, method=method, shots=shots, seed=seed)
            cells.append((method, spec))
            if (method, dataset, shots, seed) in done:
                right = np.arange(40) % 4 > (method == "coop")
                write_run(folder, spec, float(right.mean()), {"test": right})
    return make_plan(cells, "few-shot")


def test_of_a_half_finished_plan_what_can_be_compared_is_and_the_rest_is_named(
    tmp_path: Path,
) -> None:
    folder = RunsFolder(tmp_path)
    one_column = [(method, "one", 16, 1) for method in ("ogkd", "coop")]
    different_datasets = [("ogkd", "one", 1, 1), ("coop", "two", 1, 1)]
    plan = _half_finished(
        folder, [*one_column, ("coop", "two", 16, 1), *different_datasets, ("ogkd", "one", 4, 1)]
    )
    columns, missing = compare_labels(folder, plan, "ogkd", "coop")
    assert [condition.shots for condition in columns] == [16]
    assert columns[Condition(16, 0, None)].mean == pytest.approx(0.25)
    assert [condition.shots for condition in missing] == [1, 4]
    lines = differences_markdown(folder, plan, "ogkd", "coop").splitlines()
    assert lines[2].startswith("| K=16 | mean of 1 | +25.00 | ")
    assert lines[4:] == [
        "",
        "- K=16: without two, on which they have no common runs.",
        "- K=1: not compared. The two methods have no common seed on one, two.",
        "- K=4: not compared. Runs are missing.",
    ]


def test_hm_of_base_and_novel_is_compared_as_published(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    rng = np.random.default_rng(2)
    base, novel = _simulate(rng, 3, 90, 0.3), _simulate(rng, 3, 110, 0.3)
    cells = []
    for side, method in enumerate(("ogkd", "coop")):
        for seed in (1, 2, 3):
            spec = RunSpec(
                protocol="base-to-novel", dataset="one", method=method, shots=16, seed=seed
            )
            right = {"base": base[side, seed - 1], "novel": novel[side, seed - 1]}
            write_run(folder, spec, {part: float(x.mean()) for part, x in right.items()}, right)
            cells.append((method, spec))
    plan = make_plan(cells, "base-to-novel")
    answer = compare_labels(folder, plan, "ogkd", "coop")
    ((condition, result),) = answer[0].items()
    assert condition == Condition(16, 0, None)
    means = [[float(x.mean()) for x in part] for part in (base, novel)]
    hms = [2 * b * n / (b + n) for b, n in zip(*means, strict=True)]
    assert result.mean == pytest.approx(hms[0] - hms[1], abs=1e-6)
    assert result.low < result.mean < result.high
    lines = differences_markdown(folder, plan, "ogkd", "coop").splitlines()
    assert len(lines) == 2 + 2
    assert lines[2].startswith(f"| K=16 | mean of 1 | {100 * result.mean:+.2f} | ")
    only_base = compare_labels(folder, plan, "ogkd", "coop", part="base")[0][condition]
    assert only_base.mean == pytest.approx(means[0][0] - means[0][1], abs=1e-6)


def test_eleven_datasets_of_eight_seeds_take_seconds() -> None:
    rng = np.random.default_rng(0)
    tables = [_simulate(rng, 8, 500, 0.1) for _ in range(11)]
    took = units(lambda: [resample([table], resamples=2000, rng=rng) for table in tables])
    assert took < 150  # 10 measured


def test_runs_that_cannot_be_compared_raise(tmp_path: Path) -> None:
    table = _simulate(np.random.default_rng(1), 2, 20, 0.1)
    a, b = make("ogkd", {"one": table[0]}), make("coop", {"one": table[1]})
    elsewhere, fewer = make("coop", {"two": table[1]}), make("kgcoop", {"one": table[1][:, :10]})
    for first, second in ((a, elsewhere), (a[:1], b[1:]), (a, fewer)):
        with pytest.raises(DataError):
            compare_methods(first, second)
    twice = make("ogkd", {"one": table[0]})
    with pytest.raises(ConfigError):
        compare_methods([*a, twice[0]], a)
    plan = make_plan([("ours", a[0].spec)], "few-shot")
    with pytest.raises(ConfigError):
        compare_labels(RunsFolder(tmp_path), plan, "ours", "theirs")
