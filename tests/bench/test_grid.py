"""Grids become plans; what cannot be is refused with the nearest that can."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from ogkd.bench.grid import expand, protocols, read_grid
from ogkd.errors import ConfigError


def test_every_list_multiplies_the_runs(grid_file):
    plan, sources = expand(read_grid(grid_file))
    assert set(sources) == {"first", "second"}
    assert len(plan.cells) == 2 * 4 * 2 * 2  # datasets, rows, shots, seeds
    assert Counter(cell.label for cell in plan.cells)["OGKD"] == 8
    specs = {cell.spec.hash for cell in plan.cells}
    assert len(specs) == len(plan.cells)
    ogkd = next(cell.spec for cell in plan.cells if cell.label == "OGKD")
    assert ogkd.settings == {"train.epochs": 2}
    zero = next(cell.spec for cell in plan.cells if cell.label == "zero-shot")
    assert zero.settings == {}  # it has no training


def test_a_moved_folder_or_backbone_keeps_the_names_of_its_runs(grid_file, datasets, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / datasets.name
    moved.symlink_to(datasets)
    before = [cell.spec.hash for cell in expand(read_grid(grid_file))[0].cells]
    after = [cell.spec.hash for cell in expand(read_grid(grid_file, {"data": str(moved)}))[0].cells]
    assert before == after


def test_a_sweep_changes_one_setting_and_is_the_axis_of_the_figure(grid_file):
    text = grid_file.read_text().replace('methods = ["zero-shot", "gda", "coop"]', "")
    grid_file.write_text(text + "\n[sweep]\ngamma = [0.0, 0.5]\n")
    plan, _ = expand(read_grid(grid_file))
    assert plan.sweep == "gamma"
    assert Counter(cell.spec.settings["gamma"] for cell in plan.cells) == {0.0: 8, 0.5: 8}


def test_options_replace_fields_and_choose_rows(grid_file):
    changes = {"shots": [2], "seeds": [7], "datasets": ["first"], "only": ["OGKD", "gda"]}
    plan, _ = expand(read_grid(grid_file, changes))
    assert [(cell.label, cell.spec.shots, cell.spec.seed) for cell in plan.cells] == [
        ("gda", 2, 7),
        ("OGKD", 2, 7),
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datasets": ["frist"]}, "Unknown dataset 'frist'. Did you mean 'first'"),
        ({"methods": ["ogdk"]}, "Unknown method 'ogdk'. Did you mean 'ogkd'"),
        ({"settings": {"train.epoch": 3}}, "train.epoch"),
        ({"settings": {"gama": 0.3}}, "has a setting 'gama'. Did you mean 'gamma'"),
        ({"sweep": {"gama": [0.3]}}, "has a setting 'gama'"),
        ({"rows": [{"method": "ogkd", "settings": {"gama": 1.0}}]}, "Did you mean 'gamma'"),
        ({"rows": [{"method": "ogkd", "settings": {"options.drop": True}}]}, "option 'drop'"),
        ({"rows": [{"method": "gda"}, {"method": "gda", "settings": {"alpha": 1.0}}]}, "called"),
        ({"shots": ["many"]}, "'shots.0' is wrong"),
        ({"seedz": [1]}, "Did you mean 'seeds'"),
        ({"protocol": "base-to-novel"}, "gda knows only the classes"),
        ({"only": ["ogkt"]}, "Did you mean 'ogkd'"),
        ({"data": "nowhere"}, "no folder nowhere"),
        ({"methods": [], "rows": []}, "names no method"),
        ({"sweep": {"gamma": [0.1], "alpha": [1.0]}}, "sweeps one setting"),
        ({"datasets": []}, "'datasets' is wrong"),
        ({"shots": [0]}, "'shots.0' is wrong"),
        ({"flips": [-1]}, "'flips.0' is wrong"),
        ({"flips": [0, 2]}, "needs as many shots"),
        ({"flips": [0, 1], "budgets": [2, 4]}, "one axis beside shots"),
        ({"banks": {"frist": "busi"}}, "[banks] names 'frist'"),
        ({"banks": {"first": "bussi"}}, "Cannot read bussi"),
        ({"rows": [{"metod": "ogkd"}]}, "Did you mean 'method'"),
    ],
)
def test_mistakes_are_named_with_what_is_known(grid_file, change, message):
    with pytest.raises(ConfigError) as caught:
        expand(read_grid(grid_file, change))
    assert message in str(caught.value)


def test_an_unknown_or_broken_grid_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="Did you mean 'paper/few-shot'"):
        read_grid("paper/few-shots")
    (tmp_path / "bad.toml").write_text("shots = [1,")
    with pytest.raises(ConfigError, match="not TOML"):
        read_grid(tmp_path / "bad.toml")


@pytest.mark.parametrize("name", sorted(protocols()))
def test_every_shipped_grid_is_a_plan(name, tmp_path):
    changes = {}
    if name.startswith("real-small"):  # any folder of datasets will do
        for dataset, label in itertools.product(("COVID_19", "Mine"), ("a", "b", "c", "normal_d")):
            (tmp_path / dataset / "train" / label).mkdir(parents=True)
        changes = {"data": str(tmp_path)}
    plan, sources = expand(read_grid(name, changes))
    assert plan.cells
    assert plan.title
    assert plan.name == name.split("/")[-1]
    if name.startswith("real-small"):
        assert {place: source.bank for place, source in sources.items()} == {
            "COVID_19": "covid",
            "Mine": None,
        }
    if name.startswith("paper"):
        assert all(source.bank == dataset for dataset, source in sources.items())
        trained = [cell.spec for cell in plan.cells if cell.spec.method == "ogkd"]
        assert all(str(spec.preset).startswith("paper/") for spec in trained)


def test_a_label_chooses_its_row_and_a_method_all_of_its_rows(grid_file):
    rows = [
        {"method": "ogkd"},
        {"label": "ogkd, auto", "method": "ogkd", "preset": "auto"},
        {"label": "near", "method": "kgcoop"},
        {"label": "far", "method": "kgcoop", "settings": {"weight": 0.0}},
    ]

    def labels(*only):
        changes = {"rows": rows, "methods": [], "datasets": ["first"], "only": list(only)}
        plan, _ = expand(read_grid(grid_file, changes))
        return list(dict.fromkeys(cell.label for cell in plan.cells))

    assert labels("ogkd") == ["ogkd"]
    assert labels("ogkd, auto") == ["ogkd, auto"]
    assert labels("kgcoop") == ["near", "far"]
    assert labels("ogkd", "far") == ["ogkd", "far"]


@pytest.mark.parametrize(
    ("grid", "classes", "message"),
    [
        ("base-to-novel", ("a", "b", "normal"), "has 3 classes, but base-to-novel needs 4"),
        ("class-gamma", ("a", "b", "c", "d"), "has no class marked as normal"),
    ],
)
def test_what_a_protocol_cannot_judge_is_left_out_or_refused(tmp_path, grid, classes, message):
    for dataset, names in (("fit", ("a", "b", "normal_c", "d")), ("unfit", classes)):
        for name in names:
            (tmp_path / dataset / "train" / name).mkdir(parents=True)
    changes = {"data": str(tmp_path)}
    plan, sources = expand(read_grid(f"real-small/{grid}", changes))
    assert list(sources) == ["fit"]
    assert {cell.spec.dataset for cell in plan.cells} == {"fit"}
    with pytest.raises(ConfigError, match=message):
        expand(read_grid(f"real-small/{grid}", changes | {"datasets": ["fit", "unfit"]}))
