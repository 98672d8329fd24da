"""How good a model is, measured on labelled images it has not learned from."""

from ogkd.evaluation.evaluate import describe, evaluate
from ogkd.evaluation.judge import Judged, judge
from ogkd.evaluation.metrics import classification_metrics, summary_metrics

__all__ = [
    "Judged",
    "classification_metrics",
    "describe",
    "evaluate",
    "judge",
    "summary_metrics",
]
