"""Learnable context vectors in front of (or around) class names, through a frozen text tower."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from ogkd.backbones.base import Backbone, TextDropout, Tokens
from ogkd.errors import ConfigError


class ContextConfig(BaseModel):
    """What is learned: the context C of the paper (fidelity.md, 20 and 21).

    The context starts at the embeddings of `init` if that has exactly `n_ctx` tokens ("a photo
    of a" has four); otherwise it is drawn from N(0, 0.02). With a `template`, such as "a CT photo
    of a {} in the kidney.", its first `n_ctx` tokens are learned and its other words are fixed.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n_ctx: int = Field(default=4, ge=1)  # how many tokens are learned
    init: str = "a photo of a"  # words that it starts at, if they are n_ctx tokens
    template: str = ""  # fixed words around {}, the class name; "": init and the name

    @field_validator("template")
    @classmethod
    def _has_one_name(cls, template: str) -> str:
        if template and template.count("{}") != 1:
            raise ValueError("a template contains {} once, in place of the class name")
        return template


class PromptLearner:
    """C prompts with places for a context: `text_features(context)` gives T_hat.

    A prompt is "[context] class name.", or the context and the rest of a template around the name;
    one context serves all classes. The learner itself has no parameters: contexts go in, text
    features come out, for one run or for S runs side by side.
    """

    sees_pixels = False  # whether batches are pixels, not features

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], config: ContextConfig
    ) -> None:
        self.backbone = backbone
        self.class_names = tuple(class_names)
        self.config = config
        names = [backbone.pieces(name.replace("_", " ")) for name in class_names]
        before, _, after = (config.template or "{}.").partition("{}")
        self._words = backbone.pieces(before or config.init)  # that the context starts as
        if config.template and len(self._words) < config.n_ctx:
            raise ConfigError(
                f"The template '{config.template}' has {len(self._words)} tokens before the class "
                f"name, fewer than n_ctx={config.n_ctx}."
            )
        end = backbone.pieces(after)
        # The ids at the context's places do not matter: their embeddings are replaced.
        fixed = self._words[config.n_ctx :] if config.template else []
        places = [[*end, *name, *self._words][:1] * config.n_ctx for name in names]
        prompts = [[*p, *fixed, *name, *end] for p, name in zip(places, names, strict=True)]
        self._refuse_long_prompts(prompts)
        self.tokens: Tokens = backbone.pack(prompts)
        first = backbone.leading_tokens
        self.slots = torch.arange(first, first + config.n_ctx, device=backbone.device)
        with torch.no_grad():
            self.embeddings = backbone.embed(self.tokens).detach()  # [C, L, w]

    def initial_context(self, generator: torch.Generator) -> Tensor:
        """Return the initial context [n_ctx, w]."""
        backbone, config = self.backbone, self.config
        words = self._words[: config.n_ctx] if config.template else self._words
        if len(words) == config.n_ctx:
            tokens = backbone.pack([words])
            first = backbone.leading_tokens
            with torch.no_grad():
                context = backbone.embed(tokens)[0, first : first + config.n_ctx].detach().cpu()
        else:
            shape = (config.n_ctx, backbone.text_width)
            context = torch.empty(shape).normal_(0.0, 0.02, generator=generator)
        return context.clone()

    def text_features(
        self,
        contexts: Tensor,
        *,
        images: Tensor | None = None,
        dropout: TextDropout | None = None,
    ) -> Tensor:
        """Return T_hat of S runs, computed in one pass of the text tower.

        contexts: [S, n_ctx, w]; returns [S, C, d]. Only learners whose prompts depend on the image
        use the images' features [S, B, d].
        """
        runs, classes = contexts.shape[0], len(self.class_names)
        tokens = Tokens(self.tokens.ids.repeat(runs, 1), self.tokens.mask.repeat(runs, 1))
        filled = self.filled(contexts).flatten(0, 1)
        features = self.backbone.encode_text(filled, tokens, dropout=dropout)
        return features.view(runs, classes, -1)

    def filled(self, contexts: Tensor) -> Tensor:
        """The embeddings of the prompts with the contexts [S, n_ctx, w] in place: [S, C, L, w]."""
        values = contexts.unsqueeze(1).expand(-1, len(self.class_names), -1, -1)
        slots = self.slots.view(1, 1, -1, 1).expand_as(values)
        return self.embeddings.expand(len(contexts), -1, -1, -1).scatter(2, slots, values)

    def see(self, contexts: Tensor, batch: Any) -> Any:
        """The batch as the objective gets it; learners with more than a context add to it."""
        return batch

    def _refuse_long_prompts(self, prompts: Sequence[Sequence[int]]) -> None:
        longest = max(range(len(prompts)), key=lambda index: len(prompts[index]))
        special = self.backbone.leading_tokens + self.backbone.trailing_tokens
        needed = special + len(prompts[longest])
        if needed > self.backbone.context_length:
            raise ConfigError(
                f"The prompt of class '{self.class_names[longest]}' needs {needed} tokens with "
                f"n_ctx={self.config.n_ctx}, but this text tower accepts at most "
                f"{self.backbone.context_length}. Lower n_ctx or shorten the class name."
            )


class PackedLearner(PromptLearner):
    """Prompts whose "context" is several tensors, kept as one row of numbers for each run."""

    shapes: Mapping[str, tuple[int, ...]]  # of the tensors, in their order in the row

    @abstractmethod
    def start(self, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The initial tensors."""

    def initial_context(self, generator: torch.Generator) -> Tensor:
        return self.join(self.start(generator))

    def split(self, parameters: Tensor) -> dict[str, Tensor]:
        """The named parts of rows of numbers [.., n]."""
        sizes = [math.prod(shape) for shape in self.shapes.values()]
        parts = zip(self.shapes.items(), parameters.split(sizes, dim=-1), strict=True)
        return {name: part.unflatten(-1, shape) for (name, shape), part in parts}

    def join(self, parts: Mapping[str, Tensor]) -> Tensor:
        """One row of numbers from its named parts; the inverse of `split` for one run."""
        for name, shape in self.shapes.items():
            if parts[name].shape != shape:
                raise ValueError(f"{name} has shape {tuple(parts[name].shape)}, expected {shape}")
        return torch.cat([parts[name].float().flatten() for name in self.shapes])
