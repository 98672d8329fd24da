"""What a run is: everything that decides its result, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from ogkd.datasets.splits import Sampling

__all__ = ["Protocol", "RunSpec"]

Protocol = Literal["few-shot", "base-to-novel"]


class RunSpec(BaseModel):
    """One run. Where files lie is not part of it, so a folder of results may be moved."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    protocol: Protocol = "few-shot"
    dataset: str
    data: str | None = None  # which collection the dataset is of; None: the paper's benchmarks
    method: str
    shots: int | None = Field(default=None, ge=1)
    seed: int = Field(default=1, ge=0)
    preset: str | None = None
    settings: dict[str, Any] = {}  # over the preset's: {"gamma": 0.3, "train.epochs": 20}
    flips: int = Field(default=0, ge=0)  # wrong labels per class
    budget: int | None = Field(default=None, ge=1)  # prompts per class that are used
    bank: str | None = None  # name of a prompt bank; None: templates, or the phantom's own
    sampling: Sampling = "released"
    backbone: str = "builtin"

    @property
    def hash(self) -> str:
        """The name of the run's folder: 20 hex digits of what the run is."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def without(self, *fields: str) -> str:
        """The rest of the specification as text: equal for runs that differ in `fields` alone."""
        content = self.model_dump(mode="json", exclude=set(fields))
        return json.dumps(content, sort_keys=True, ensure_ascii=True)

    def __str__(self) -> str:
        parts = [self.dataset, self.method, f"{self.shots or 'all'} shots", f"seed {self.seed}"]
        parts += [f"{key}={value}" for key, value in self.settings.items()]
        parts += [f"{self.flips} flips"] * bool(self.flips)
        parts += [f"{self.budget} prompts"] * bool(self.budget)
        return f"{self.protocol}: {', '.join(parts)}"
