"""CLIP-SVD and CLIP-LoRA: small updates of the towers' weights, which merge into them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from weakref import WeakKeyDictionary

import torch
from pydantic import Field
from torch import Tensor, nn

from ogkd.backbones.base import Backbone
from ogkd.backbones.changes import Change, towers_of
from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig
from ogkd.methods import PromptConfig, register
from ogkd.methods.tower_method import Shapes, TowerMethod
from ogkd.progress import progress_bar

_TEMPLATE = ContextConfig(template="a photo of a {}.")
_ATTENTION = ("query", "key", "value")
Factors = tuple[Tensor, Tensor, Tensor]  # U, s, V'
_factors: WeakKeyDictionary[nn.Module, dict[str, Factors]] = WeakKeyDictionary()


class Weights(Change):
    """Weights by tower and name."""

    def __init__(self, image: Mapping[str, Tensor], text: Mapping[str, Tensor]) -> None:
        self.image_weights, self.text_weights = image, text


def block_weights(backbone: Backbone) -> Iterator[tuple[str, str, Tensor]]:
    """Each linear layer in the blocks of both towers: its tower, its weight's name, the weight."""
    model = towers_of(backbone).model
    for tower, module in (("image", model.image), ("text", model.text)):
        for name, layer in module.named_modules():
            if isinstance(layer, nn.Linear) and ("blocks." in name or "encoder.layer." in name):
                yield tower, f"{name}.weight", layer.weight


def _weights(parts: Mapping[str, Tensor]) -> Weights:
    towers: dict[str, dict[str, Tensor]] = {"image": {}, "text": {}}
    for name, weight in parts.items():
        tower, _, rest = name.partition(".")
        towers[tower][rest] = weight
    return Weights(**towers)


class WeightConfig(PromptConfig):
    """The prompt's words are fixed."""

    context: ContextConfig = _TEMPLATE


class CLIPSVDConfig(WeightConfig):
    """One learning rate; the released code has one for each dataset, from 0.0005 to 0.02."""

    train: TrainConfig = TrainConfig(
        optimiser="adamw", batch_size=32, lr=2e-3, weight_decay=0.01, warmup_epochs=0,
        drop_last=False,
    )  # fmt: skip


@register
class CLIPSVD(TowerMethod[CLIPSVDConfig]):
    """Every linear layer of the blocks is W = U diag(s) V'; only s is trained, cross-entropy.

    Query, key and value are layers of their own, as in the released code. Named differences: one
    learning rate for all datasets; the rate is one cosine over the epochs (there it is stepped for
    each batch); the layers are those in the blocks.
    """

    name = "clip-svd"
    summary = "the singular values of both towers' weights"
    citation = "Koleilat et al., CLIP-SVD, TMLR 2026"

    def shapes(self, backbone: Backbone) -> Shapes:
        layers = block_weights(backbone)
        return {f"{tower}.{name}": (min(weight.shape),) for tower, name, weight in layers}

    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        return {name: s.cpu() for name, (_, s, _) in factors(backbone).items()}

    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        known = factors(backbone)
        return _weights({name: known[name][0] * s @ known[name][2] for name, s in parts.items()})


def factors(backbone: Backbone) -> dict[str, Factors]:
    """The singular value decomposition of each layer, computed once per loaded model."""
    model = towers_of(backbone).model
    if model not in _factors:
        layers = list(block_weights(backbone))
        known: dict[str, Factors] = {}
        with progress_bar("Decomposing weights", len(layers)) as bar:
            for tower, name, weight in layers:
                known[f"{tower}.{name}"] = torch.linalg.svd(weight.detach(), full_matrices=False)
                bar.advance()
        _factors[model] = known
    return _factors[model]


class CLIPLoRAConfig(WeightConfig):
    """The released settings but for the epochs, which are 500 per shot there."""

    rank: int = Field(default=2, ge=1)  # of the updates
    alpha: float = Field(default=1.0, gt=0)  # their scale is alpha / sqrt(rank)
    train: TrainConfig = TrainConfig(
        optimiser="adamw", batch_size=32, lr=2e-4, weight_decay=0.01, warmup_epochs=0,
        drop_last=False,
    )  # fmt: skip


@register
class CLIPLoRA(TowerMethod[CLIPLoRAConfig]):
    """W + alpha / sqrt(r) B A for query, key and value in every block, cross-entropy.

    A [r, w] starts as torch's linear layers do, B [w, r] at zero. Named differences from the
    released code: 100 epochs (there 500 for each shot, hours on a GPU); no dropout of the layers'
    inputs (0.25 there), as the updates are merged in training too; the rate is stepped per epoch.
    """

    name = "clip-lora"
    summary = "low-rank updates of the attention of both towers"
    citation = "Zanella and Ben Ayed, CLIP-LoRA, CVPR workshops 2024"

    def shapes(self, backbone: Backbone) -> Shapes:
        r = self.config.rank
        shapes: dict[str, tuple[int, ...]] = {}
        for tower, name, (rows, columns) in self._layers(backbone):
            shapes |= {f"{tower}.{name}.A": (r, columns), f"{tower}.{name}.B": (rows, r)}
        return shapes

    def start(self, backbone: Backbone, generator: torch.Generator) -> Mapping[str, Tensor]:
        parts = {name: torch.zeros(shape) for name, shape in self.shapes(backbone).items()}
        for name, part in parts.items():
            if name.endswith(".A"):
                bound = part.shape[1] ** -0.5
                part.uniform_(-bound, bound, generator=generator)
        return parts

    def change(self, backbone: Backbone, parts: Mapping[str, Tensor]) -> Change:
        factor = self.config.alpha / self.config.rank**0.5
        return _weights(
            {
                f"{tower}.{name}": weight
                + factor * parts[f"{tower}.{name}.B"] @ parts[f"{tower}.{name}.A"]
                for tower, name, weight in block_weights(backbone)
                if f"{tower}.{name}.A" in parts
            }
        )

    def _layers(self, backbone: Backbone) -> Iterator[tuple[str, str, tuple[int, int]]]:
        for tower, name, weight in block_weights(backbone):
            if name.split(".")[-2] in _ATTENTION:
                yield tower, name, (weight.shape[0], weight.shape[1])
