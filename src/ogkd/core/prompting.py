"""Learnable context vectors in front of (or around) class names, through a frozen text tower."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from ogkd.backbones.base import Backbone, TextDropout, Tokens
from ogkd.errors import ConfigError


class ContextConfig(BaseModel):
    """What is learned: the context C of the paper (fidelity.md, 20 and 21).

    The context starts at the embeddings of `init` if that has exactly `n_ctx` tokens ("a photo
    of a" has four); otherwise it is drawn from N(0, 0.02).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    n_ctx: int = Field(default=4, ge=1)
    init: str = "a photo of a"


class PromptLearner:
    """C prompts with places for a context: `text_features(context)` gives T_hat.

    A prompt is "[context] class name."; one context serves all classes. The learner itself has no
    parameters: contexts go in, text features come out, for one run or for S runs side by side.
    """

    def __init__(
        self, backbone: Backbone, class_names: Sequence[str], config: ContextConfig
    ) -> None:
        self.backbone = backbone
        self.class_names = tuple(class_names)
        self.config = config
        names = [backbone.pieces(name.replace("_", " ")) for name in class_names]
        self._refuse_long_prompts(names)
        end = backbone.pieces(".")
        # The ids at the context's places do not matter: their embeddings are replaced.
        places = [[*end, *name][:1] * config.n_ctx for name in names]
        self.tokens: Tokens = backbone.pack(
            [[*place, *name, *end] for place, name in zip(places, names, strict=True)]
        )
        first = backbone.leading_tokens
        self.slots = torch.arange(first, first + config.n_ctx, device=backbone.device)
        with torch.no_grad():
            self.embeddings = backbone.embed(self.tokens).detach()  # [C, L, w]

    def initial_context(self, generator: torch.Generator) -> Tensor:
        """Return the initial context [n_ctx, w]."""
        backbone, config = self.backbone, self.config
        words = backbone.pieces(config.init) if config.init else []
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
        values = contexts.unsqueeze(1).expand(-1, classes, -1, -1)  # [S, C, n_ctx, w]
        slots = self.slots.view(1, 1, -1, 1).expand_as(values)
        filled = self.embeddings.expand(runs, -1, -1, -1).scatter(2, slots, values)
        tokens = Tokens(self.tokens.ids.repeat(runs, 1), self.tokens.mask.repeat(runs, 1))
        features = self.backbone.encode_text(filled.flatten(0, 1), tokens, dropout=dropout)
        return features.view(runs, classes, -1)

    def _refuse_long_prompts(self, names: Sequence[Sequence[int]]) -> None:
        longest = max(range(len(names)), key=lambda index: len(names[index]))
        special = self.backbone.leading_tokens + self.backbone.trailing_tokens
        needed = special + self.config.n_ctx + len(names[longest]) + 1
        if needed > self.backbone.context_length:
            raise ConfigError(
                f"The prompt of class '{self.class_names[longest]}' needs {needed} tokens with "
                f"n_ctx={self.config.n_ctx}, but this text tower accepts at most "
                f"{self.backbone.context_length}. Lower n_ctx or shorten the class name."
            )
