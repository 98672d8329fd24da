"""How good a model is, measured on labelled images it has not learned from."""

from ogkd.evaluation.evaluate import Evaluation, evaluate, evaluate_predictions
from ogkd.evaluation.metrics import summary_metrics
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled

__all__ = [
    "Evaluation",
    "LabelledPredictions",
    "evaluate",
    "evaluate_predictions",
    "predict_labelled",
    "summary_metrics",
]
