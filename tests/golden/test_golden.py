"""Golden outputs: the commands of `ogkd` on tiny data answer as recorded.

For each command, expected/NAME.numbers.json has probabilities, sets, decisions and metrics, and
expected/NAME.txt the words around them. A change of numbers is a change of behaviour; a change of
words may be intended, and is recorded again:

    OGKD_GOLDEN=record pytest tests/golden     records everything again: look at the diff
    OGKD_GOLDEN=strict pytest tests/golden     numbers to 1e-6, for two versions on one machine
    pytest tests/golden                        numbers to 2e-4, because processors differ

The commands of commands.txt run in this order in one folder, each using what earlier ones wrote.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from golden_outputs import (
    dump_numbers,
    number_differences,
    read_output,
    read_tensors,
)

from ogkd.cli import main
from ogkd.data.phantoms import write_films

EXPECTED = Path(__file__).parent / "expected"
MODE = os.environ.get("OGKD_GOLDEN", "")


@dataclass(frozen=True)
class Command:
    name: str
    line: str
    kind: str = "text"  # of the standard output: text, csv, json or jsonl
    wrote: str = ""  # a file that the command wrote, to be recorded as well


COMMANDS = [
    Command(*map(str.strip, line.split("|")))
    for line in Path(__file__).with_name("commands.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
NAMES = [command.name for command in COMMANDS]

GRID = """
name = "small"
data = "phantoms"
backbone = "builtin"
datasets = ["us-breast"]
shots = [2]
seeds = [1]
methods = ["zero-shot", "gda"]

[phantoms]
train = 2
val = 1
test = 4
"""


@dataclass(frozen=True)
class Output:
    numbers: dict[str, Any]
    words: str


class World:
    """A folder in which the commands run, as far as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, Output | Exception] = {}

    def output(self, name: str) -> Output:
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("OGKD_CACHE", str(self.folder / "cache"))
            patch.setenv("COLUMNS", "100")
            for command in COMMANDS[len(self.outputs) : NAMES.index(name) + 1]:
                try:
                    self.outputs[command.name] = self._run(command, patch)
                except Exception as error:  # this command's test fails; the others still run
                    self.outputs[command.name] = error
                if command.name == "phantoms-findings":
                    _write_tables()
        output = self.outputs[name]
        if isinstance(output, Exception):
            raise output
        return output

    def _run(self, command: Command, patch: pytest.MonkeyPatch) -> Output:
        patch.setattr(sys, "argv", ["ogkd", *shlex.split(command.line)])
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main()
        printed, notes = (self._text(stream) for stream in (out, err))
        code = int(end.value.code or 0)
        if code:
            raise RuntimeError(f"`ogkd {command.line}` ended with code {code}:\n{notes}")
        parts = {"printed": read_output(printed, command.kind), "notes": read_output(notes, "text")}
        if command.wrote:
            parts["wrote"] = self._written(Path(command.wrote))
        words = [f"[{part}]\n{words}\n" for part, (_, words) in parts.items()]
        numbers = {part: numbers for part, (numbers, _) in parts.items()}
        return Output(numbers, f"$ ogkd {command.line}\n" + "\n".join(words))

    def _text(self, stream: io.TextIOWrapper) -> str:
        stream.flush()
        text = stream.buffer.getvalue().decode("utf-8")  # type: ignore[attr-defined]
        return text.replace(str(self.folder), "<folder>")

    def _written(self, path: Path) -> tuple[Any, str]:
        if path.suffix == ".safetensors":
            return read_tensors(path)
        text = path.read_text(encoding="utf-8").replace(str(self.folder), "<folder>")
        return read_output(text, path.suffix[1:])


def _write_tables() -> None:
    """Tables of what the phantoms are: patients with two images each, exams, a grid.

    And films of which fewer answers are unknown than the command leaves empty.
    """
    sizes = {"train": 24, "val": 60, "test": 16}
    write_films(Path("films"), splits=sizes, seed=3, size=128, missing=0.1)
    files = sorted(Path("img").rglob("*.png"))
    rows = [
        {
            "path": file.as_posix(),
            "label": file.parent.name.replace("_", " "),
            "patient": f"{file.parts[1]} {index // 2}",
            "split": file.parts[1],
        }
        for index, file in enumerate(files)
    ]
    _write_table("patients.csv", rows)
    undivided = [{**row, "split": None} for row in rows if row["split"] == "val"]
    _write_table("undivided.csv", undivided)
    with Path("vol/slices.csv").open(encoding="utf-8", newline="") as file:
        slices = [{**row, "path": f"vol/{row['path']}"} for row in csv.DictReader(file)]
    exams = [row for row in slices if row["exam"].split()[1] in ("normal", "simple")]
    _write_table("exams.csv", exams)
    new = [{**row, "label": None, "split": None} for row in exams if row["split"] == "test"]
    _write_table("new-exams.csv", new)
    Path("grid.toml").write_text(GRID, encoding="utf-8")


def _write_table(name: str, rows: list[dict[str, Any]]) -> None:
    """A CSV file without the columns that are None."""
    pd.DataFrame(rows).dropna(axis="columns", how="all").to_csv(name, index=False)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("golden"))


@pytest.mark.parametrize("name", NAMES)
def test_numbers_are_as_recorded(world, name):
    observed = world.output(name).numbers
    file = EXPECTED / f"{name}.numbers.json"
    if MODE == "record":
        file.write_text(dump_numbers(observed), encoding="utf-8")
    recorded = json.loads(file.read_text(encoding="utf-8"))
    changed = list(number_differences(recorded, observed, strict=MODE == "strict"))
    assert not changed, "\n".join(changed[:20])


@pytest.mark.parametrize("name", NAMES)
def test_words_are_as_recorded(world, name):
    observed = world.output(name).words
    file = EXPECTED / f"{name}.txt"
    if MODE == "record":
        file.write_text(observed, encoding="utf-8")
    assert observed == file.read_text(encoding="utf-8")


def test_every_record_belongs_to_a_command():
    recorded = {file.name for file in EXPECTED.iterdir()}
    assert recorded == {f"{name}{end}" for name in NAMES for end in (".numbers.json", ".txt")}
