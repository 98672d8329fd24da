"""Fused: a text head and a Gaussian head on images, weighted by cross-fitting on the support.

The method comes first; below it, in float64, the two linear experts and their posterior mean
(docs/concepts/fused.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.core.geometry import prototypes
from ogkd.errors import ConfigError
from ogkd.methods import Head, LinearHead, Method, MethodConfig, Rows, TextSide, rows_of, trials
from ogkd.methods.base import Folder, Supports
from ogkd.methods.registry import make_method, presets, register

_NAMES = {"bank": "zero-shot-ensemble", "single": "zero-shot"}
_KAPPAS = tuple(2.0**k for k in range(-2, 7))  # 1/4 .. 64 images
_HEATS = tuple(math.exp(k / 8) for k in range(-12, 13))  # 0.22 .. 4.5
_KAPPA_SPREAD = 1.0  # prior standard deviation of log kappa around log kappa0
_HEAT_SPREAD = 0.5  # prior standard deviation of the log of the factor on logits around 0
_TEXT = "text."  # prefix of the names of the text head's tensors


class FusedConfig(MethodConfig):
    """`text`: "bank", "single", "ogkd" or any other method that learns class texts.

    The numbers are those of docs/concepts/fused.md, chosen there on training and validation images.
    """

    text: str = "bank"
    text_settings: dict[str, Any] = Field(default_factory=dict)  # of that method
    train: dict[str, Any] = Field(default_factory=dict)  # its training, such as epochs
    blend: float = Field(default=0.5, ge=0, le=1)  # share of learned texts; the rest: the bank
    kappa: float | None = Field(default=None, gt=0)  # worth of text in images; None: cross-fit
    kappa0: float = Field(default=8.0, gt=0)  # its prior value
    rho: float = Field(default=1.0, gt=0)  # ridge of the covariance
    nu: float = Field(default=16.0, ge=0)  # how many images the zero-shot biases are worth


@dataclass(frozen=True)
class FusedHead(LinearHead):
    """A linear head; the text head is saved with it, for classes without images."""

    text: Head = field(kw_only=True)

    @property
    def class_texts(self) -> Tensor | None:
        return self.text.class_texts

    def tensors(self) -> dict[str, Tensor]:
        inner = {f"{_TEXT}{name}": tensor for name, tensor in self.text.tensors().items()}
        return {**super().tensors(), **inner}


@register
class Fused(Method[FusedConfig]):
    """logits_c = heat (kappa text_c(v) + n_c visual_c(v)) / (kappa + n_c), one linear head.

    kappa and heat maximise the likelihood of held-out support images times a prior, so they are
    defined even with one image per class. A learned text has been trained on the held-out images,
    so the bank replaces it while kappa and heat are chosen.
    """

    name = "fused"
    summary = "text head and Gaussian head on images, weighted on the support alone"
    citation = "this project, docs/concepts/fused.md; the visual side after Wang et al., ICLR 2024"

    def __init__(self, config: FusedConfig) -> None:
        super().__init__(config)
        name = _NAMES.get(config.text, config.text)
        if name == self.name:
            raise ConfigError("fused cannot be its own text side. Use ogkd, bank or single.")
        settings = dict(config.text_settings)
        if config.train:
            settings["train"] = {**settings.get("train", {}), **config.train}
        preset = "auto" if "auto" in presets(name) else None
        self.text_method = make_method(name, preset=preset, settings=settings)
        if not self.text_method.learns_texts:
            raise ConfigError(
                f"fused needs class texts, which '{config.text}' does not learn. Use ogkd, bank, "
                "single or another method that learns one context for all images."
            )

    @property
    def uses_patches(self) -> bool:
        """Only the text side may need patches."""
        return self.text_method.uses_patches

    def fit(
        self, supports: Supports, text: TextSide, *, seeds: Sequence[int], folder: Folder = None
    ) -> list[Head]:
        """Train the text side of all seeds together, then add the images seed by seed."""
        # Only the support may decide, not validation images.
        rows = [replace(rows_of(s, text.class_names), validation=None) for s in supports]
        learned = self.text_method.fit(supports, text, seeds=seeds, folder=folder)
        return [self._join(r, head, text) for r, head in zip(rows, learned, strict=True)]

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Use the text side alone: the other classes have no images."""
        inner = head.text if isinstance(head, FusedHead) else head
        return self.text_method.head_for(inner, text)

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild the head, or the text side alone if that was saved."""
        if "W" not in tensors:
            return self.text_method.read_head(tensors, text, scale)
        inner = {k.removeprefix(_TEXT): v for k, v in tensors.items() if k.startswith(_TEXT)}
        linear = LinearHead.read(tensors)
        return FusedHead(linear.W, linear.b, text=self.text_method.read_head(inner, text, scale))

    def _join(self, rows: Rows, learned: Head, text: TextSide) -> Head:
        config, scale = self.config, text.backbone.logit_scale
        if learned.class_texts is None:
            raise ConfigError(f"'{config.text}' gave a head without class texts.")
        T = untrained = learned.class_texts.cpu()
        if self.text_method.needs_training:
            untrained = prototypes(text.bank).cpu()
            T = normalize(config.blend * T + (1 - config.blend) * untrained, dim=-1)
        kappa, heat = choose(rows, untrained, scale, config)
        W, b = fuse(_experts(rows, T, scale, config), kappa)
        return FusedHead((heat * W).float(), (heat * b).float(), text=learned)


def choose(rows: Rows, T: Tensor, scale: float, config: FusedConfig) -> tuple[float, float]:
    """Choose the weight kappa and the factor on logits on held-out support images.

    With one image per class nothing can be held out: they are then kappa0 and 1.
    """
    fixed = config.kappa
    held = [(trial, _experts(trial.rows, T, scale, config)) for trial in trials(rows)]
    if not held:
        return fixed or config.kappa0, 1.0
    labels = torch.cat([trial.labels for trial, _ in held])
    heats = torch.tensor(_HEATS, dtype=torch.float64)
    best = (math.inf, 0.0, 0.0)
    for kappa in _KAPPAS if fixed is None else (fixed,):
        parts = []
        for trial, both in held:
            W, b = fuse(both, kappa)
            parts.append(trial.features.double() @ W.mT + b)
        log_p = (heats[:, None, None] * torch.cat(parts)).log_softmax(-1)  # [H, M, C]
        picked = log_p.gather(-1, labels.expand(len(heats), -1).unsqueeze(-1))
        # Views of one image are not independent: together they count as one.
        cost = -picked.sum((1, 2)) / rows.views + (heats.log() / _HEAT_SPREAD).square() / 2
        if fixed is None:
            cost = cost + (math.log(kappa / config.kappa0) / _KAPPA_SPREAD) ** 2 / 2
        place = int(cost.argmin())
        best = min(best, (float(cost[place]), kappa, _HEATS[place]))
    return best[1], best[2]


def _experts(rows: Rows, T: Tensor, scale: float, config: FusedConfig) -> Experts:
    return experts(
        rows.features, rows.labels, T, scale=scale, views=rows.views, rho=config.rho, nu=config.nu
    )


@dataclass(frozen=True)
class Experts:
    """Weights [C, d] and biases [C] of both experts, and the images per class n [C]."""

    W_visual: Tensor
    b_visual: Tensor
    W_text: Tensor
    b_text: Tensor
    n: Tensor


def experts(
    X: Tensor, y: Tensor, T: Tensor, *, scale: float, views: int, rho: float, nu: float
) -> Experts:
    """Fit both experts on rows X [R, d] with labels y [R], `views` rows per image.

    T [C, d] are the class texts. Every class needs at least one row.
    """
    X, T = X.double(), T.double()
    one_hot = torch.nn.functional.one_hot(y, len(T)).double()  # [R, C]
    rows = one_hot.sum(0)
    means = one_hot.mT @ X / rows.unsqueeze(1)  # [C, d]
    n = rows / views
    W_visual, b_visual = visual(X, y, means, n, rho=rho)
    W_text, b_text = textual(T, means.mean(0), scale=scale, trust=float(n.sum() / (n.sum() + nu)))
    return Experts(W_visual, b_visual, W_text, b_text, n)


def visual(X: Tensor, y: Tensor, means: Tensor, n: Tensor, *, rho: float) -> tuple[Tensor, Tensor]:
    """Return the linear discriminants P (x_c - m) of Gaussian classes with one covariance.

    The scatter is that of rows around their class means, plus n_c / (1 + n_c) of that of class
    means around the common mean m, so that there is a covariance even with one image per class.
    The ridge is rho tr / N, as in GDA: it vanishes with more images.
    """
    N = n.sum()
    m = means.mean(0)
    delta = means - m  # [C, d]
    inner = X - means[y]
    S = inner.mT @ inner * (N / len(X)) + (delta * (n / (1 + n)).unsqueeze(1)).mT @ delta
    S = S / N
    S.diagonal().add_((rho * S.trace() / N).clamp_min(1e-8))
    W = torch.cholesky_solve(delta.mT, torch.linalg.cholesky(S)).mT  # [C, d]
    return W, -(W * delta).sum(1) / 2 - W @ m


def textual(T: Tensor, m: Tensor, *, scale: float, trust: float) -> tuple[Tensor, Tensor]:
    """Return the zero-shot head without its class bias, as estimated on the support.

    Image and text features form separate clusters, so some class texts are nearer to all images.
    Logits are centred on those of the mean image m; `trust` scales this from 0 to 1 (fully).
    """
    W = scale * (T - T.mean(0))
    return W, -trust * (W @ m)


def fuse(both: Experts, kappa: float) -> tuple[Tensor, Tensor]:
    """Text counts as `kappa` images: weights kappa / (kappa + n_c) and n_c / (kappa + n_c).

    This is the posterior of class means whose prior means are those for which Gaussian classes
    give the zero-shot head.
    """
    share = both.n / (kappa + both.n)  # [C]
    W = share.unsqueeze(1) * both.W_visual + (1 - share).unsqueeze(1) * both.W_text
    return W, share * both.b_visual + (1 - share) * both.b_text
