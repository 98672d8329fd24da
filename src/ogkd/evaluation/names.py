"""The metrics by name: their words, their direction and how many decimals they are printed with.

Tables, figures, reports and the command line all take these records, so that a number has one
name wherever it is printed. How a metric is computed is in `metrics.py` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ogkd.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Metric:
    """One metric. Values are stored as fractions and printed in percent if `percent`."""

    name: str  # the key in JSON files and the word for `--metric`
    words: str  # within a sentence: "macro-F1"
    meaning: str  # one line for a reader who does not know the name
    short: str = ""  # column heading; "" if the words are short enough
    percent: bool = True
    lower_is_better: bool = False
    decimals: int = 1

    @property
    def title(self) -> str:
        """The words as a heading: "Macro-F1"."""
        return self.words[0].upper() + self.words[1:]

    @property
    def heading(self) -> str:
        """The short name with its unit, for a column or an axis: "ECE (%)"."""
        return f"{self.short or self.title}{self.unit}"

    @property
    def unit(self) -> str:
        """What follows a title: " (%)" or nothing."""
        return " (%)" if self.percent else ""

    @property
    def scale(self) -> float:
        """The factor from the stored to the printed number."""
        return 100.0 if self.percent else 1.0

    def text(self, value: float, *, more: int = 0) -> str:
        """The printed number without its unit; `more` adds decimals.

        >>> METRICS["accuracy"].text(0.8125), METRICS["brier"].text(0.25, more=1)
        ('81.2', '0.2500')
        """
        return f"{value * self.scale:.{self.decimals + more}f}"


def _by_name(*metrics: Metric) -> Mapping[str, Metric]:
    return {metric.name: metric for metric in metrics}


METRICS = _by_name(
    Metric("accuracy", "accuracy", "share of images that are classified correctly"),
    Metric("balanced_accuracy", "balanced accuracy", "mean recall: every class counts the same"),
    Metric("macro_f1", "macro-F1", "mean F1 of the classes: recall and precision together"),
    Metric(
        "auroc",
        "AUROC",
        "how often an image of a class is ranked above one of another class",
    ),
    Metric(
        "kappa",
        "quadratic kappa",
        "agreement beyond chance; an error of two grades counts more than one of one",
        percent=False,
        decimals=3,
    ),
    Metric(
        "ece",
        "expected calibration error",
        "average gap between the stated probability and the share of correct answers",
        short="ECE",
        lower_is_better=True,
    ),
    Metric(
        "brier",
        "Brier score",
        "squared distance between the probabilities and the truth, from 0 to 2",
        short="Brier",
        percent=False,
        lower_is_better=True,
        decimals=3,
    ),
    Metric(
        "nll",
        "negative log-likelihood",
        "penalises confident errors most",
        short="NLL",
        percent=False,
        lower_is_better=True,
        decimals=3,
    ),
    Metric(
        "aurc",
        "AURC",
        "mean error rate along the risk-coverage curve",
        lower_is_better=True,
    ),
    Metric(
        "false_alarms",
        "false alarms on normal images",
        "share of normal images that are classified as a disease",
        short="False alarms",
        lower_is_better=True,
    ),
    Metric(
        "sensitivity",
        "sensitivity for any disease",
        "share of diseased images that are classified as any disease",
        short="Sensitivity",
    ),
)
"""The metrics of a whole result, which every benchmark run stores."""

AREAS = _by_name(
    Metric(
        "e_aurc",
        "excess AURC",
        "how much of the AURC a perfect ranking by confidence would save",
        short="E-AURC",
        lower_is_better=True,
    ),
    Metric(
        "augrc",
        "AUGRC",
        "mean share of all images that are kept and wrong",
        lower_is_better=True,
    ),
)
"""Further areas under the risk-coverage curve, which `evaluate` adds to AURC."""


def metric_named(name: str) -> Metric:
    """A metric of METRICS by its name."""
    if name not in METRICS:
        hint = did_you_mean(name, METRICS, cutoff=0.6)
        raise ConfigError(
            f"Unknown metric '{name}'.{hint} Known: {', '.join(METRICS)}.", argument="metric"
        )
    return METRICS[name]
