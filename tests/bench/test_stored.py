"""A run with damaged files is named and left out; the others are used."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


@pytest.fixture
def bench(folder: RunsFolder, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Run a command of `ogkd bench`, without its parsing; its output and its warnings."""

    def call(command: str, *more: Any) -> tuple[str, str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            getattr(cli, command)(folder.root, *more)
        return capsys.readouterr().out, "\n".join(str(warning.message) for warning in caught)

    return call


@pytest.mark.parametrize("name", ["result.json", "spec.json", PREDICTIONS])
def test_any_change_of_a_stored_run_is_noticed_and_the_others_are_used(
    folder: RunsFolder, bench: Any, name: str
) -> None:
    file = folder.folder_of(BAD) / name
    content = bytearray(file.read_bytes())
    changed = {"result.json": b"0.875", "spec.json": b"busi"}
    content[content.index(changed[name]) + 2 if name in changed else -1] ^= 1
    file.write_bytes(content)
    assert [folder.state(spec)[0] for spec in SPECS] == ["damaged", "done", "done", "done"]
    commands = [("compare", ["ogkd", "coop"])] + [("table",), ("compare",)] * (name in changed)
    for command in commands:
        (line,) = bench(*command)[1].splitlines()
        assert line.startswith("Skipped: ")
        assert BAD.hash in line
    assert bench("status")[0].startswith(
        "tiny: 3 done, 0 missing, 0 failed, 1 damaged of 4\ndamaged: "
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("seconds"),
        lambda content: content.update(metrics=None),
        lambda content: content.update(metrics={"base": {"accuracy": 0.5}}),
        lambda content: content.update(run="0" * 20),
        lambda content: content.update(schema_version=99),
    ],
)
def test_results_that_are_not_of_the_run_are_left_out(
    folder: RunsFolder, change: Callable[[dict[str, Any]], None]
) -> None:
    edit_sealed(folder.folder_of(BAD) / "result.json", change)
    with pytest.warns(OgkdWarning, match=f"Skipped: .*{BAD.hash}"):
        assert [run.spec for _, run in folder.finished(PLAN)] == SPECS[1:]


@pytest.mark.parametrize("command", ["table", "compare", "figure"])
def test_if_every_run_is_damaged_one_message_says_so(
    folder: RunsFolder, bench: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for spec in SPECS:
        (folder.folder_of(spec) / "result.json").write_text("[]")
    with pytest.raises(DataError):
        bench(command)
    assert capsys.readouterr() == ("", "")


def test_what_is_not_a_run_at_all_is_named(folder: RunsFolder, bench: Any) -> None:
    (folder.root / "runs" / "notes.txt").write_text("text")
    assert "notes.txt" in bench("table", None, "accuracy", "runs")[1]


def test_in_python_a_skipped_run_is_a_warning(folder: RunsFolder) -> None:
    (folder.folder_of(BAD) / "spec.json").unlink()
    with pytest.warns(OgkdWarning, match=f"Skipped: .*{BAD.hash}"):
        assert len(folder.finished(PLAN)) == 3
    with pytest.raises(DataError, match=r"spec\.json is missing or damaged"):
        folder.read(BAD)
