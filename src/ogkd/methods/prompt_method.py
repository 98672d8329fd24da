"""The base of prompt learners: settings, the pass that trains all seeds, and the head it gives."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Self

import torch
from pydantic import field_validator
from torch import Tensor
from torch.nn.functional import normalize
from typing_extensions import TypeVar

from ogkd.core.batches import Batch, PerBatch, Run
from ogkd.core.checkpoint import Checkpoint
from ogkd.core.losses import logits
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import Objective, OwnGradient, train_contexts
from ogkd.errors import ConfigError
from ogkd.methods.base import Folder, Method, MethodConfig, Support, TextSide
from ogkd.methods.heads import Head, TextHead


class PromptConfig(MethodConfig):
    """Settings that every prompt learner has."""

    context: ContextConfig = ContextConfig()
    train: TrainConfig = TrainConfig()

    @field_validator("train", mode="before")
    @classmethod
    def _change_defaults(cls, given: object) -> object:
        defaults = cls.model_fields["train"].default.model_dump()
        return defaults | given if isinstance(given, dict) else given


# All images of most few-shot sets are one batch (fidelity.md, baselines).
LARGE_BATCHES = TrainConfig(batch_size=128, lr=2e-3)

PromptConfigT = TypeVar("PromptConfigT", bound=PromptConfig, default=PromptConfig, covariant=True)


class EachRun:
    """An objective for S runs that has another one for each of them."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self.objectives = objectives
        self._batches: PerBatch[list[Batch]] = PerBatch()

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        """Each term [S], of run s by objective s."""
        runs = zip(
            self.objectives, T_hat.split(1), self._batches.of(batch, Batch.runs), strict=True
        )
        terms = [objective(T_run, images) for objective, T_run, images in runs]
        return {name: torch.cat([values[name] for values in terms]) for name in terms[0]}


class PromptMethod(Method[PromptConfigT]):
    """A context in front of class names, learned through the frozen text tower.

    A subclass gives the objective. The text tower's dropout is off in training unless the
    subclass turns it on (fidelity.md, 22).
    """

    cost = "minutes"
    needs_training = True

    @property
    def text_dropout(self) -> bool:
        """Whether the text tower's dropout is on in training."""
        return False

    @abstractmethod
    def objective(self, text: TextSide) -> Objective:
        """Return the function that training minimises: (T_hat, batch) -> {"total": [S], ...}."""

    def objective_for(
        self, supports: Sequence[Support], text: TextSide, seeds: Sequence[int]
    ) -> Objective:
        """The objective of these runs; here one that depends on all of their images sees them."""
        return self.objective(text)

    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        return self.fit_many([self], [support], text, seeds=[seed], folder=folder)[0]

    @classmethod
    def fit_many(
        cls,
        methods: Sequence[Self],
        supports: Sequence[Support | None],
        text: TextSide,
        *,
        seeds: Sequence[int],
        folder: Folder = None,
    ) -> list[Head]:
        """Train all runs in one batched text pass; progress is saved in the folder."""
        first, images = methods[0], [support for support in supports if support is not None]
        fixed = [method.config.model_dump(exclude=set(first.free)) for method in methods]
        if any(settings != fixed[0] for settings in fixed):
            free = ", ".join([*sorted(first.free), "seed and images"])
            raise ConfigError(f"Runs that are trained together may differ in {free} alone.")
        if all(method.config == first.config for method in methods):
            objective = first.objective_for(images, text, seeds)
        else:
            runs = zip(methods, images, seeds, strict=True)
            objectives = [method.objective_for([s], text, [seed]) for method, s, seed in runs]
            if any(isinstance(each, OwnGradient) for each in objectives):
                return super().fit_many(methods, supports, text, seeds=seeds, folder=folder)
            objective = EachRun(objectives)
        learner = first.learner(text)
        checkpoint = log = None
        if folder is not None:
            log = folder.log
        if folder is not None and folder.path is not None:
            checkpoint = Checkpoint(folder.path / "checkpoint.safetensors", folder.fingerprint)
        text.backbone.release()  # images and texts are encoded
        pairs = zip(images, seeds, strict=True)
        contexts = train_contexts(
            learner,
            [Run(support.views, support.labels, seed) for support, seed in pairs],
            objective,
            first.config.train,
            text_dropout=first.text_dropout,
            checkpoint=checkpoint,
            log=log,
        )
        return [first.head(learner, context) for context in contexts]

    def learner(self, text: TextSide) -> PromptLearner:
        """Return the prompts of these classes, with places for a context."""
        return PromptLearner(text.backbone, text.class_names, self.config.context)

    def head(self, learner: PromptLearner, context: Tensor) -> Head:
        """Encode the class texts of a context, which is saved too, for use with other classes."""
        # As in training, with a gradient: by the layers that are laid out already.
        given = context.to(learner.embeddings.device).unsqueeze(0).requires_grad_()
        T = normalize(learner.text_features(given)[0].detach().cpu(), dim=-1)
        return TextHead(T, learner.backbone.logit_scale, {"context": context})

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Put the learned context in front of other class names."""
        return self.head(self.learner(text), self.learned(head))

    def learned(self, head: Head) -> Tensor:
        """Return the context that a head of this method was made from."""
        return head.tensors()["context"]


def image_logits(T_hat: Tensor, batch: Batch, scale: float) -> Tensor:
    """Logits [S, B, C] with texts shared by all images [S, C, d], or one set each [S, B, C, d]."""
    if T_hat.dim() == 4:
        return logits(batch.globals.unsqueeze(-2), T_hat, scale).squeeze(-2)
    return logits(batch.globals, T_hat, scale)
