"""The base of methods that tune the frozen towers: pixels in, changes of the towers out."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self, cast

import psutil
import torch
from safetensors.torch import save as tensor_bytes
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone, TextDropout
from ogkd.backbones.changes import Change, towers_of, with_change
from ogkd.core.batches import Batch, batch_slices
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig, PackedLearner, PromptLearner
from ogkd.core.training import Objective
from ogkd.errors import ConfigError
from ogkd.methods.base import Folder, Support, TextSide
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.heads import Head, TextHead
from ogkd.methods.prompt_method import PromptConfigT, PromptMethod

Shapes = Mapping[str, tuple[int, ...]]
_KEPT = 9  # numbers for each token and its width that a block keeps for the gradient, at least


class TowerLearner(PackedLearner):
    """Class texts and images through towers that are changed by what is trained.

    The text pass comes first; an image pass may use what it left in the change.
    """

    sees_pixels = True

    def __init__(
        self,
        backbone: Backbone,
        class_names: Sequence[str],
        config: ContextConfig,
        method: TowerMethod,
    ) -> None:
        super().__init__(towers_of(backbone), class_names, config)
        self.towers = towers_of(backbone)
        self.method = method
        self.shapes = method.shapes(self.towers)
        self.change = Change()
        self._words_start = PromptLearner.initial_context(self, torch.Generator())

    def start(self, generator: torch.Generator) -> dict[str, Tensor]:
        parts = dict(self.method.start(self.towers, generator))
        return parts | ({"context": self._words_start} if "context" in self.shapes else {})

    def text_features(
        self, contexts: Tensor, *, images: Tensor | None = None, dropout: TextDropout | None = None
    ) -> Tensor:
        """T_hat [1, C, d] of one run."""
        parts = {name: part[0] for name, part in self.split(contexts).items()}
        self.change = self.method.change(self.towers, parts)
        context = parts.get("context", self._words_start.to(contexts.device))
        embeddings = self.filled(context.unsqueeze(0))[0]
        features = self.towers.encode_text(
            embeddings, self.tokens, dropout=dropout, change=self.change
        )
        return features.unsqueeze(0)

    def see(self, contexts: Tensor, batch: Batch) -> Batch:
        """Features of the batch's pixels, and what the method adds to them."""
        pixels = batch.globals[0]
        v = self.towers.tuned_globals(pixels, self.change)
        extra = self.method.extra(self.towers, pixels, self.change)
        return replace(batch, globals=v.unsqueeze(0), extra=extra)


class TowerMethod(PromptMethod[PromptConfigT]):
    """Parameters in both towers, trained through them; each run by itself.

    A subclass gives the shapes of its tensors, their start, and the change that they make. Tensors
    named "context" are the learned words of the prompt; without one its words are fixed.
    """

    cost = "slow"
    needs_pixels: ClassVar[bool] = True

    @abstractmethod
    def shapes(self, backbone: Backbone) -> Shapes:
        """The shape of every tensor that is trained."""

    @abstractmethod
    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        """The initial tensors, without the context."""

    @abstractmethod
    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        """What these tensors change."""

    def objective(self, text: TextSide) -> Objective:
        """Cross-entropy, unless a method has more."""
        return CrossEntropy(text.backbone.logit_scale)

    def extra(self, backbone: Backbone, pixels: Tensor, change: Change) -> dict[str, Tensor]:
        """What the objective needs besides the features, of each run; after both passes."""
        return {}

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
        heads: list[Head] = []
        for method, s, seed in zip(methods, supports, seeds, strict=True):
            if s is not None:
                _refuse_large_batches(method.config.train, s, text.backbone)
            heads += super().fit_many([method], [s], text, seeds=[seed], folder=folder)
        return heads

    def learner(self, text: TextSide) -> TowerLearner:
        return TowerLearner(text.backbone, text.class_names, self.config.context, self)

    def head(self, learner: PromptLearner, context: Tensor) -> Head:
        towers = cast(TowerLearner, learner)
        given = context.to(towers.embeddings.device).unsqueeze(0).requires_grad_()
        T = normalize(towers.text_features(given)[0].detach().cpu(), dim=-1)
        parts = {name: part.contiguous() for name, part in towers.split(context).items()}
        return TextHead(T, towers.backbone.logit_scale, parts | self.kept(towers.change))

    def kept(self, change: Change) -> dict[str, Tensor]:
        """Tensors of a change to save that are not trained."""
        return {}

    def head_for(self, head: Head, text: TextSide) -> Head:
        learner = self.learner(text)
        return self.head(learner, learner.join(head.tensors()))

    def tower(self, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Backbone:
        if not tensors:
            return backbone
        parts = {name: tensor.float() for name, tensor in tensors.items() if name != "T"}
        here = {name: part.to(backbone.device) for name, part in parts.items()}
        content = tensor_bytes({name: part.contiguous() for name, part in parts.items()})
        fingerprint = f"{self.name} {hashlib.sha256(content).hexdigest()}"
        return with_change(backbone, self.change(towers_of(backbone), here), fingerprint)


def _refuse_large_batches(config: TrainConfig, support: Support, backbone: Backbone) -> None:
    """Refuse before hours of training what cannot fit: the image tower's values alone."""
    spec = towers_of(backbone).model.image.spec
    images = max(part.stop - part.start for part in batch_slices(len(support.views), config))
    tokens = images * (spec.grid**2 + spec.first)
    needed = 4 * _KEPT * tokens * spec.width * spec.depth
    free = psutil.virtual_memory().available
    if backbone.device.type == "cuda":
        free = torch.cuda.mem_get_info(backbone.device)[0]
    if needed > free:
        raise ConfigError(
            f"A batch of {images} images needs at least {needed:,} bytes of memory, but {free:,} "
            "are free. Lower train.batch_size.",
            argument="settings",
        )
