"""The metrics by name: one name, direction and number of decimals wherever a number is printed."""

from __future__ import annotations

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

    @property
    def title(self) -> str:
        return self.words[0].upper() + self.words[1:]

    @property
    def unit(self) -> str:
        return " (%)" if self.percent else ""

    @property
    def heading(self) -> str:
        """The short name with its unit, for a column or an axis: "ECE (%)"."""
        return f"{self.short or self.title}{self.unit}"

    @property
    def scale(self) -> float:
        """The factor from the stored to the printed number."""
        return 100.0 if self.percent else 1.0

    def text(self, value: float) -> str:
        """The printed number without its unit.

        >>> METRICS["accuracy"].text(0.8125), METRICS["brier"].text(0.25)
        ('81.2', '0.250')
        """
        return f"{value * self.scale:.{1 if self.percent else 3}f}"


_KAPPA = "agreement beyond chance; an error of two grades counts more than one of one"
_ECE = "average gap between the stated probability and the share of correct answers"
_BRIER = "squared distance between the probabilities and the truth, from 0 to 2"
_NLL = "penalises confident errors most"
_FALSE = "share of normal images that are classified as a disease"
_SENSITIVE = "share of diseased images that are classified as any disease"

_ALL = [
    Metric("accuracy", "accuracy", "share of images that are classified correctly"),
    Metric("balanced_accuracy", "balanced accuracy", "mean recall: every class counts the same"),
    Metric("macro_f1", "macro-F1", "mean F1 of the classes: recall and precision together"),
    Metric("auroc", "AUROC", "how often an image of a class is ranked above one of another class"),
    Metric("kappa", "quadratic kappa", _KAPPA, percent=False),
    Metric("ece", "expected calibration error", _ECE, "ECE", lower_is_better=True),
    Metric("brier", "Brier score", _BRIER, "Brier", percent=False, lower_is_better=True),
    Metric("nll", "negative log-likelihood", _NLL, "NLL", percent=False, lower_is_better=True),
    Metric("aurc", "AURC", "mean error rate along the risk-coverage curve", lower_is_better=True),
    Metric(
        "false_alarms",
        "false alarms on normal images",
        _FALSE,
        "False alarms",
        lower_is_better=True,
    ),
    Metric("sensitivity", "sensitivity for any disease", _SENSITIVE, "Sensitivity"),
]
METRICS = {metric.name: metric for metric in _ALL}
"""The metrics of a whole result, which every benchmark run stores."""


def metric_named(name: str) -> Metric:
    if name not in METRICS:
        hint = did_you_mean(name, METRICS, cutoff=0.6)
        raise ConfigError(
            f"Unknown metric '{name}'.{hint} Known: {', '.join(METRICS)}.", argument="metric"
        )
    return METRICS[name]
