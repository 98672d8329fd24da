"""How good a model is, measured on labelled images it has not learned from."""

from ogkd.evaluation.evaluate import evaluate
from ogkd.evaluation.metrics import classification_metrics

__all__ = ["classification_metrics", "evaluate"]
