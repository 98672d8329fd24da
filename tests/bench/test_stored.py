"""A run with damaged files is named and left out; what is whole, new or old, is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ogkd.bench.runs import PREDICTIONS, RunsFolder, RunSpec
from ogkd.cli import bench as cli
from ogkd.errors import DataError
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
    """Run a command of `ogkd bench`, without its parsing; its output and what it says beside it."""

    def call(command: str, *more: Any) -> tuple[str, str]:
        getattr(cli, command)(folder.root, *more)
        return capsys.readouterr()

    return call


def changed(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(fields)


def drop_digests(folder: RunsFolder, spec: RunSpec) -> Path:
    """Make a run as older versions wrote it; its folder."""
    run_folder = folder.folder_of(spec)
    result = json.loads((run_folder / "result.json").read_text())
    for name in ("sha256", "run", "predictions_sha256"):
        del result[name]
    (run_folder / "result.json").write_text(json.dumps(result))
    return run_folder


@pytest.mark.parametrize(
    "change",
    [
        changed(metrics=None),
        changed(metrics={}),
        changed(metrics=[0.5]),
        changed(metrics={"test": None}),
        changed(metrics={"test": {"accuracy": "0.5"}}),
        changed(metrics={"test": {"accuracy": float("nan")}}),
        changed(metrics={"test": {"accuracy": 93.1}}),  # a percentage
        changed(metrics={"test": {"nll": 1e300}}),
        changed(metrics={"base": {"accuracy": 0.5}}),
        changed(class_names={"test": "sick"}),
        changed(class_names={"test": []}),
        changed(class_names={}),
        changed(normal={"test": [2]}),
        changed(normal={"test": ["healthy"]}),
        changed(normal=None),
        changed(seconds={"train": "2"}),
        changed(seconds=[1]),
        changed(images_per_class=["a"]),
        changed(images_per_class=4),
        changed(versions="0.1.0"),
        changed(config=[1]),
        changed(run="0" * 20),
        changed(schema_version="1"),
        changed(schema_version=99),
        lambda content: content.pop("seconds"),
    ],
)
def test_a_run_with_a_damaged_result_is_named_and_the_others_are_used(
    folder: RunsFolder, bench: Any, change: Callable[[dict[str, Any]], None]
) -> None:
    edit_sealed(folder.folder_of(BAD) / "result.json", change)
    for command in [("table",), ("compare",), ("compare", ["ogkd", "coop"])]:
        (line,) = bench(*command)[1].splitlines()
        assert line.startswith("Skipped: ")
        assert BAD.hash in line
        assert "again" in line or "Upgrade" in line
    state, _ = bench("status")
    assert state.startswith("tiny: 3 done, 0 missing, 0 failed, 1 damaged of 4\ndamaged: ")


def arrays(**parts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({f"test/{name}": value for name, value in parts.items()})


@pytest.mark.parametrize(
    "change",
    [
        arrays(labels=np.array([0, 1] * 3 + [0, 2])),
        arrays(labels=np.array([0, 1] * 3 + [0, -1])),
        arrays(labels=np.array([0, 1, 0])),
        arrays(labels=np.zeros((8, 1), np.int64)),
        arrays(labels=np.array([0.0, 1.0] * 4)),
        arrays(labels=np.array(1)),
        arrays(probabilities=np.full((8, 3), 1 / 3, np.float32)),
        arrays(probabilities=np.full((8, 2), 0.4, np.float32)),
        arrays(probabilities=np.tile(np.float32([1.5, -0.5]), (8, 1))),
        arrays(probabilities=np.full((8, 2), np.nan, np.float32)),
        arrays(probabilities=np.full(8, 0.5, np.float32)),
        arrays(probabilities=np.ones((8, 2), np.int64)),
        arrays(labels=np.zeros(0, np.int64), probabilities=np.zeros((0, 2), np.float32)),
        arrays(W=np.eye(3, dtype=np.float32)),
        arrays(W=np.full((2, 2), np.inf, np.float32)),
        lambda content: content.pop("test/W"),
    ],
)
def test_a_run_with_damaged_predictions_is_named_and_the_others_are_compared(
    folder: RunsFolder, bench: Any, change: Callable[[dict[str, Any]], None]
) -> None:
    file = drop_digests(folder, BAD) / PREDICTIONS
    content = load_file(file)
    change(content)
    save_file(content, file)
    (line,) = bench("compare", ["ogkd", "coop"])[1].splitlines()
    assert str(file) in line
    assert "1 damaged" in bench("status")[0]
    notes: list[str] = []
    usable = RunsFolder(folder.root, notes.append).finished(PLAN, predictions=True)
    assert [run.spec for _, run in usable] == SPECS[1:]
    assert len(notes) == 1


def test_any_change_of_a_stored_run_is_noticed(folder: RunsFolder) -> None:
    for spec, name in ((SPECS[0], "result.json"), (SPECS[1], PREDICTIONS)):
        file = folder.folder_of(spec) / name
        content = bytearray(file.read_bytes())
        run_folder = content.index(b"0.875") + 2 if name == "result.json" else len(content) - 1
        content[run_folder] ^= 1
        file.write_bytes(content)
    for spec in SPECS[:2]:
        assert "changed after it was written" in folder.damage(spec)
    assert not any(folder.damage(spec) for spec in SPECS[2:])


def test_runs_of_older_versions_are_read_as_before(folder: RunsFolder, bench: Any) -> None:
    before = bench("table")[0]
    for spec in SPECS:
        drop_digests(folder, spec)
    assert bench("table") == (before, "")
    assert bench("status")[0] == "tiny: 4 done, 0 missing, 0 failed of 4\n"


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
    with pytest.warns(UserWarning, match=f"Skipped: .*{BAD.hash}"):
        assert len(folder.finished(PLAN)) == 3
    with pytest.raises(DataError, match=r"spec\.json is missing or damaged"):
        folder.read(BAD)
