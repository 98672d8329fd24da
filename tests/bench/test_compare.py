"""Ours beside the published numbers: right cells, a difference only where it means something."""

from pathlib import Path
from typing import Any

import pytest

from ogkd.bench.compare import (
    Comparison,
    compare_with_published,
    published,
    published_markdown,
)
from ogkd.bench.runs import Plan, RunsFolder, RunSpec
from ogkd.bench.sources import benchmark_of
from ogkd.data.catalog import benchmarks
from tiny_runs import make_plan


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    return RunsFolder(tmp_path)


def _write(
    folder: RunsFolder,
    spec: RunSpec,
    accuracy: float | dict[str, float],
    classes: tuple[str, ...] | None = None,
    **more: Any,
) -> None:
    """A run on the benchmark's classes, or on others, of which the first half are base classes."""
    record = benchmarks().get(benchmark_of(spec) or "")
    parts = accuracy if isinstance(accuracy, dict) else {"test": accuracy}
    names, base = ("sick", "healthy"), 1
    if record is not None:
        names, base = record.class_names, record.base
    if classes is not None:
        names, base = classes, -(-len(classes) // 2)
    of = {"test": names, "base": names[:base], "novel": names[base:]}
    result = {
        "metrics": {part: {"accuracy": value} for part, value in parts.items()},
        "class_names": {part: list(of[part]) for part in parts},
        "normal": {part: [] for part in parts},
        "seconds": {},
    }
    folder.write(spec, result | more, {})


def _key(row: Comparison) -> tuple[str, str, str]:
    return row.published.dataset, row.label, row.part


def _printed(dataset: str, method: str, part: str, flips: int = 0) -> float:
    (row,) = (
        row
        for row in published()
        if (row.dataset, row.method, row.part, row.flips, row.setting, row.metric)
        == (dataset, method, part, flips, "", "accuracy")
        and row.shots in (None, 16)
    )
    return row.value


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (RunSpec(dataset="BUSI", method="ogkd"), "busi"),
        (RunSpec(dataset="COVID_19", method="ogkd"), "covid"),
        (RunSpec(dataset="COVID-QU-Ex", method="ogkd"), "covid"),
        (RunSpec(dataset="LC25000", method="ogkd"), "lungcolon"),
        (RunSpec(dataset="LungColon", method="ogkd"), "lungcolon"),
        (RunSpec(dataset="my-scans", method="ogkd", bank="retina"), None),
        (RunSpec(dataset="my-scans", method="ogkd"), None),
        (RunSpec(dataset="busi", method="ogkd", data="phantoms 16/4/20"), None),
    ],
)
def test_a_dataset_is_known_by_any_of_its_names_but_a_phantom_never(
    spec: RunSpec, name: str | None
) -> None:
    assert benchmark_of(spec) == name


def test_every_benchmark_is_found_by_its_title_and_folder() -> None:
    for name, record in benchmarks().items():
        for text in (name, record.title, record.folder):
            assert benchmark_of(RunSpec(dataset=text, method="ogkd")) == name


def _base_to_novel(folder: RunsFolder, datasets: list[str]) -> list[Comparison]:
    return compare_with_published(folder, _base_to_novel_plan(folder, datasets))


def _base_to_novel_plan(folder: RunsFolder, datasets: list[str], label: str = "ours") -> Plan:
    cells = []
    for number, dataset in enumerate(datasets):
        spec = RunSpec(protocol="base-to-novel", dataset=dataset, method="coop", shots=16)
        _write(folder, spec, {"base": 0.8 - number / 20, "novel": 0.4 + number / 20})
        cells.append((label, spec))
    return make_plan(cells, "base-to-novel")


def test_each_cell_of_a_dataset_stands_beside_the_printed_one(folder: RunsFolder) -> None:
    rows = {_key(row): row for row in _base_to_novel(folder, ["COVID_19", "Kvasir"])}
    row = rows["covid", "ours", "base"]
    assert (row.ours, row.published.value) == (pytest.approx(80), 75.92)
    assert row.difference == pytest.approx(4.08)
    row = rows["kvasir", "ours", "hm"]
    assert row.ours == pytest.approx(2 * 75 * 45 / 120)
    assert row.published.value == 69.39


def test_an_average_over_some_datasets_is_compared_over_the_same(folder: RunsFolder) -> None:
    rows = {_key(row): row for row in _base_to_novel(folder, ["covid", "kvasir", "my-own"])}
    row = rows["average", "ours", "novel"]
    assert row.ours == pytest.approx((40 + 45) / 2)  # without my-own
    assert row.published.value == pytest.approx((90.07 + 58.06) / 2)
    assert row.note == "both over 2 datasets"
    base, novel = (75.92 + 86.22) / 2, (90.07 + 58.06) / 2
    assert rows["average", "ours", "hm"].published.value == pytest.approx(
        2 * base * novel / (base + novel)
    )
    assert rows["average", "ours", "mean-hm"].published.value == pytest.approx((82.39 + 69.39) / 2)
    assert not any("my-own" in _key(row) for row in rows.values())


def test_of_all_datasets_each_mean_of_hm_has_its_own_counterpart(folder: RunsFolder) -> None:
    everything = [name for name, record in benchmarks().items() if record.base_to_novel]
    rows = {_key(row): row for row in _base_to_novel(folder, everything)}
    assert len(rows) == 10 * 3 + 4
    # The paper prints the mean of the HMs of CoOp, 67.23, beside HMs of averages of others.
    assert rows["average", "ours", "mean-hm"].published.value == pytest.approx(67.23, abs=0.01)
    assert rows["average", "ours", "mean-hm"].note == ""
    assert rows["average", "ours", "hm"].published.value == pytest.approx(69.00, abs=0.01)
    assert rows["average", "ours", "hm"].note == "printed: 67.23"


def _few_shot(folder: RunsFolder, datasets: list[str], method: str = "ogkd") -> list[Comparison]:
    cells = []
    for dataset in datasets:
        spec = RunSpec(dataset=dataset, method=method, shots=4)
        _write(folder, spec, 0.6)
        cells.append((method, spec))
    return compare_with_published(folder, make_plan(cells, "few-shot"))


def test_a_few_shot_average_over_fewer_datasets_has_no_difference(folder: RunsFolder) -> None:
    (row,) = _few_shot(folder, ["busi", "retina"])
    assert (row.published.dataset, row.published.value, row.published.std) == (
        "average",
        65.32,
        2.26,
    )
    assert row.difference is None
    assert row.note == "ours: 2 of 11 datasets"


@pytest.mark.parametrize(("method", "value"), [("ogkd", 65.32), ("zero-shot-ensemble", 52.27)])
def test_a_whole_few_shot_average_has_one(folder: RunsFolder, method: str, value: float) -> None:
    (row,) = _few_shot(folder, list(benchmarks()), method)
    assert (row.condition.shots, row.note) == (4, "")
    assert row.difference == pytest.approx(60 - value)


def test_missing_runs_leave_no_difference(folder: RunsFolder) -> None:
    cells = []
    for seed in (1, 2):
        spec = RunSpec(dataset="busi", method="ogkd", shots=16, flips=8, seed=seed)
        cells.append(("ogkd", spec))
    _write(folder, spec, 0.7)
    row, average = compare_with_published(folder, make_plan(cells, "noise", sweep="flips"))
    assert (row.published.dataset, row.published.value, row.note) == ("busi", 63.98, "1 of 2 runs")
    assert row.difference is None
    assert average.difference is None


def test_noise_is_matched_by_its_number_of_flips(folder: RunsFolder) -> None:
    cells = []
    for flips in (0, 2, 3, 16):
        spec = RunSpec(
            protocol="base-to-novel", dataset="retina", method="biomedcoop", shots=16, flips=flips
        )
        _write(folder, spec, {"base": 0.5, "novel": 0.5})
        cells.append(("biomedcoop", spec))
    rows = compare_with_published(folder, make_plan(cells, "noise", sweep="flips"))
    printed = {
        row.condition.flips: row.published.value
        for row in rows
        if _key(row)[::2] == ("retina", "base")
    }
    assert printed == {0: 68.46, 2: 63.46, 16: 50.40}
    assert printed[16] == _printed("retina", "biomedcoop", "base", 16)


RETINA = ("Cataract", "diabetic_retinopathy", "glaucoma", "normal retina")  # as in a folder


def _ogkd(
    folder: RunsFolder, classes: dict[str, tuple[str, ...] | None], protocol: str, **fields: Any
) -> dict[tuple[str, str], Comparison]:
    cells = []
    for number, (dataset, names) in enumerate(classes.items()):
        spec = RunSpec(protocol=protocol, dataset=dataset, method="ogkd", shots=16, **fields)
        value = min(0.5 + number / 10, 1.0)
        b2n = protocol == "base-to-novel"
        _write(folder, spec, {"base": value, "novel": value} if b2n else value, names)
        cells.append(("ogkd", spec))
    rows = compare_with_published(folder, make_plan(cells, protocol))
    return {(row.published.dataset, row.part): row for row in rows}


def test_another_division_of_the_classes_is_said_and_not_compared(folder: RunsFolder) -> None:
    kvasir = benchmarks()["kvasir"].class_names
    other = (*kvasir[3::-1], *kvasir[:3:-1])  # another order of the same base classes
    rows = _ogkd(folder, {"RETINA": RETINA, "Kvasir": other}, "base-to-novel")
    for part in ("base", "novel", "hm"):
        assert rows["retina", part].note == "other base classes"
        assert rows["retina", part].difference is None
        assert rows["kvasir", part].note == ""
        assert rows["kvasir", part].difference is not None
    for part in ("base", "novel", "hm", "mean-hm"):
        row = rows["average", part]
        assert row.ours == pytest.approx(60)  # Kvasir's alone, on both sides
        assert row.published.value == pytest.approx(
            _printed("kvasir", "ogkd", part.removeprefix("mean-")), abs=0.01
        )
        assert row.difference == pytest.approx(row.ours - row.published.value)
        assert row.note == "both over 1 datasets; left out: retina (other base classes)"


def test_few_shot_runs_need_the_same_classes_in_any_order(folder: RunsFolder) -> None:
    three = ("covid lungs", "normal lungs", "viral pneumonia lungs")
    rows = _ogkd(folder, {"COVID_19": three, "RETINA": RETINA}, "few-shot", flips=8)
    assert (rows["covid", "test"].note, rows["covid", "test"].difference) == ("other classes", None)
    assert rows["retina", "test"].note == ""
    assert rows["average", "test"].ours == pytest.approx(60)
    assert rows["average", "test"].note.endswith("left out: covid (other classes)")


def test_one_dataset_with_other_classes_leaves_no_difference_of_a_printed_average(
    folder: RunsFolder,
) -> None:
    names: dict[str, tuple[str, ...] | None] = dict.fromkeys(benchmarks())
    rows = _ogkd(folder, names | {"covid": ("a", "b", "c")}, "few-shot")
    row = rows["average", "test"]
    assert row.difference is None
    assert row.note == "ours: 10 of 11 datasets; left out: covid (other classes)"


def test_ablations_are_matched_by_label_and_other_settings_are_not(folder: RunsFolder) -> None:
    cells = []
    for label, settings in (("B + GAD", {"lambda_lgd": 0.0}), ("my idea", {"gamma": 0.9})):
        for dataset in benchmarks():
            spec = RunSpec(dataset=dataset, method="ogkd", shots=8, settings=settings)
            _write(folder, spec, 0.7)
            cells.append((label, spec))
    (row,) = compare_with_published(folder, make_plan(cells, "ablation"))
    assert (row.label, row.published.table, row.published.value) == ("B + GAD", "components", 69.99)


def test_a_sweep_of_a_setting_has_no_counterpart(folder: RunsFolder) -> None:
    spec = RunSpec(dataset="busi", method="ogkd", shots=16, settings={"gamma": 0.5})
    _write(folder, spec, 0.7)
    plan = make_plan([("ogkd", spec)], "sweep", sweep="gamma")
    assert compare_with_published(folder, plan) == []
    assert "counterpart" in published_markdown(folder, plan)


def test_text_has_every_row(folder: RunsFolder) -> None:
    plan = _base_to_novel_plan(folder, ["covid", "kvasir"], label="a|b")
    lines = published_markdown(folder, plan).splitlines()
    assert len(lines) == 5 + len(compare_with_published(folder, plan))
    assert "| base-to-novel | covid | a\\|b | 16 | 0 | base | 80.00 | 75.92 | +4.08 |  |" in lines


def test_a_benchmark_without_printed_base_to_novel_numbers_is_left_out(folder: RunsFolder) -> None:
    specs = [
        RunSpec(dataset=name, method="ogkd", shots=16, protocol="base-to-novel")
        for name in ("busi", "retina")
    ]
    for spec in specs:
        _write(folder, spec, {"base": 0.9, "novel": 0.8})
    alone = make_plan([("ogkd", specs[0])], "base-to-novel")
    assert compare_with_published(folder, alone) == []
    both = make_plan([("ogkd", spec) for spec in specs], "base-to-novel")
    rows = compare_with_published(folder, both)
    assert {row.published.dataset for row in rows} == {"retina", "average"}
    assert all(
        "both over 1 datasets" in row.note for row in rows if row.published.dataset == "average"
    )


def test_backbone_prompts_and_settings_stand_above_the_table(folder: RunsFolder) -> None:
    common = {"dataset": "RETINA", "protocol": "base-to-novel", "method": "ogkd", "shots": 16}
    spec = RunSpec(**common, backbone="small-proxy", bank="retina", settings={"train.epochs": 2})
    _write(folder, spec, {"base": 0.5, "novel": 0.5}, RETINA)
    text = published_markdown(folder, make_plan([("ogkd", spec)], "base-to-novel"))
    assert text.splitlines()[:3] == [
        "Our backbone: small-proxy. The published numbers': BiomedCLIP.",
        "Our prompts: ours. The published numbers': released. Differences are also those of the "
        "prompts.",
        "Our settings: train.epochs=2.",
    ]
    spec = RunSpec(**common, bank="released")
    _write(folder, spec, {"base": 0.5, "novel": 0.5}, RETINA, bank_sha256="ab" * 32)
    text = published_markdown(folder, make_plan([("ogkd", spec)], "base-to-novel"))
    assert text.splitlines()[1:3] == [
        "Our prompts: released (sha256 abababababab). The published numbers': released.",
        "",
    ]
