"""What `ogkd predict` says of one image, and how it is written: CSV or JSON lines."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.model.calibration import Calibration, SetKind
    from ogkd.model.classifier import Classifier, Prediction

__all__ = ["FORMATS", "CsvWriter", "JsonlWriter", "Judge", "Row", "harmless", "harmless_path"]

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a cell that starts so


@dataclass(frozen=True)
class Row:
    """One image; None stands for what is not known."""

    path: Path
    prediction: str | None = None
    probability: float | None = None
    abstain: bool | None = None
    set: tuple[str, ...] | None = None
    unfamiliar: bool | None = None
    error: str | None = None
    probabilities: tuple[float, ...] | None = None


class Judge:
    """Turns predictions into rows by the rules that the user asked for; checks those at once."""

    def __init__(
        self,
        classifier: Classifier,
        *,
        max_risk: float | None,
        confidence: float,
        coverage: float | None,
        sets: str,
    ) -> None:
        from ogkd.evaluation.calibrate import engine_note
        from ogkd.model.familiarity import Familiarity, can_judge

        if sets not in ("lac", "aps"):
            raise ConfigError(f"--sets is lac or aps, but got '{sets}'.")
        self._names = classifier.class_names
        self._kind: SetKind = "lac" if sets == "lac" else "aps"
        self._coverage = 0.9 if coverage is None else coverage
        self.notes: list[str] = []
        self.threshold: float | None = None
        if max_risk is not None:
            calibration = _required(classifier, "--max-risk")
            self.threshold = calibration.threshold(max_risk, confidence=confidence)
            self.notes.append(
                f"Abstaining where the probability is below {self.threshold:.4f}: with "
                f"{100 * confidence:g} % confidence, at most {100 * max_risk:g} % of the other "
                "predictions are wrong on images like those of the calibration."
            )
        if coverage is not None:
            _required(classifier, "--coverage")
        self._calibration = classifier.calibration
        if note := engine_note(classifier):
            self.notes.append(f"Note: {note}")
        try:
            self._set([1 / len(self._names)] * len(self._names))
        except ConfigError as error:
            if coverage is not None:
                raise
            self._calibration = None  # nobody asked for sets: go on without them
            self.notes.append(f"Note: the column `set` stays empty. {error}")
        support = classifier.support
        self._familiarity = None
        if support is not None and can_judge(support):
            self._familiarity = Familiarity(support)

    def row(self, answer: Prediction) -> Row:
        """What is to be said of one prediction."""
        p = answer.probabilities
        if p is None:
            return Row(answer.path, error=answer.error)
        best = int(p.argmax())
        shares = tuple(map(float, p))
        unfamiliar = None
        if self._familiarity is not None and answer.features is not None:
            unfamiliar = bool(self._familiarity.unfamiliar(answer.features[None])[0])
        return Row(
            path=answer.path,
            prediction=self._names[best],
            probability=shares[best],
            abstain=None if self.threshold is None else shares[best] < self.threshold,
            set=self._set(shares),
            unfamiliar=unfamiliar,
            probabilities=shares,
        )

    def _set(self, p: Sequence[float]) -> tuple[str, ...] | None:
        if self._calibration is None:
            return None
        inside = self._calibration.sets([p], coverage=self._coverage, kind=self._kind)[0]
        return tuple(name for name, member in zip(self._names, inside, strict=True) if member)


def _required(classifier: Classifier, option: str) -> Calibration:
    if classifier.calibration is None:
        raise ConfigError(
            f"{option} needs a calibrated model, and this one is not: run "
            "`ogkd calibrate MODEL DATA` with labelled images that it did not learn from."
        )
    return classifier.calibration


class CsvWriter:
    """A header, then a line for each row. No cell can act as a spreadsheet formula."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._table = csv.writer(file, lineterminator="\n")
        self._classes = len(class_names)
        fixed = ["path", "prediction", "probability", "abstain", "set", "unfamiliar", "error"]
        self._table.writerow([*fixed, *map(harmless, class_names)])

    def write(self, row: Row) -> None:
        shares = [""] * self._classes
        if row.probabilities is not None:
            shares = [f"{value:.6f}" for value in row.probabilities]
        self._table.writerow(
            [
                harmless_path(row.path),
                harmless(row.prediction or ""),
                "" if row.probability is None else f"{row.probability:.6f}",
                _yes_or_no(row.abstain),
                harmless(_joined(row.set)),
                _yes_or_no(row.unfamiliar),
                harmless(row.error or ""),
                *shares,
            ]
        )


class JsonlWriter:
    """One JSON object a line; names are as they are, and null stands for what is not known."""

    def __init__(self, file: TextIO, class_names: Sequence[str]) -> None:
        self._file = file
        self._names = class_names

    def write(self, row: Row) -> None:
        shares = None
        if row.probabilities is not None:
            pairs = zip(self._names, row.probabilities, strict=True)
            shares = {name: round(value, 6) for name, value in pairs}
        entry = {
            "path": str(row.path),
            "prediction": row.prediction,
            "probability": None if row.probability is None else round(row.probability, 6),
            "abstain": row.abstain,
            "set": None if row.set is None else list(row.set),
            "unfamiliar": row.unfamiliar,
            "error": row.error,
            "probabilities": shares,
        }
        # ASCII with escapes: valid JSON even where a file name is not valid text.
        self._file.write(json.dumps(entry) + "\n")


FORMATS: dict[str, type[CsvWriter] | type[JsonlWriter]] = {"csv": CsvWriter, "jsonl": JsonlWriter}


def _yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _joined(names: Sequence[str] | None) -> str:
    """The names of a set; one that holds no class is told from one that is not known."""
    return "" if names is None else "|".join(names) or "(none)"


def harmless(text: str) -> str:
    return f"'{text}" if text.startswith(_FORMULA) else text


def harmless_path(path: Path) -> str:
    """The same file, but never a formula."""
    text = str(path)
    return f"./{text}" if text.startswith(_FORMULA) else text
