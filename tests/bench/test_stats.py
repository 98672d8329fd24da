"""The paired bootstrap: right on simulated runs, symmetric, and strict about its input."""

from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ogkd.bench.compare import compare_labels, compare_methods, differences_markdown, resample
from ogkd.bench.runs import FinishedRun, Plan, Predictions, Result, RunsFolder, RunSpec
from ogkd.bench.tidy import Condition
from ogkd.errors import ConfigError, DataError
from tiny_runs import make_plan, specs, write_run


class Simulated(FinishedRun):
    """A run that holds its predictions itself."""

    def predictions(self, part: str = "test") -> Predictions:
        right = np.array(self.result.images_per_class)
        labels = np.arange(len(right)) % 2
        guess = np.where(right, labels, 1 - labels)
        return Predictions(labels, np.eye(2, dtype=np.float32)[guess], np.eye(2, dtype=np.float32))


def make(method: str, right: dict[str, np.ndarray]) -> list[FinishedRun]:
    """Runs of a method from what was right: {dataset: [S, N]}, seeds from 1."""
    return [
        Simulated(
            RunSpec(dataset=dataset, method=method, shots=4, seed=seed),
            Result.model_construct(metrics={"test": {}}, images_per_class=row),
            Path(f"{dataset}-{method}-{seed}"),
        )
        for dataset, table in right.items()
        for seed, row in enumerate(table, start=1)
    ]


def pair(tables: dict[str, np.ndarray]) -> tuple[list[FinishedRun], list[FinishedRun]]:
    """Runs of two methods from [2, S, N] of each dataset."""
    both = ({name: table[side] for name, table in tables.items()} for side in (0, 1))
    ours, theirs = both
    return make("ogkd", ours), make("coop", theirs)


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
        runs = pair({f"d{repeat}-{k}": _simulate(rng, 4, 80, 0.0) for k in range(2)})
        small += compare_methods(*runs, resamples=300, seed=repeat)["p"][0] < 0.1
    assert 1 <= small <= 14  # 6 expected; outside with probability 0.003


def test_a_large_difference_is_found_and_is_antisymmetric() -> None:
    rng = np.random.default_rng(0)
    tables = {name: _simulate(rng, 3, 200, 1.0) for name in ("one", "two")}
    a, b = pair(tables)
    frame = compare_methods(a, b)
    assert frame["dataset"].tolist() == ["mean of 2", "one", "two"]
    assert frame[["seeds", "images"]][1:].to_numpy().tolist() == [[3, 200]] * 2
    expected = [table[0].mean() - table[1].mean() for table in tables.values()]
    assert frame["difference"].tolist() == pytest.approx([np.mean(expected), *expected], abs=1e-6)
    assert ((frame["low"] > 0) & (frame["low"] < frame["difference"])).all()
    assert (frame["high"] > frame["difference"]).all()
    assert (frame["p"] < 0.01).all()
    back = compare_methods(b, a)
    for here, there in (("difference", "difference"), ("low", "high"), ("high", "low")):
        assert back[here].tolist() == pytest.approx((-frame[there]).tolist(), abs=0.01)
    same = compare_methods(a, make("coop", {name: table[0] for name, table in tables.items()}))
    assert (same[["difference", "low", "high"]] == 0).all(axis=None)
    assert (same["p"] == 1).all()


def test_one_seed_resamples_images_as_the_plain_paired_bootstrap() -> None:
    table = _simulate(np.random.default_rng(5), 1, 400, 0.5)
    row = compare_methods(*pair({"one": table})).iloc[0]
    difference = table[0, 0] - table[1, 0]
    error = difference.std() / np.sqrt(400)  # what the bootstrap of a mean estimates
    width = (row["high"] - row["low"]) / (2 * 1.96)
    assert width == pytest.approx(error, rel=0.08)
    assert width < 0.95 * np.sqrt(table[0].var() / 400 + table[1].var() / 400)  # pairing narrows


def test_what_learns_nothing_is_paired_with_every_seed() -> None:
    table = _simulate(np.random.default_rng(1), 4, 60, 0.5)
    ours, theirs = make("ogkd", {"one": table[0]}), make("zero-shot", {"one": table[1][:1]})
    frame = compare_methods(ours, theirs)
    assert frame["seeds"][1] == 4
    assert frame["difference"][1] == pytest.approx(table[0].mean() - table[1][0].mean())


def test_seeds_and_datasets_that_only_one_has_are_left_out() -> None:
    table = _simulate(np.random.default_rng(1), 4, 60, 0.5)
    ours = make("ogkd", {"one": table[0], "two": table[0], "three": table[0][:1]})
    theirs = make("coop", {"one": table[1][:2], "three": table[1][:2]})[:-2]
    other = make("coop", {"three": table[1][:2]})[1:]  # the seed that ours lacks
    frame = compare_methods(ours, [*theirs, *other])
    assert frame[["dataset", "seeds"]][1:].to_numpy().tolist() == [["one", 2]]


def _half_finished(folder: RunsFolder, done: list[tuple[str, str, int, int]]) -> Plan:
    """A plan of two methods, datasets, seeds and three shots, of which these runs are done."""
    cells = specs(("ogkd", "coop"), ("one", "two"))
    for method, spec in cells:
        if (method, spec.dataset, spec.shots, spec.seed) in done:
            right = np.arange(40) % 4 > (method == "coop")
            write_run(folder, spec, float(right.mean()), {"test": right})
    return make_plan(cells)


def test_of_a_half_finished_plan_what_can_be_compared_is(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    one_column = [(method, "one", 16, 1) for method in ("ogkd", "coop")]
    different_datasets = [("ogkd", "one", 1, 1), ("coop", "two", 1, 1)]
    plan = _half_finished(
        folder, [*one_column, ("coop", "two", 16, 1), *different_datasets, ("ogkd", "one", 4, 1)]
    )
    columns = compare_labels(folder, plan, "ogkd", "coop")
    assert [condition.shots for condition in columns] == [1, 4, 16]
    frame = columns.pop(Condition(16, 0, None))
    assert frame is not None
    assert frame["difference"][0] == pytest.approx(0.25)
    assert list(columns.values()) == [None, None]
    lines = differences_markdown(folder, plan, "ogkd", "coop").splitlines()
    assert lines[2] == "| K=1 | no common runs |  |  |  |"
    assert lines[4].startswith("| K=16 | mean of 1 | +25.00 | ")


def test_hm_of_base_and_novel_is_compared_as_published(tmp_path: Path) -> None:
    folder = RunsFolder(tmp_path)
    rng = np.random.default_rng(2)
    base, novel = _simulate(rng, 3, 90, 0.3), _simulate(rng, 3, 110, 0.3)
    cells = specs(("ogkd", "coop"), ["one"], [16], (1, 2, 3), protocol=["base-to-novel"])
    for method, spec in cells:
        side = ("ogkd", "coop").index(method)
        right = {"base": base[side, spec.seed - 1], "novel": novel[side, spec.seed - 1]}
        write_run(folder, spec, {part: float(x.mean()) for part, x in right.items()}, right)
    plan = make_plan(cells, "base-to-novel")
    means = [[float(x.mean()) for x in part] for part in (base, novel)]
    hms = [2 * b * n / (b + n) for b, n in zip(*means, strict=True)]
    (frame,) = compare_labels(folder, plan, "ogkd", "coop").values()
    assert frame is not None
    row = frame.iloc[0]
    assert row["difference"] == pytest.approx(hms[0] - hms[1], abs=1e-6)
    assert row["low"] < row["difference"] < row["high"]


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
    folder = RunsFolder(tmp_path)
    plan = _half_finished(folder, [("ogkd", "one", 4, 1), ("coop", "one", 4, 2)])
    with pytest.raises(DataError):
        compare_labels(folder, plan, "ogkd", "coop")
    with pytest.raises(ConfigError):
        compare_labels(folder, plan, "ours", "theirs")
