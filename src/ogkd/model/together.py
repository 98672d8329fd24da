"""Images that are answered together: the model learns from the batch before it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.errors import ConfigError, counted
from ogkd.methods import TextSide
from ogkd.model.card import method_of
from ogkd.model.familiarity import of_this_kind

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

NOTE = (
    "Note: the model may learn from this batch, so that each answer depends on the other images. "
    "Nothing is promised: there are no prediction sets and no abstention. A calibration is used "
    "only if the model does not learn from the batch."
)
_FEWEST = 2  # images per class


def refuse_together(classifier: Classifier) -> None:
    """Refuse a model that cannot answer images together, before any image is encoded."""
    support = classifier.support
    reason = method_of(classifier.card).together_error(classifier.head)
    if reason is None and (
        support is None or len(set(support.labels.tolist())) < len(classifier.class_names)
    ):
        reason = "The model folder does not have the features of labelled images of every class."
    if reason is not None:
        raise ConfigError(f"Images cannot be answered together. {reason}", argument="together")


def for_batch(classifier: Classifier, features: NDArray[np.float32]) -> tuple[Classifier, str]:
    """The same model after learning from features [N, d], and the outcome in words.

    Like a pool at fit time, it learns from the images that are as near to a labelled one as these
    are to each other. If they do not help, it is the model as it was, with its calibration.
    """
    support, classes = classifier.support, len(classifier.class_names)
    assert support is not None  # of refuse_together
    batch = features[of_this_kind(support, features, classifier.backbone.embed_dim)]
    strange = len(features) - len(batch)
    if len(batch) < _FEWEST * classes:
        others = f" ({strange} more unlike those that the model learned from)" if strange else ""
        raise ConfigError(
            f"To be answered together, there must be at least {_FEWEST} images per class, "
            f"{_FEWEST * classes} in all, but there are {len(batch)}{others}. Give more images, "
            "or have them answered one by one.",
            argument="together",
        )
    known = torch.from_numpy(support.features), torch.from_numpy(support.labels)
    text = TextSide(classifier.backbone, classifier.class_names, ())
    head = method_of(classifier.card).together(
        classifier.head, known, torch.from_numpy(np.ascontiguousarray(batch)), text
    )
    if head.notes:
        how = ", with calibrated probabilities" if classifier.calibration is not None else ""
        return classifier, (
            "Note: the model did not learn from this batch; images are answered one by one"
            f"{how}. {' '.join(head.notes)}"
        )
    learned = type(classifier)(classifier.backbone, head, classifier.card, support=support)
    left = f" {strange} of them were not learned from: unlike the labelled images." * bool(strange)
    return learned, f"Answered {counted(len(features), 'image')} together.{left}"
