"""What `evaluate` returns: a dictionary that is shown as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ogkd.cells import text_table
from ogkd.evaluation.names import METRICS, Metric, in_units

_SUMMARY = ("accuracy", "balanced_accuracy", "macro_f1", "auroc", "kappa", "ece")
_CLASSES = 30  # listed
_HEAD = ("metric", "value", "interval")
_CLASS_HEAD = ("class", "images", "recall (%)", "interval")


class Evaluation(dict[str, Any]):
    """The result of an evaluation; it is a plain dictionary to JSON and to everything else."""

    def __repr__(self) -> str:
        parts = [[self._title()], *(text_table(*table) for table in self._tables()), self._words()]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _title(self) -> str:
        groups = f" of {self['groups']} patients or groups" if self["groups"] else ""
        return in_units(f"Evaluation on {self['images']} images{groups}", self)

    def _words(self) -> list[str]:
        """The verdict if there is one, and what makes the numbers look too good."""
        verdict = self.get("verdict")
        lines = [str(verdict["text"])] if verdict else []
        used = {"learned from": self["learned_from"], "was calibrated on": self["calibrated_on"]}
        return lines + [
            f"The model {what} {count} of these images, so the numbers look better than they are."
            for what, count in used.items()
            if count
        ]

    def _tables(self) -> list[tuple[Sequence[str], Iterable[Sequence[object]]]]:
        """Headings and rows of each table."""
        if self.get("asks") == "findings":
            return [finding_rows(self), answer_rows(self)]
        return [(_HEAD, self._metrics()), (_CLASS_HEAD, self._classes())]

    def _metrics(self) -> Iterator[tuple[str, str, str]]:
        for name in _SUMMARY:
            if name in self:
                metric = METRICS[name]
                yield metric.heading, *_value(metric, self[name], self["intervals"].get(name))

    def _classes(self) -> Iterator[tuple[str, str, str, str]]:
        recall = METRICS["accuracy"]  # of the images of one class
        for name, row in list(self["per_class"].items())[:_CLASSES]:
            cells = _value(recall, row["recall"], row["intervals"]["recall"])
            yield name, str(row["images"]), *cells


def _value(
    metric: Metric, value: float | None, ends: tuple[float, float] | None
) -> tuple[str, str]:
    shown = "-" if value is None else metric.text(value)
    return shown, "" if ends is None else f"{metric.text(ends[0])} to {metric.text(ends[1])}"


def finding_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Headings and a row for each finding, then for their averages: for tables of any kind."""
    head = ["finding", "with", "without", "unknown", "AUROC", "average precision", "prevalence"]
    body: list[list[object]] = []
    for name, row in result["per_finding"].items():
        counts = [row["present"], row["absent"], row["unknown"]]
        body.append([name, *counts, *_shown(row), _percent(row["prevalence"])])
    for name, words in {"macro": "mean of findings", "micro": "all answers together"}.items():
        body.append([words, "", "", "", *_shown(result[name]), ""])
    return head, body


def answer_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Headings and, for each finding, how images with and without it were answered."""
    head = ["finding", "with it: yes", "unsure", "no", "without: yes", "unsure", "no"]
    kinds = [
        f"{truth}_{answer}" for truth in ("present", "absent") for answer in ("yes", "unsure", "no")
    ]
    return head, [
        [name, *(row[kind] for kind in kinds)] for name, row in result["per_finding"].items()
    ]


def limit_rows(result: Mapping[str, Any]) -> tuple[list[str], list[list[object]]]:
    """Headings and, for each finding, the probabilities between which the answer is unsure."""
    head = ["finding", "no below (%)", "yes above (%)"]
    return head, [
        [name, *(f"{100 * row[key]:.1f}" for key in ("no_below", "yes_above"))]
        for name, row in result["per_finding"].items()
    ]


def _shown(row: Mapping[str, Any]) -> list[str]:
    cells = []
    for key in ("auroc", "average_precision"):
        ends: Sequence[float] | None = row["intervals"][key]
        sure = "" if ends is None else f" [{100 * ends[0]:.0f}-{100 * ends[1]:.0f}]"
        cells.append(f"{_percent(row[key], 1)}{sure}")
    return cells


def _percent(value: float | None, digits: int = 0) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"
