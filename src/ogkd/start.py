"""From a folder of images to a tested model and a report: what `ogkd start` does, step by step.

Every step writes its files whole and is skipped if they are there, so a start that was stopped is
resumed by doing the same again. The data is not changed and nothing is overwritten.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ogkd.audit import Audit
from ogkd.audit.check import Scans, check_data, read_images
from ogkd.audit.divide import Division, divide_checked, left_out_rows
from ogkd.data.case import Dataset
from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.data.tables import csv_text, table_text
from ogkd.errors import ConfigError, DataError, Interrupted, pluralize
from ogkd.evaluation import Evaluation, LabelledPredictions, evaluate_predictions, predict_labelled
from ogkd.evaluation.calibrate import calibrate
from ogkd.files import holds_files, home, read_json, resolved, sha256_file, write_json, write_new
from ogkd.fitting.choose import NoRealBackbone
from ogkd.fitting.learning_curve import learning_curve
from ogkd.fitting.pipeline import fit_request, progress_of
from ogkd.fitting.request import FitRequest
from ogkd.images import decode_once
from ogkd.model.calibration import CALIBRATION
from ogkd.model.classifier import Classifier, write_calibration
from ogkd.model.load import load
from ogkd.notes import notes_to
from ogkd.report import report, write_data_check

# The options whose first result is the check; all others are used by the model.
_OF_THE_CHECK = ("data", "columns", "slice", "cases", "slices")
_STARTED = "start.json"  # marks a folder of results
_RESULTS = (
    *("check.html", "check.json", "split.csv", "left-out.csv", "evaluation.json", "report.html"),
    _STARTED,
)
_FILES = """\
  report.html     how good the model is, and when to trust it (open it in a browser)
  check.html      what is wrong with the images; left-out.csv: what was left out
  split.csv       which image was learned from, calibrated on, tested on
  model           the model"""


@dataclass
class Start:
    """One start: `run` yields the lines to show."""

    data: Path
    wanted: Path | None  # where results go; None: beside the data, or in the current folder
    options: dict[str, Any]  # of a fit: those that matter here
    # Asks whether to leave images out, with what is known of them, and whether to fetch a backbone.
    confirm: Callable[[list[str], str], bool] | None = None
    fetch: Callable[[], bool] | None = None
    restart: bool = False  # remove the results of an earlier start
    notes: list[str] = field(default_factory=list)  # of the step that runs
    scans: Scans = field(default_factory=dict)  # files that were checked, by what they contain

    def __post_init__(self) -> None:
        self.out = _results_folder(self.data, self.wanted)
        for name in ("backbone", "prompts"):  # a path that exists is used from other folders
            if (given := self.options[name]) is not None:
                path = home(given)
                self.options[name] = str(path.resolve() if path.exists() else given)

    def run(self) -> Iterator[str]:
        steps = (
            ("Reading", self._read, ()),
            ("Checking", self._check, ("check.html", "check.json")),
            ("Dividing", self._divide, ("split.csv",)),
            ("Fitting", self._fit, ("model",)),
            ("Calibrating", self._calibrate, (f"model/{CALIBRATION}",)),
            ("Evaluating", self._evaluate, ("evaluation.json",)),
            ("Report", self._report, ("report.html",)),
        )
        try:
            with decode_once():
                for number, (name, step, files) in enumerate(steps, 1):
                    done = files and all((self.out / file).exists() for file in files)
                    result = "already done" if done else self._noted(step)
                    yield f"{f'[{number}/{len(steps)}] {name}':18} {_one_line(result)}"
                    yield from (f"{'':18} {_one_line(note)}" for note in self.notes)
                    self.notes.clear()
        except KeyboardInterrupt as error:
            raise Interrupted("Stopped. Run the same command again to resume.") from error
        shutil.rmtree(progress_of(self.out / "model"), ignore_errors=True)  # left by a kill
        yield from self._summary()

    def _noted(self, step: Callable[[], str]) -> str:
        with notes_to(self.notes.append):
            return step()

    @cached_property
    def grouping(self) -> Grouping:
        return Grouping.parse(*(self.options[name] for name in ("cases", "slices", "slice")))

    @cached_property
    def dataset(self) -> Dataset:
        normal, columns = self.options["normal"], self.options["columns"]
        return read_images(self.data, Grouping(self.grouping.by), normal, columns=columns)

    @cached_property
    def audit(self) -> Audit:
        shown = self.grouping.representative.apply(self.dataset)
        return check_data(self.data, shown, scans=self.scans)

    @cached_property
    def division(self) -> Division:
        return divide_checked(self.dataset, self.audit)

    @cached_property
    def divided(self) -> Dataset:
        return read_dataset(self.out / "split.csv")

    def _read(self) -> str:
        """Note the options and what the data contains; other results are never continued."""
        now = {**self.options, "data": _digest(self.dataset)}
        now |= {name: _without_folders(now[name]) for name in ("backbone", "prompts")}
        if (prompts := self.options["prompts"]) and Path(prompts).is_file():
            now["texts"] = sha256_file(Path(prompts))
        if self.restart:
            self._remove_results()
        file, before = self.out / _STARTED, {}
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
                f"{self.out} contains the results of another start: {', '.join(changed)} differ. "
                "Choose another folder, ask for a restart, or give the same data and options.",
                argument="out",
            )
        if before != now:
            write_json(file, now)
        return f"{len(self.dataset.cases)} images, {self.dataset.task.describe()}"

    def _remove_results(self) -> None:
        """Remove what the steps have written, and no other file; what marks the folder last."""
        model = self.out / "model"
        for folder in (model, progress_of(model)):
            shutil.rmtree(folder, ignore_errors=True)
        for name in _RESULTS:
            (self.out / name).unlink(missing_ok=True)

    def _check(self) -> str:
        page = self.out / "check.html"
        shown = self.grouping.representative.apply(self.dataset)
        write_data_check(self.audit, images=shown.images, out=page)
        write_json(self.out / "check.json", self.audit.as_json())
        # What is known about patients is said with the division.
        self.notes += [f.what for f in self.audit.findings if f.kind != "groups-unknown"]
        counts = [pluralize(self.audit.count(kind), kind) for kind in ("error", "warning", "note")]
        return f"{', '.join(counts)} -> {page}"

    def _divide(self) -> str:
        left = self.out / "left-out.csv"
        division = self.division
        self.notes += division.notes()
        if division.left_out:
            self.notes.append(f"What is left out, and why: {left}")
        if self.confirm is not None and division.left_out:
            notes, self.notes = [_one_line(note) for note in self.notes], []
            used = len(division.dataset.cases)
            if not self.confirm(notes, f"Continue with the other {used} images?"):
                raise Interrupted("Stopped. Fix the data and start again in another folder.")
        write_new(left, csv_text(left_out_rows(division, self.out)))
        write_new(self.out / "split.csv", table_text(division.dataset, self.out))
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
        folder = self.out / "model"
        request = FitRequest(
            self.out / "split.csv",
            **self.options | {"columns": None},  # the split has names of its own
            out=folder,
        )
        try:
            card = fit_request(request).card
        except NoRealBackbone:
            if self.fetch is None or not self.fetch():
                raise
            card = fit_request(request).card
        count, name = card.learned_cases, card.backbone.short_name
        return f"{card.method} on {name} learned from {count} {self.grouping.unit}s -> {folder}"

    def _calibrate(self) -> str:
        try:
            model = load(self.out / "model", calibrated=False)
            calibration = calibrate(model, self.divided, split="val")
        except DataError as error:
            return f"skipped: {error}"
        write_calibration(self.out / "model", model.card, calibration)
        return f"on {calibration.cases} {self.grouping.unit}s"

    @cached_property
    def evaluation(self) -> tuple[Classifier, LabelledPredictions, Evaluation]:
        model = load(self.out / "model")
        judged = predict_labelled(model, self.out / "split.csv")
        result = evaluate_predictions(judged, model)
        if outlook := self._outlook(model, result):
            for part in ("text", "details"):
                result["verdict"][part] = f"{result['verdict'][part].rstrip()} {outlook}"
        return model, judged, result

    def _outlook(self, model: Classifier, result: Evaluation) -> str:
        """What more labels would give, where that is cheap to know and classes are about equal."""
        counts = model.card.support_counts
        few = min(counts)
        if not result["verdict"].get("better_than_guessing") or max(counts) > 2 * few:
            return ""
        given = {"columns": None, "backbone": model.backbone, "shots": few}
        try:
            with notes_to(lambda note: None):  # the fit has said the same
                curve = learning_curve(self.out / "split.csv", **self.options | given)
        except (ConfigError, DataError):  # no single images of classes, minutes, or too few labels
            return ""
        return f"Judged by refits on fewer labels: {_lower(curve.outlook(few))}"

    def _evaluate(self) -> str:
        result, file = self.evaluation[2], self.out / "evaluation.json"
        write_json(file, result)
        return f"on {result['images']} {self.grouping.unit}s -> {file}"

    def _report(self) -> str:
        file = self.out / "report.html"
        # Of the division: what leaks between its parts. No file is read again.
        shown = self.grouping.representative.apply(self.divided)
        audit = check_data(self.data, shown, scans=self.scans)
        model, judged, result = self.evaluation
        dataset = read_dataset(self.out / "split.csv")
        report(
            model,
            dataset,
            file,
            predictions=judged,
            result=result,
            audit=audit,
            left_out=[self.division.reasons()] if self.division.left_out else [],
        )
        return f"-> {file}"

    def _summary(self) -> Iterator[str]:
        """The last lines: the verdict, what was hardly tested, and what is where."""
        result = read_json(self.out / "evaluation.json")
        yield f"\n{result['verdict']['text']}"
        yield from (f"WARNING: {warning}" for warning in result["warnings"])
        yield f"\nEverything is in {self.out}:\n{_FILES}"
        yield f"Next:  ogkd predict {shlex.quote(str(self.out / 'model'))} NEW_IMAGES > out.csv"


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
    elif folder.is_dir() and holds_files(folder) and not (folder / _STARTED).is_file():
        problem = "is not empty and was not made by `ogkd start`"
    if problem:
        raise ConfigError(f"{folder} {problem}. Choose another folder.", argument="out")
    return folder


def _without_folders(name: str | None) -> str | None:
    """A path as its last part and a digest: what is handed on tells no folder of this machine.

    >>> _without_folders("builtin"), _without_folders("/data/clip")
    ('builtin', 'clip (78ccd18a)')
    """
    if name is None or not Path(name).is_absolute():
        return name
    return f"{Path(name).name} ({hashlib.sha256(name.encode()).hexdigest()[:8]})"


def _digest(dataset: Dataset) -> str:
    """A digest of the table and of the contents of all files; missing ones count as such."""
    digest = hashlib.sha256(dataset.sha256.encode())
    for image in sorted(dataset.images, key=lambda image: image.as_posix()):
        try:
            digest.update(image.key.encode())
        except DataError:
            digest.update(b"unreadable")
    return digest.hexdigest()


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _one_line(words: str) -> str:
    """Text without line breaks and control codes, which file names may contain."""
    return "".join(letter if letter.isprintable() else " " for letter in words)
