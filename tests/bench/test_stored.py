"""A run with damaged files is named and left out; the others are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ogkd.bench.runs import PREDICTIONS, RunsFolder, RunSpec
from ogkd.cli import bench as cli
from ogkd.errors import DataError, OgkdWarning
from tiny_data import edit_sealed
from tiny_runs import make_plan, write_run

SPECS = [
    RunSpec(dataset="busi", method=method, shots=16, seed=seed)
    for method in ("ogkd", "coop")
    for seed in (1, 2)
]
PLAN = make_plan([(spec.method, spec) for spec in SPECS], "few-shot")
BAD = SPECS[0]


@pytest.fixture
def folder(tmp_path: Path) -> RunsFolder:
    made = RunsFolder(tmp_path / "runs")
    for number, spec in enumerate(SPECS):
        right = np.arange(8) > number
        write_run(made, spec, float(right.mean()), {"test": right}, images_per_class=[16, 16])
    made.write_plan(PLAN)
    return made


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: cut_short(folder / "result.json"),
        lambda folder: cut_short(folder / "spec.json"),
        lambda folder: (folder / "spec.json").unlink(),
        lambda folder: (folder / "spec.json").write_text(SPECS[1].model_dump_json()),
        lambda folder: edit_sealed(folder / "result.json", lambda result: result.pop("seconds")),
        lambda folder: edit_sealed(
            folder / "result.json", lambda result: result.update(schema_version=99)
        ),
    ],
)
def test_damaged_run_is_left_out_with_a_warning(
    folder: RunsFolder, change: Callable[[Path], None]
) -> None:
    change(folder.folder_of(BAD))
    with pytest.warns(OgkdWarning, match=f"Skipped: .*{BAD.hash}"):
        assert [run.spec for _, run in folder.finished(PLAN)] == SPECS[1:]


@pytest.mark.parametrize("command", ["table", "compare", "figure"])
def test_if_every_run_is_damaged_one_message_says_so(folder: RunsFolder, command: str) -> None:
    for spec in SPECS:
        (folder.folder_of(spec) / "result.json").write_text("[]")
    with pytest.raises(DataError):
        getattr(cli, command)(folder.root)


def test_damaged_predictions_raise(folder: RunsFolder) -> None:
    cut_short(folder.folder_of(BAD) / PREDICTIONS)
    with pytest.raises(DataError):
        cli.compare(folder.root, ["ogkd", "coop"])
