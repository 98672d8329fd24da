"""Grids become plans; what cannot be is refused with the nearest that can."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections import Counter

import pytest
from PIL import Image

from ogkd.bench.grid import expand, grid_names, read_grid
from ogkd.bench.runs import RunSpec
from ogkd.bench.sources import open_source
from ogkd.errors import ConfigError
from ogkd.images import read_image
from ogkd.methods import METHODS
from ogkd.prompts.bank import read_bank, shipped_banks


def labels_of(grid_file, **changes):
    """The rows of a plan, with their settings."""
    plan, _ = expand(read_grid(grid_file, {"datasets": ["first"]} | changes))
    return {cell.label: cell.spec.settings for cell in plan.cells}


def test_every_list_multiplies_the_runs(grid_file):
    plan, sources = expand(read_grid(grid_file))
    assert set(sources) == {"first", "second"}
    assert len(plan.cells) == len(plan.specs) == 2 * 4 * 2 * 2  # datasets, rows, shots, seeds
    assert plan.sweep is None
    plan, _ = expand(read_grid(grid_file, {"only": ["OGKD"], "sweep": {"gamma": [0.0, 0.5]}}))
    assert plan.sweep == "gamma"
    assert Counter(cell.spec.settings["gamma"] for cell in plan.cells) == {0.0: 8, 0.5: 8}


def test_settings_go_to_the_methods_that_have_them_and_replace_those_of_rows(grid_file):
    epochs = {"train.epochs": 2}
    assert labels_of(grid_file) == {"zero-shot": {}, "gda": {}, "coop": epochs, "OGKD": epochs}
    rows = [
        {"method": "coop", "settings": {"train.epochs": 9}},
        {"method": "fused"},  # it trains nothing
        {"method": "fused", "label": "template", "settings": {"text": "single"}},
    ]
    changes = {"rows": rows, "methods": [], "settings": {"views": 0}, "over": {"train.epochs": 3}}
    assert labels_of(grid_file, **changes) == {
        "coop": {"views": 0, "train.epochs": 3},
        "fused": {"views": 0},
        "template": {"views": 0, "text": "single"},
    }


def test_a_moved_folder_or_backbone_keeps_the_names_of_its_runs(grid_file, datasets, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    moved = tmp_path / "elsewhere" / datasets.name
    moved.symlink_to(datasets)
    before = [cell.spec.hash for cell in expand(read_grid(grid_file))[0].cells]
    after = [cell.spec.hash for cell in expand(read_grid(grid_file, {"data": str(moved)}))[0].cells]
    assert before == after


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"datasets": ["frist"]}, "datasets"),
        ({"datasets": ["x" * 300]}, "datasets"),
        ({"data": "x" * 300}, "data"),
        ({"prompts": "x" * 300}, "prompts"),
        ({"data": "phantoms", "prompts": "released", "datasets": ["cxr"]}, "prompts"),
        ({"methods": ["ogdk"]}, "methods"),
        ({"settings": {"gama": 0.3}}, "settings"),
        ({"sweep": {"gama": [0.3]}}, "settings"),
        ({"over": {"train_epochs": 3}}, "settings"),
        ({"protocol": "base-to-novel"}, "methods"),
        ({"only": ["ogkt"]}, "methods"),
        ({"data": "nowhere"}, "data"),
        ({"settings": {"train.epoch": 3}}, None),
        ({"rows": [{"method": "ogkd", "settings": {"gama": 1.0}}]}, None),
        ({"rows": [{"method": "gda"}, {"method": "gda", "settings": {"alpha": 1.0}}]}, "grid"),
        ({"rows": [{"metod": "ogkd"}]}, "grid"),
        ({"methods": [], "rows": []}, "grid"),
        ({"seedz": [1]}, "grid"),
        ({"sweep": {"gamma": [0.1], "alpha": [1.0]}}, "grid"),
        ({"datasets": []}, "grid"),
        ({"shots": ["many"]}, "grid"),
        ({"shots": [0]}, "grid"),
        ({"flips": [0, 2]}, "grid"),  # more than shots
        ({"flips": [0, 1], "budgets": [2, 4]}, "grid"),
    ],
)
def test_invalid_values_name_their_argument(grid_file, change, argument):
    with pytest.raises(ConfigError) as caught:
        expand(read_grid(grid_file, change))
    assert caught.value.argument == argument


# The runs of the ten shipped grids of a variant: digest and number. They name folders of
# results, so they must never change.
SHIPPED = {
    "paper": ("342a5ef63c65f0df", 6363),
    "phantoms": ("d5cb994c4ac23d85", 348),
    "real-small": ("ba25046c67533d00", 768),
}


@pytest.mark.parametrize(("variant", "expected"), SHIPPED.items())
def test_the_runs_of_shipped_grids_keep_their_names(variant, expected, tmp_path):
    root = tmp_path / "small"  # the folder's name is part of a run
    for dataset, label in itertools.product(("COVID_19", "Mine"), ("a", "b", "c", "normal_d")):
        (root / dataset / "train" / label).mkdir(parents=True)
    changes = {"data": str(root)} if variant == "real-small" else {}
    content = []
    for name in sorted(grid_names(variant)):
        grid = read_grid(name, changes)
        plan, _ = expand(grid)
        cells = [[cell.label, cell.spec.hash] for cell in plan.cells]
        content.append([plan.name, plan.title, plan.table, plan.sweep, grid.backbone, cells])
        if variant == "paper":
            trained = [cell.spec for cell in plan.cells if cell.spec.method == "ogkd"]
            assert all(str(spec.preset).startswith("paper/") for spec in trained)
    digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
    assert len(content) == 10
    assert (digest, sum(len(cells) for *_, cells in content)) == expected


def test_the_papers_few_shot_grid_asks_for_what_the_benchmark_ran():
    plan, _ = expand(read_grid("paper/few-shot"))
    assert {cell.spec.bank for cell in plan.cells} == {"released"}
    adapters = {"clip-adapter", "tip-adapter", "tip-adapter-f", "linear-probe", "lp++"}
    released = {cell.spec.method for cell in plan.cells if "fidelity" in cell.spec.settings}
    assert released == adapters


def test_a_file_as_a_bank_keeps_the_datasets_presets_and_names_runs_by_content(tmp_path):
    bank = read_bank(shipped_banks()["btmri"])
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "btmri.json").write_text(json.dumps(bank))
    few = {"datasets": ["btmri"], "only": ["ogkd", "coop"], "shots": [1], "seeds": [1]}

    def cells(**change):
        plan, _ = expand(read_grid("paper/few-shot", few | change))
        return [cell.spec for cell in plan.cells]

    by_file = cells(prompts=str(tmp_path / "here"))
    assert [spec.preset for spec in by_file] == ["paper/few-shot/btmri"] * 2
    assert str(tmp_path) not in "".join(spec.without() for spec in by_file)
    assert cells(prompts=str(tmp_path / "there")) == by_file
    bank["glioma tumor"][0] += " "
    (tmp_path / "there" / "btmri.json").write_text(json.dumps(bank))
    other = cells(prompts=str(tmp_path / "there"))
    assert {spec.hash for spec in other}.isdisjoint(spec.hash for spec in by_file)
    for change in ({"prompts": str(tmp_path / "there"), "datasets": ["busi"]}, {"prompts": "no"}):
        with pytest.raises(ConfigError):
            cells(**change)


def test_a_preset_that_does_not_exist_is_an_error_for_methods_that_have_its_kind(tmp_path):
    few = {"datasets": ["btmri"], "shots": [1], "seeds": [1]}
    wrong = {"preset": "paper/fewshot/{dataset}"}
    with pytest.raises(ConfigError):
        expand(read_grid("paper/few-shot", few | wrong | {"only": ["ogkd"]}))
    plan, _ = expand(read_grid("paper/few-shot", few | wrong | {"only": ["tip-adapter"]}))
    assert plan.cells[0].spec.preset is None  # it has no presets at all
    for label in ("a", "b"):
        (tmp_path / "Mine" / "train" / label).mkdir(parents=True)
    mine = {"data": str(tmp_path), "only": ["ogkd"]}
    plan, _ = expand(read_grid("real-small/few-shot", mine))
    assert {cell.spec.preset for cell in plan.cells} == {"auto"}


def test_a_label_chooses_its_row_and_a_method_all_of_its_rows(grid_file):
    rows = [
        {"method": "ogkd"},
        {"label": "ogkd, auto", "method": "ogkd", "preset": "auto"},
        {"label": "near", "method": "kgcoop"},
        {"label": "far", "method": "kgcoop", "settings": {"weight": 0.0}},
    ]

    def labels(*only):
        return list(labels_of(grid_file, rows=rows, methods=[], only=list(only)))

    assert labels("ogkd") == ["ogkd"]
    assert labels("ogkd, auto") == ["ogkd, auto"]
    assert labels("kgcoop") == ["near", "far"]
    assert labels("ogkd", "far") == ["ogkd", "far"]


@pytest.mark.parametrize(
    ("grid", "classes"),
    [
        ("base-to-novel", ("a", "b", "normal")),  # too few
    ],
)
def test_datasets_that_a_protocol_cannot_evaluate_are_left_out_or_refused(tmp_path, grid, classes):
    for dataset, names in (("fit", ("a", "b", "normal_c", "d")), ("unfit", classes)):
        for name in names:
            (tmp_path / dataset / "train" / name).mkdir(parents=True)
    changes = {"data": str(tmp_path)}
    plan, sources = expand(read_grid(f"real-small/{grid}", changes))
    assert list(sources) == ["fit"]
    assert {cell.spec.dataset for cell in plan.cells} == {"fit"}
    with pytest.raises(ConfigError) as caught:
        expand(read_grid(f"real-small/{grid}", changes | {"datasets": ["fit", "unfit"]}))
    assert caught.value.argument == "datasets"


def test_the_papers_grids_read_photographs_as_they_are_stored(datasets, grid_file, tmp_path):
    """Without a turn, as the released code does; everything else is turned upright."""
    assert not read_grid("paper/few-shot").upright
    assert not read_grid("paper/base-to-novel").upright
    assert read_grid("real-small/few-shot").upright
    shutil.copytree(datasets / "first", tmp_path / "data" / "first")
    file = tmp_path / "data" / "first" / "test" / "normal_lung" / "0.png"
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.open(file).save(file, exif=exif)
    digests = set()
    for upright in (True, False):
        changes = {"data": str(tmp_path / "data"), "datasets": ["first"], "upright": upright}
        plan, sources = expand(read_grid(grid_file, changes))
        source = open_source(sources["first"])
        shapes = {read_image(image).shape for image in source.dataset.images}
        assert ((40, 36, 3) in shapes) == upright
        digests.add(source.digests["data_sha256"])
        hashes = set(plan.specs)
    assert len(digests) == 2  # results of both are refused in one folder
    assert hashes == set(expand(read_grid(grid_file, changes | {"upright": True}))[0].specs)


@pytest.mark.parametrize("protocol", ["few-shot", "base-to-novel"])
def test_other_rows_of_a_shipped_grid_make_a_plan_of_their_own(protocol):
    paper, _ = expand(read_grid(f"phantoms/{protocol}"))
    labels = {cell.label for cell in paper.cells}
    for name in ("rivals", "towers"):
        plan, _ = expand(read_grid(f"phantoms/{protocol}", row_set=name))
        assert (plan.name, plan.table) == (f"{protocol}-{name}", paper.table)
        assert labels.isdisjoint(cell.label for cell in plan.cells)
        tuned = {METHODS[cell.spec.method].needs_pixels for cell in plan.cells}
        assert tuned == {name == "towers"}
    rivals, towers = (read_grid(f"paper/{protocol}").row_sets[n] for n in ("rivals", "towers"))
    new = {name for name in METHODS if METHODS[name].needs_pixels}
    assert set(towers) == new
    assert "biomed-dpt" in rivals


def test_a_choice_of_rows_that_a_grid_lacks_is_refused(grid_file):
    with pytest.raises(ConfigError) as error:
        read_grid(grid_file, row_set="rivals")
    assert error.value.argument == "rows"


def test_hashes_of_runs_are_those_of_before_there_was_another_test_set():
    spec = RunSpec(dataset="busi", method="ogkd", shots=16, bank="released", backbone="biomedclip")
    assert spec.hash == "6c05552af26fd7d84b43"
    assert RunSpec.model_validate(spec.model_dump() | {"test_on": "busbra"}).hash != spec.hash


def test_only_few_shot_runs_are_tested_on_another_dataset(grid_file):
    with pytest.raises(ConfigError):
        read_grid(grid_file, {"test_on": "second", "protocol": "base-to-novel"})
    plan, sources = expand(read_grid(grid_file, {"test_on": "second"}))
    tested = {(cell.spec.dataset, cell.spec.test_on) for cell in plan.cells}
    assert tested == {("first", "second"), ("second", None)}
    only, sources = expand(read_grid(grid_file, {"test_on": "second", "datasets": ["first"]}))
    assert {cell.spec.dataset for cell in only.cells} == {"first"}
    assert set(sources) == {"first", "second"}
