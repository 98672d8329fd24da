"""What prompt learners share: settings, the pass that trains all seeds, and the head it leaves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.checkpoint import Checkpoint
from ogkd.core.losses import logits
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import Batch, Objective, Run, TrainConfig, train_contexts
from ogkd.errors import ConfigError
from ogkd.methods.base import Method, MethodConfig, Support, TextSide, Workplace
from ogkd.methods.heads import Head, TextHead

__all__ = [
    "LargeBatchTraining",
    "PromptConfig",
    "PromptMethod",
    "context_head",
    "image_logits",
    "train_runs",
]


class PromptConfig(MethodConfig):
    """Settings that every prompt learner has."""

    context: ContextConfig = ContextConfig()
    train: TrainConfig = TrainConfig()


class LargeBatchTraining(TrainConfig):
    """Batches of 128, which is all images of most few-shot sets (AUDIT section 5)."""

    batch_size: int = Field(default=128, ge=1)
    lr: float = Field(default=2e-3, gt=0)


class PromptMethod(Method):
    """A context in front of class names, learned through the frozen text tower.

    A subclass gives the objective. The text tower's dropout is off in training, unless the
    subclass asks for it (AUDIT #22).
    """

    cost = "minutes"
    needs_training = True
    learns_texts = True
    Config: ClassVar[type[MethodConfig]] = PromptConfig

    @property
    def text_dropout(self) -> bool:
        """Whether the text tower drops values in training."""
        return False

    @abstractmethod
    def objective(self, text: TextSide) -> Objective:
        """What the context is to minimise."""

    def fit(
        self,
        supports: Sequence[Support],
        text: TextSide,
        *,
        seeds: Sequence[int],
        workplace: Workplace,
    ) -> list[Head]:
        """Train all seeds in one batched text pass."""
        learner = self.learner(text)
        contexts = train_runs(
            learner,
            self.objective(text),
            cast(PromptConfig, self.config).train,
            supports,
            seeds=seeds,
            workplace=workplace,
            text_dropout=self.text_dropout,
        )
        return [self.head(learner, context) for context in contexts]

    def learner(self, text: TextSide) -> PromptLearner:
        """The prompts of these classes, with room for a context."""
        context = cast(PromptConfig, self.config).context
        return PromptLearner(text.backbone, text.class_names, context)

    def head(self, learner: PromptLearner, context: Tensor) -> Head:
        """What is kept of a trained run."""
        return context_head(learner, context)

    def head_for(self, head: Head, text: TextSide) -> Head:
        """The learned context in front of other class names."""
        if cast(PromptConfig, self.config).context.class_specific:
            raise ConfigError("A class-specific context cannot be used for other classes.")
        return self.head(self.learner(text), self.learned(head))

    def learned(self, head: Head) -> Tensor:
        """The context that a head of this method was made of."""
        return cast(TextHead, head).extra["context"]


def train_runs(
    learner: PromptLearner,
    objective: Objective,
    config: TrainConfig,
    supports: Sequence[Support],
    *,
    seeds: Sequence[int],
    workplace: Workplace,
    text_dropout: bool,
) -> Tensor:
    """Train one run per support and seed, with progress kept in the workplace."""
    checkpoint = None
    if workplace.folder is not None:
        path = workplace.folder / "checkpoint.safetensors"
        checkpoint = Checkpoint(path, workplace.fingerprint)
    return train_contexts(
        learner,
        [Run(s.views, s.labels, seed) for s, seed in zip(supports, seeds, strict=True)],
        objective,
        config,
        text_dropout=text_dropout,
        checkpoint=checkpoint,
        log=workplace.log,
    )


def context_head(learner: PromptLearner, context: Tensor) -> TextHead:
    """Class features of a context, which rides along for other classes."""
    with torch.no_grad():
        device = learner.embeddings.device
        T_hat = learner.text_features(context.to(device).unsqueeze(0))[0].cpu()
    return TextHead(normalize(T_hat, dim=-1), learner.backbone.logit_scale, {"context": context})


def image_logits(T_hat: Tensor, batch: Batch, scale: float) -> Tensor:
    """Logits [S, B, C] by texts of all images [S, C, d], or each image its own [S, B, C, d]."""
    if T_hat.dim() == 4:
        return logits(batch.globals.unsqueeze(-2), T_hat, scale).squeeze(-2)
    return logits(batch.globals, T_hat, scale)
