"""How good a model is, measured on labelled images it has not learned from."""

from ogkd.evaluation.evaluate import evaluate, evaluate_predictions
from ogkd.evaluation.metrics import summary_metrics
from ogkd.evaluation.predictions import LabelledPredictions, predict_labelled
from ogkd.evaluation.show import Evaluation

__all__ = [
    "Evaluation",
    "LabelledPredictions",
    "evaluate",
    "evaluate_predictions",
    "predict_labelled",
    "summary_metrics",
]
