"""`ogkd start`: from a folder of images to a tested model and a report, step by step."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.data import checked, division_notes, read_images
from ogkd.cli.options import say
from ogkd.errors import ConfigError, DataError, Interrupted, pluralize
from ogkd.files import holds_files, home, read_json, resolved, sha256_file, write_json, write_new
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.audit.check import Scans
    from ogkd.audit.divide import Division
    from ogkd.data.case import Dataset
    from ogkd.data.grouping import Grouping
    from ogkd.evaluation import Evaluation, LabelledPredictions
    from ogkd.model.classifier import Classifier

# The options whose first result is the check; all others are used by the model.
_OF_THE_CHECK = ("data", "slice", "cases", "slices")
_FEW = 5  # test images of a class that say next to nothing about it
_DONE = "already done"


def start(
    data: opt.DataArgument,
    out: Annotated[
        Path | None, Option("--out", "-o", help="The folder for results (default: DATA-ogkd).")
    ] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Ask nothing: accept the defaults.")] = False,
    backbone: opt.BackboneOption = str(FitRequest.backbone),
    method: Annotated[str, Option("--method", "-m", help=opt.HELP["method"])] = "fused",
    prompts: Annotated[Path | None, Option(help=opt.HELP["prompts"])] = None,
    normal: Annotated[
        list[str] | None, Option("--normal", help=f"{opt.HELP['normal']} Repeatable.")
    ] = None,
    slice: opt.SliceOption = None,
    cases: opt.CasesOption = None,
    slices: opt.SlicesOption = None,
) -> None:
    """From a folder of images to a tested model and a report, in one command.

    Checks the images, leaves out what cannot be used, divides the rest into
    parts to learn from, calibrate and test on, fits, calibrates, evaluates, and
    writes a report. The data is not changed and nothing is overwritten. Run the
    same command again to resume.
    """
    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            "`ogkd start` asks before it leaves images out, and there is no terminal to ask on. "
            "Add --yes to accept the defaults."
        )
    options: dict[str, Any] = {
        "backbone": _anywhere(backbone),
        "method": method,
        "prompts": None if prompts is None else _anywhere(str(prompts)),
        "normal": normal,
        "slice": slice,
        "cases": cases,
        "slices": slices,
    }
    from ogkd.images import decode_once

    work = _Start(data, _results_folder(data, out), options, ask=not yes)
    try:
        with decode_once():
            work.run()
    except KeyboardInterrupt as error:
        raise Interrupted("Stopped. Run the same command again to resume.") from error


def _results_folder(data: Path, out: Path | None) -> Path:
    """The folder for results: never inside the data, where it would become a class."""
    real = resolved(data)
    name = real.name.removesuffix(data.suffix) + "-ogkd"
    inside = data.is_dir() and Path.cwd().is_relative_to(real)
    folder = out or (real.parent / name if inside else Path(name))
    problem = ""
    if data.is_dir() and resolved(folder).is_relative_to(real):
        problem = f"is inside the data {data}, where it would be read as a class"
    elif folder.exists() and not folder.is_dir():
        problem = "is a file"
    elif folder.is_dir() and holds_files(folder) and not (folder / "start.json").is_file():
        problem = "is not empty and was not made by `ogkd start`"
    if problem:
        raise ConfigError(f"{folder} {problem}. Choose another folder.", argument="out")
    return folder


@dataclass
class _Start:
    """One start: every step writes its files whole, and is skipped if they are there."""

    data: Path
    out: Path
    options: dict[str, Any]
    ask: bool
    notes: list[str] = field(default_factory=list)  # of the step that runs
    scans: Scans = field(default_factory=dict)  # files that were checked, by what they contain

    def run(self) -> None:
        steps = {"Reading": self._read, "Checking": self._check, "Dividing": self._divide}
        steps |= {"Fitting": self._fit, "Calibrating": self._calibrate}
        steps |= {"Evaluating": self._evaluate, "Report": self._report}
        for number, (name, step) in enumerate(steps.items(), 1):
            typer.echo(f"{f'[{number}/{len(steps)}] {name}':18} {_one_line(step())}")
            for note in self.notes:
                typer.echo(f"{'':18} {_one_line(note)}")
            self.notes.clear()
        for line in _summary(self.out):
            typer.echo(line)

    @cached_property
    def grouping(self) -> Grouping:
        from ogkd.data.grouping import Grouping

        return Grouping.parse(*(self.options[name] for name in ("cases", "slices", "slice")))

    @cached_property
    def dataset(self) -> Dataset:
        from ogkd.data.grouping import Grouping

        return read_images(self.data, Grouping(self.grouping.by), self.options["normal"])

    @cached_property
    def audit(self) -> Audit:
        shown = self.grouping.representative.apply(self.dataset)
        return checked(self.data, shown, scans=self.scans)

    @cached_property
    def division(self) -> Division:
        from ogkd.audit.divide import divide_checked

        return divide_checked(self.dataset, self.audit)

    @cached_property
    def divided(self) -> Dataset:
        return ogkd.read_dataset(self.out / "split.csv")

    def _read(self) -> str:
        """Note the options and what the data contains; other results are never continued."""
        now = {**self.options, "data": _digest(self.dataset)}
        if (prompts := self.options["prompts"]) and Path(prompts).is_file():
            now["texts"] = sha256_file(Path(prompts))
        file, before = self.out / "start.json", {}
        with contextlib.suppress(FileNotFoundError, ValueError):  # damaged: as if it were new
            before = dict(read_json(file))
        changed = [
            key
            for key in {**before, **now}
            if now.get(key) != before.get(key)
            and (self.out / ("check.json" if key in _OF_THE_CHECK else "model")).exists()
        ]
        if changed:
            raise ConfigError(
                f"{self.out} contains the results of another start (other {', '.join(changed)}). "
                "Choose another folder, or give the same data and options to resume.",
                argument="out",
            )
        if before != now:
            write_json(file, now)
        return f"{len(self.dataset.cases)} images, {self.dataset.task.describe()}"

    def _check(self) -> str:
        from ogkd.report import write_data_check

        json_file, page = self.out / "check.json", self.out / "check.html"
        if json_file.is_file() and page.is_file():
            return _DONE
        shown = self.grouping.representative.apply(self.dataset)
        write_data_check(self.audit, images=shown.images, out=page)
        write_json(json_file, self.audit.as_json())
        # What is known about patients is said with the division.
        self.notes += [f.what for f in self.audit.findings if f.kind != "groups-unknown"]
        counts = [pluralize(self.audit.count(kind), kind) for kind in ("error", "warning", "note")]
        return f"{', '.join(counts)} -> {page}"

    def _divide(self) -> str:
        from ogkd.audit.divide import left_out_text
        from ogkd.data.tables import table_text

        file, left = self.out / "split.csv", self.out / "left-out.csv"
        if file.is_file():
            return _DONE
        division = self.division
        self.notes += division_notes(division)
        if division.left_out:
            self.notes.append(f"What is left out, and why: {left}")
        used = len(division.dataset.cases)
        if self.ask and division.left_out:
            while self.notes:
                say(f"  {_one_line(self.notes.pop(0))}")
            if not typer.confirm(f"Continue with the other {used} images?", True):
                raise Interrupted("Stopped. Fix the data and start again with another --out.")
        write_new(left, left_out_text(division, self.out))
        write_new(file, table_text(division.dataset, self.out))
        parts = {"learn from": "train", "calibrate on": "val", "test on": "test"}
        sizes = [f"{division.size(part)} to {what}" for what, part in parts.items()]
        patients = any(case.group is not None for case in division.dataset.cases)
        by = "patient by patient" if patients else "image by image"
        if self.dataset.has_splits:
            by = "by the splits of the data"
        if not patients:
            self.notes.append(
                "The data does not say which images show the same patient. If some do, the "
                "results look better than they are."
            )
        return f"{', '.join(sizes)}; {by}"

    def _fit(self) -> str:
        from ogkd.cli.fit import fetch_now
        from ogkd.fitting.choose import NoRealBackbone
        from ogkd.fitting.pipeline import fit_request, progress_of

        folder = self.out / "model"
        if folder.is_dir():
            shutil.rmtree(progress_of(folder), ignore_errors=True)  # left by a kill just after it
            return _DONE
        request = FitRequest(
            self.out / "split.csv",
            **self.options,
            out=folder,
            say=self.notes.append,
        )
        try:
            card = fit_request(request).card
        except NoRealBackbone:
            if not self.ask or not fetch_now():
                raise
            card = fit_request(request).card
        count, name = card.learned_cases, card.backbone.short_name
        return f"{card.method} on {name} learned from {count} {self.grouping.unit}s -> {folder}"

    def _calibrate(self) -> str:
        from ogkd.model.calibration import CALIBRATION

        file = self.out / "model" / CALIBRATION
        if file.is_file():
            return _DONE
        try:
            model = ogkd.load(self.out / "model", calibrated=False)
            calibration = ogkd.calibrate(model, self.divided, split="val", say=self.notes.append)
        except DataError as error:
            return f"skipped: {error}"
        calibration.write(file)
        return f"on {calibration.cases} {self.grouping.unit}s"

    @cached_property
    def evaluation(self) -> tuple[Classifier, LabelledPredictions, Evaluation]:
        from ogkd.evaluation import evaluate_predictions, predict_labelled

        model = ogkd.load(self.out / "model")
        judged = predict_labelled(model, self.out / "split.csv")
        return model, judged, evaluate_predictions(judged, model)

    def _evaluate(self) -> str:
        file = self.out / "evaluation.json"
        if file.is_file():
            return _DONE
        result = self.evaluation[2]
        write_json(file, result)
        return f"on {result['images']} {self.grouping.unit}s -> {file}"

    def _report(self) -> str:
        file = self.out / "report.html"
        if file.is_file():
            return _DONE
        # Of the division: what leaks between its parts. No file is read again.
        shown = self.grouping.representative.apply(self.divided)
        audit = checked(self.data, shown, scans=self.scans)
        model, judged, result = self.evaluation
        dataset = ogkd.read_dataset(self.out / "split.csv")
        ogkd.report(
            model,
            dataset,
            file,
            predictions=judged,
            result=result,
            audit=audit,
            left_out=[self.division.reasons()] if self.division.left_out else [],
        )
        return f"-> {file}"


def _digest(dataset: Dataset) -> str:
    """A digest of the table and of the contents of all files; missing ones count as such."""
    digest = hashlib.sha256(dataset.sha256.encode())
    for image in sorted(dataset.images, key=lambda image: image.as_posix()):
        try:
            digest.update(image.key.encode())
        except DataError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def _one_line(words: str) -> str:
    """Text without line breaks and control codes, which file names may contain."""
    return "".join(letter if letter.isprintable() else " " for letter in words)


def _anywhere(name: str) -> str:
    """A name as it is; a path that exists so that it can be used from other folders."""
    path = home(name)
    return str(path.resolve()) if path.exists() else name


def _summary(out: Path) -> Iterator[str]:
    """The last lines of a start: the verdict, what was hardly tested, and what is where."""
    result = json.loads((out / "evaluation.json").read_text(encoding="utf-8"))
    yield ""
    yield result["verdict"]["text"]
    yield from (f"WARNING: {warning}" for warning in result["warnings"])
    yield f"\nEverything is in {out}:"
    yield "  report.html     how good the model is, and when to trust it (open it in a browser)"
    yield "  check.html      what is wrong with the images; left-out.csv: what was left out"
    yield "  split.csv       which image was learned from, calibrated on, tested on"
    yield "  model           the model"
    yield f"Next:  ogkd predict {shlex.quote(str(out / 'model'))} NEW_IMAGES > out.csv"
