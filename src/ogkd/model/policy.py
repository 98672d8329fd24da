"""What a user wants to be promised about answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ogkd.errors import ConfigError
from ogkd.model.calibration import SetKind


@dataclass(frozen=True)
class Policy:
    """What the user wants to be promised.

    Args:
        max_risk: abstain so that at most this share of the other predictions is wrong.
        confidence: how sure that promise has to be, over calibration images.
        coverage: how often the set contains the true class; None: 90 % if there are images enough.
        sets: "lac" (smallest on average) or "aps", where a calibration gives the sets.
        prior: how frequent each class is where the images come from, as shares that sum to one
            (see `ogkd.model.prior`). None: equally frequent.
        sensitivity: with several findings, answer "no" for at most the rest of the images that
            show one; None: what the model was calibrated for, else `coverage`.
    """

    max_risk: float | None = None
    confidence: float = 0.9
    coverage: float | None = None
    sets: SetKind = "lac"
    prior: Mapping[str, float] | None = None
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if self.sets not in ("lac", "aps"):
            raise ConfigError(
                f"sets must be 'lac' or 'aps', but is '{self.sets}'.", argument="sets"
            )
        if not (self.prior is None or isinstance(self.prior, Mapping)):
            raise ConfigError(
                f"prior must be shares of classes by name, but is '{self.prior}'.",
                argument="prior",
            )
        if self.prior is not None and self.max_risk is not None:
            raise ConfigError(
                "max_risk cannot be promised with a prior: the share of errors depends on how "
                "frequent the classes are, and the calibration images have frequencies of their "
                "own. Leave one of them out.",
                argument="max_risk",
            )
