"""Golden outputs: the commands of `ogkd` on tiny data answer as recorded.

For each command, expected/NAME.numbers.json has probabilities, sets, decisions and metrics, and
expected/NAME.txt the words around them. A change of numbers is a change of behaviour; a change of
words may be intended, and is recorded again:

    OGKD_GOLDEN=record pytest tests/golden     records everything again: look at the diff
    OGKD_GOLDEN=strict pytest tests/golden     numbers to 1e-6, for two versions on one machine
    pytest tests/golden                        numbers to 2e-4, because processors differ

A renamed or removed column or key is an entry of ALIASES or REMOVED in golden_outputs.py. Commands
run in this order in one folder, each using what earlier ones wrote.
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

import pytest
from golden_outputs import (
    dump_numbers,
    number_differences,
    numbers_of,
    read_onnx,
    read_output,
    read_tensors,
    words_of,
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


PRIOR = "'normal breast tissue=0.7,simple cyst=0.1,benign solid mass=0.1,malignant mass=0.1'"
COMMANDS = (
    Command(
        "phantoms", "phantoms us-breast --train 6 --val 16 --test 5 --size 128 --seed 3 -o img"
    ),
    Command(
        "phantoms-volumes",
        "phantoms ct-kidney --volumes 5 --train 2 --val 6 --test 2 --share 0.5 --size 128"
        " --seed 3 -o vol",
    ),
    Command(
        "phantoms-findings",
        "phantoms chest-findings --train 24 --val 60 --test 16 --size 128 --seed 3 -o drawn",
    ),
    # one class in an image
    Command("fit-fused", "fit img -b builtin -o fused", wrote="fused/model.json"),
    Command("predict-before-calibration", "predict fused img/test --format jsonl", "jsonl"),
    Command("calibrate", "calibrate fused img", wrote="fused/calibration.json"),
    Command("evaluate", "evaluate fused img"),
    Command("evaluate-all", "evaluate fused img --all --resamples 50"),
    Command(
        "evaluate-json",
        "evaluate fused img --json --resamples 50 --csv rows.csv",
        "json",
        "rows.csv",
    ),
    Command("evaluate-patients-json", "evaluate fused patients.csv --json --resamples 50", "json"),
    Command("predict-csv", "predict fused img/test", "csv"),
    Command("predict-coverage-risk", "predict fused img/test --coverage 0.7 --max-risk 0.6", "csv"),
    Command("predict-prior", f"predict fused img/test --prior {PRIOR}", "csv"),
    Command(
        "report", "evaluate fused img --no-images --resamples 20 --report r.html", wrote="r.html"
    ),
    Command(
        "export", "export fused -o fused.onnx --check img/test/simple_cyst", wrote="fused.onnx"
    ),
    Command("fit-gda", "fit img -b builtin -m gda --shots 4 -o gda", wrote="gda/model.json"),
    Command("predict-gda", "predict gda img/test", "csv"),
    Command(
        "fit-ogkd",
        "fit img -b builtin -m ogkd --shots 2 --set train.epochs=3 -o ogkd",
        wrote="ogkd/model.json",
    ),
    Command("predict-ogkd", "predict ogkd img/test", "csv"),
    Command("fit-zero-shot", "fit img -b builtin -m zero-shot -o zero", wrote="zero/model.json"),
    Command("calibrate-zero-shot", "calibrate zero img", wrote="zero/calibration.json"),
    Command("evaluate-zero-shot-json", "evaluate zero img --json --resamples 0", "json"),
    Command(
        "predict-without-a-model",
        "predict --zero-shot 'normal breast tissue, simple cyst' -b builtin img/test",
        "csv",
    ),
    # several images in a case
    Command(
        "fit-volumes", "fit vol -b builtin --slices N=2 -o volumes", wrote="volumes/model.json"
    ),
    Command("calibrate-volumes", "calibrate volumes vol", wrote="volumes/calibration.json"),
    Command("evaluate-volumes", "evaluate volumes vol"),
    Command("evaluate-volumes-json", "evaluate volumes vol --json --resamples 20", "json"),
    Command("predict-volumes-csv", "predict volumes vol/test --coverage 0.7 --max-risk 0.8", "csv"),
    Command("predict-volumes-jsonl", "predict volumes vol/test --format jsonl", "jsonl"),
    Command(
        "fit-exams",
        "fit exams.csv -b builtin -m gda --cases exam -o exams",
        wrote="exams/model.json",
    ),
    Command("evaluate-exams-json", "evaluate exams exams.csv --json --resamples 20", "json"),
    Command("predict-exams", "predict exams new-exams.csv", "csv"),
    # several findings in an image
    Command(
        "fit-findings", "fit films/films.csv -b builtin -o findings", wrote="findings/model.json"
    ),
    Command(
        "calibrate-findings",
        "calibrate findings films/films.csv --sensitivity 0.7",
        wrote="findings/calibration.json",
    ),
    Command("evaluate-findings", "evaluate findings films/films.csv --all --resamples 20"),
    Command(
        "evaluate-findings-json", "evaluate findings films/films.csv --json --resamples 20", "json"
    ),
    Command("predict-findings-csv", "predict findings films/test", "csv"),
    Command("predict-findings-jsonl", "predict findings films/test --format jsonl", "jsonl"),
    # data, texts, features
    Command("data-check", "data check patients.csv --json check.json", wrote="check.json"),
    Command("data-split", "data split undivided.csv -o divided.csv", wrote="divided.csv"),
    Command("embed", "embed img/test -o images.safetensors", wrote="images.safetensors"),
    Command(
        "embed-texts", "embed --texts texts.txt -o texts.safetensors", wrote="texts.safetensors"
    ),
    Command("methods", "methods"),
    Command("methods-ogkd-json", "methods ogkd --json", "json"),
    Command("backbones", "backbones list"),
    Command("prompts-check", "prompts check busi"),
    Command("prompts-show", "prompts show busi 'normal scan'"),
    # benchmark
    Command("bench-run", "bench run grid.toml --workers 0 -o runs"),
    Command("bench-table", "bench table runs"),
)
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
        parts = {"printed": read_output(printed, command.kind), "notes": _prose(notes)}
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
        if path.suffix == ".onnx":
            return read_onnx(path, Path("img/test"))
        text = path.read_text(encoding="utf-8").replace(str(self.folder), "<folder>")
        return read_output(text, path.suffix[1:])


def _prose(text: str) -> tuple[Any, str]:
    return numbers_of(text), words_of(text)


def _write_tables() -> None:
    """Tables of what the phantoms are: patients with two images each, exams, a grid, texts.

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
    exams = [row for row in slices if row["exam"].split()[1] in ("normal", "kidney")]
    _write_table("exams.csv", exams)
    new = [{**row, "label": None, "split": None} for row in exams if row["split"] == "test"]
    _write_table("new-exams.csv", new)
    Path("grid.toml").write_text(GRID, encoding="utf-8")
    Path("texts.txt").write_text("a simple cyst\nnormal breast tissue\n", encoding="utf-8")


def _write_table(name: str, rows: list[dict[str, Any]]) -> None:
    """A CSV file without the columns that are None."""
    columns = [column for column, value in rows[0].items() if value is not None]
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


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
