"""PromptKD on cached features: a network on image features that imitates a second backbone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import BatchNorm1d, Linear, Parameter, ReLU, Sequential
from torch.nn.functional import normalize
from torch.optim import SGD

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.core.optimisers import TrainConfig, learning_rate
from ogkd.errors import BackboneError
from ogkd.features.views import FixedViews
from ogkd.methods import Head, Method, MethodConfig, Support, TextSide, make_method, register
from ogkd.methods.base import Folder, Teacher
from ogkd.methods.feature_method import rows_of
from ogkd.methods.heads import take

_STAGE_ONE = "promptsrc-text"


class PromptKDConfig(MethodConfig):
    """The released settings."""

    teacher: str = ""  # a backbone: its name, folder or hub id; empty: the one that learns
    lambda_kd: float = Field(default=1000.0, ge=0)  # weight of the divergence
    epochs: int = Field(default=20, ge=1)  # passes over the images
    batch_size: int = Field(default=8, ge=2)  # images in each step
    lr: float = Field(default=0.005, gt=0)  # learning rate


@dataclass(frozen=True)
class ProjectedHead(Head):
    """scale * normalise(relu(v W1' + b1) W2' + b2) T', with the teacher's class texts T [C, e]."""

    T: Tensor
    scale: float
    W1: Tensor  # [e, d]
    b1: Tensor
    W2: Tensor  # [e, e]
    b2: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.T.shape[0], self.W1.shape[1]

    def logits(self, features: Tensor) -> Tensor:
        hidden = (normalize(features, dim=-1) @ self.W1.mT + self.b1).relu()
        projected = hidden @ self.W2.mT + self.b2
        return self.scale * normalize(projected, dim=-1) @ self.T.mT

    def tensors(self) -> dict[str, Tensor]:
        scale = torch.tensor(self.scale, dtype=torch.float64)  # the teacher's
        layers = {"W1": self.W1, "b1": self.b1, "W2": self.W2, "b2": self.b2}
        return {"T": self.T.contiguous(), "scale": scale, **layers}


@register
class PromptKD(Method[PromptKDConfig]):
    """loss = lambda KL(teacher || student) / (B C), on images with and without labels.

    Both answer by scale * cos(., T) with the teacher's class texts T [C, e]: the teacher on its
    features of an image, the student on MLP(v), a linear layer d -> e, BatchNorm, ReLU and a linear
    layer e -> e. T is tuned on the labelled images first; labels enter there alone. SGD with
    momentum 0.9, one epoch of warm-up, then a cosine.
    Named differences from the paper: the MLP alone is trained (there also four tokens in nine
    blocks of the image tower), on features that are computed once; stage one is PromptSRC in its
    text-only form, with its `auto` settings; the scale is the teacher's; classes are those of the
    labelled images (there also novel ones, whose images the teacher labels); a batch of one image
    is left out. The teacher sees whole images, whatever the views.
    """

    name = "promptkd"
    summary = "a network on image features that imitates another backbone, also without labels"
    citation = "Li et al., PromptKD, CVPR 2024"
    cost = "minutes"
    supports = frozenset({"unlabelled"})

    def teacher(self, backbone: Backbone) -> Backbone | None:
        name = self.config.teacher
        try:
            return load_backbone(name, device=str(backbone.device)) if name else None
        except BackboneError as error:
            raise BackboneError(f"teacher: {error}", argument="settings") from error

    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        assert support is not None
        rows, pool = rows_of(support, text.class_names), support.unlabelled
        teacher = support.teacher or Teacher(text.backbone, rows.view(0).features, pool)
        T = self._class_texts(teacher, support.labels, text, seed)
        v = _with_pool(rows.features, pool)
        u = _with_pool(teacher.rows.repeat_interleave(rows.views, dim=0), teacher.unlabelled)
        scale = teacher.backbone.logit_scale
        log_q = (scale * u @ T.mT).log_softmax(dim=-1)
        return self._distilled(v, log_q, T, scale, seed)

    def _class_texts(self, teacher: Teacher, labels: Tensor, text: TextSide, seed: int) -> Tensor:
        """The teacher's texts T [C, e], of a prompt tuned on the labelled images."""
        text = replace(text, backbone=teacher.backbone)
        images = Support(FixedViews(ImageFeatures(teacher.rows.unsqueeze(1))), labels)
        T = make_method(_STAGE_ONE, preset="auto").fit(images, text, seed=seed).class_texts
        assert T is not None
        return T.cpu()

    def _distilled(
        self, v: Tensor, log_q: Tensor, T: Tensor, scale: float, seed: int
    ) -> ProjectedHead:
        """Train the MLP on images v [M, d] with the teacher's log-probabilities [M, C]."""
        config, generator = self.config, torch.Generator().manual_seed(seed)
        d, e = v.shape[1], T.shape[1]
        first, norm = _linear(d, e, generator), BatchNorm1d(e)
        second = _linear(e, e, generator)
        network = Sequential(first, norm, ReLU(), second)
        optimiser = SGD(network.parameters(), lr=config.lr, momentum=0.9, weight_decay=5e-4)
        schedule = TrainConfig(epochs=config.epochs, lr=config.lr)
        for epoch in range(config.epochs):
            optimiser.param_groups[0]["lr"] = learning_rate(epoch, schedule)
            for batch in torch.randperm(len(v), generator=generator).split(config.batch_size):
                if len(batch) == 1:
                    continue  # BatchNorm needs two
                z, known = scale * normalize(network(v[batch]), dim=-1) @ T.mT, log_q[batch]
                divergence = (known.exp() * (known - z.log_softmax(dim=-1))).mean()
                loss = config.lambda_kd * divergence
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        mean, variance = norm.running_mean, norm.running_var
        assert mean is not None
        assert variance is not None
        factor = norm.weight * (variance + norm.eps).rsqrt()
        W1, b1 = factor.unsqueeze(1) * first.weight, factor * (first.bias - mean) + norm.bias
        layers = [part.detach() for part in (W1, b1, second.weight, second.bias)]
        return ProjectedHead(T, scale, *layers)

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        T, *layers = take(tensors, T="Ce", W1="hd", b1="h", W2="eh", b2="e")
        return ProjectedHead(T, float(tensors["scale"]), *layers)


def _linear(width: int, out: int, generator: torch.Generator) -> Linear:
    """A layer with the usual start, drawn from this generator alone."""
    layer, bound = Linear(width, out, device="meta"), width**-0.5

    def drawn(*shape: int) -> Parameter:
        return Parameter(torch.empty(shape).uniform_(-bound, bound, generator=generator))

    layer.weight, layer.bias = drawn(out, width), drawn(out)
    return layer


def _with_pool(rows: Tensor, pool: Tensor | None) -> Tensor:
    """Labelled rows, then unlabelled ones of unit length."""
    return rows if pool is None else torch.cat([rows, normalize(pool.cpu().float(), dim=-1)])
