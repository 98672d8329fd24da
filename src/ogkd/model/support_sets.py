"""Prediction sets from the images learned from, with no calibration: full conformal, by class.

A class is in the set if the image is not among the strangest of that class's support images
(ogkd.methods.ranking). If the new image and the support images of its class are exchangeable, the
set contains its class with probability at least `coverage`. docs/concepts/trust.md says when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ogkd.data.task import Masks, Probabilities
from ogkd.errors import ConfigError
from ogkd.methods import Head, Ranked
from ogkd.model.scaling import check_share, held_out_for_coverage

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier
    from ogkd.model.familiarity import SupportFeatures

_SHOWN = 8  # classes in a note


class SupportSets:
    """Ranks new images among the support; computed once, asked often."""

    def __init__(self, ranked: Ranked, class_names: tuple[str, ...], width: int) -> None:
        self._ranked, self._names, self._width = ranked, class_names, width
        self.counts = tuple(int(n) for n in ranked.n)  # different images of each class

    @classmethod
    def of(cls, classifier: Classifier) -> SupportSets | None:
        """None if the head's method cannot, or the model folder has no support of every class."""
        support = classifier.support
        if support is None or classifier.poolings:  # it ranks single images
            return None
        return cls.among(classifier.head, support, classifier.class_names)

    @classmethod
    def among(
        cls, head: Head, support: SupportFeatures, class_names: tuple[str, ...]
    ) -> SupportSets | None:
        """For a head and the images that it learned from."""
        ranking = head.ranking
        if ranking is None:
            return None
        classes, width = head.shape
        labels = torch.as_tensor(support.labels)
        if support.features.shape[1] != width or len(labels.unique()) != classes:
            return None
        # Copies of an image know each other, which no new image does: they count once.
        both = torch.cat([labels.unsqueeze(1).float(), _stored(support.features)], dim=1).unique(
            dim=0
        )
        ranked = Ranked(ranking, both[:, 1:], both[:, 0].long(), classes)
        return cls(ranked, class_names, width)

    def members(self, p: Probabilities, features: NDArray[np.float32], coverage: float) -> Masks:
        """Prediction sets [N, C] of features [N, d]; classes with too few images are always in."""
        self.check(coverage)
        ranks = self._ranked.p_values(_stored(features)[:, : self._width])
        return np.asarray((ranks > 1 - coverage + 1e-9).numpy())

    def holds(self, coverage: float) -> bool:
        """Whether every class has images enough to ever be left out of a set."""
        return min(self.counts) >= held_out_for_coverage(coverage)

    def check(self, coverage: float) -> None:
        """Raise unless a class has images enough to ever be left out of a set."""
        check_share("coverage", coverage)
        needed = held_out_for_coverage(coverage)
        if max(self.counts) < needed:
            raise ConfigError(
                f"Sets that contain the true class with {100 * coverage:g} % probability need at "
                f"least {needed} images of a class to learn from, and this model has "
                f"{max(self.counts)}. Learn from more images, ask for less coverage, or, unless "
                "a prior is given, calibrate the model.",
                argument="coverage",
            )

    def notes(self, coverage: float) -> list[str]:
        """What is promised, and for which classes it cannot be."""
        fewest, needed = min(self.counts), held_out_for_coverage(coverage)
        few = [name for name, n in zip(self._names, self.counts, strict=True) if n < needed]
        promise = (
            "Sets come from the images learned from. For every class, they contain it with at "
            f"least {100 * coverage:g} % probability if it is the true one, for images drawn as "
            "those were, each of another patient."
        )
        if few:
            more = f" and {len(few) - _SHOWN} more" if len(few) > _SHOWN else ""
            always = f"{', '.join(few[:_SHOWN])}{more}."
            few_text = f"Classes with fewer than {needed} images are always in the set: {always}"
            return [f"{promise} {few_text}"]
        most = 1000 * fewest // (fewest + 1) / 10
        return [f"{promise} {fewest} images per class allow up to {most:g} %."]


def _stored(rows: NDArray[np.float32]) -> Tensor:
    """Rows as precise as those of a model folder, so that all images are treated alike."""
    return torch.as_tensor(np.atleast_2d(rows)).half().float()
