"""Fused: a text head and Gaussian heads on images, weighted by cross-fitting on the support.

The equations are in experts.py, what the support decides in fused_choice.py
(docs/concepts/fused.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone
from ogkd.core.geometry import mean_texts
from ogkd.errors import ConfigError
from ogkd.methods import Head, LinearHead, Method, Rows, Support, TextSide, rows_of
from ogkd.methods.base import Folder, refuse_other_settings
from ogkd.methods.experts import Space, Texts, experts, totals
from ogkd.methods.fused_choice import (
    POOL_FOLDS,
    RHO,
    FusedConfig,
    choose,
    choose_pool,
    ridge,
    row_weights,
    weights,
    with_pool,
    worth,
)
from ogkd.methods.prompt_method import required
from ogkd.methods.ranking import Ranking
from ogkd.methods.registry import make_method, presets, register

_NAMES = {"bank": "zero-shot-ensemble", "single": "zero-shot"}
_TEXT = "text."  # prefix of the names of the text head's tensors
_VARIANCE = 0.1  # about what rows of unit length have within classes; the ridge is relative to it


@dataclass(frozen=True)
class FusedHead(LinearHead):
    """A linear head, saved with the text head, which answers for classes without images.

    `pool` is how many unlabelled images it has just learned from; it is not saved.
    """

    text: Head = field(kw_only=True)
    pool: int = field(default=0, kw_only=True)
    fit_notes: tuple[str, ...] = field(default=(), kw_only=True)
    fixed: Ranking | None = field(default=None, kw_only=True)

    @property
    def notes(self) -> tuple[str, ...]:
        return self.fit_notes

    @property
    def ranking(self) -> Ranking | None:
        return self.fixed

    @property
    def class_texts(self) -> Tensor | None:
        return self.text.class_texts

    def tensors(self) -> dict[str, Tensor]:
        tensors = super().tensors()
        texts = {f"{_TEXT}{name}": tensor for name, tensor in self.text.tensors().items()}
        return tensors | texts


@register
class Fused(Method[FusedConfig]):
    """logits_c = heat (kappa text_c + n_c visual_c) / (kappa + n_c), one linear head.

    visual_c is the mean over the representations of an image: the global feature, or the deeper
    ones where the backbone has them. kappa and heat maximise the likelihood of held-out support
    images times a prior, so they are defined even with one image per class. A learned text has
    been trained on the held-out images, so the bank replaces it while they are chosen.
    """

    name = "fused"
    summary = "texts and Gaussian heads on deeper features, weighted on the support alone"
    supports = frozenset({"findings", "unlabelled"})
    citation = "this project, docs/concepts/fused.md; the visual side after Wang et al., ICLR 2024"

    def __init__(self, config: FusedConfig) -> None:
        super().__init__(config)
        name = _NAMES.get(config.text, config.text)
        if name == self.name:
            raise ConfigError("fused cannot be its own text side. Use ogkd, bank or single.")
        settings = dict(config.text_settings)
        if config.train and config.text in _NAMES:
            raise ConfigError(
                f"fused trains nothing with the texts of '{config.text}', so settings of training "
                "(train) have no meaning. Use the method ogkd, or set text to ogkd."
            )
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

    @property
    def trains(self) -> bool:
        """Only the text side may train a context."""
        return self.text_method.needs_training

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
        """Train the text side of all runs together, then add the images run by run."""
        refuse_other_settings(methods)
        first = methods[0].text_method
        learned = first.fit_many([first] * len(seeds), supports, text, seeds=seeds, folder=folder)
        uses_bank = first.needs_training or first.name == _NAMES["bank"]
        bank = mean_texts(text.bank).cpu() if uses_bank else None
        heads: list[Head] = []
        for method, support, head in zip(methods, required(supports), learned, strict=True):
            # Only the support may decide, not validation images.
            rows = replace(rows_of(support, text.class_names), validation=None)
            heads.append(method._join(rows, support.unlabelled, head, bank, text.backbone))
        return heads

    def uses_deep(self, backbone: Backbone) -> bool:
        wanted = self.config.features
        if wanted == "deep" and not backbone.deep_parts:
            raise ConfigError(
                f"The backbone '{backbone.name}' has no deeper features. Set features to auto."
            )
        return wanted != "global" and bool(backbone.deep_parts)

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
        texts = self.text_method.read_head(inner, text, scale)
        width, deep = linear.shape[1], linear.shape[1] > texts.shape[1]
        if len(linear.W) != texts.shape[0] or width not in (
            texts.shape[1],
            texts.shape[1] + sum(text.backbone.deep_parts),
        ):
            raise ValueError(f"texts of shape {texts.shape} beside W of shape {linear.shape}")
        fixed = self._ranking(texts, text.backbone, scale, deep=deep)
        return FusedHead(linear.W, linear.b, text=texts, fixed=fixed)

    def _ranking(self, texts: Head, backbone: Backbone, scale: float, *, deep: bool) -> Ranking:
        """Images alone if the texts learned from them, too: they would favour the support."""
        config = self.config
        return Ranking(
            T=None if self.text_method.needs_training else texts.class_texts,
            scale=scale,
            nu=config.nu,
            kappa=config.kappa or config.kappa0,
            ridge=_VARIANCE * (config.rho or RHO[deep]),
            d=texts.shape[1],
            widths=tuple(backbone.deep_parts) if deep else (),
        )

    def _join(
        self,
        rows: Rows,
        pool: Tensor | None,
        learned: Head,
        bank: Tensor | None,
        backbone: Backbone,
    ) -> FusedHead:
        config, scale = self.config, backbone.logit_scale
        if learned.class_texts is None:
            raise ConfigError(f"'{config.text}' gave a head without class texts.")
        T = untrained = learned.class_texts.cpu()
        if bank is not None:
            untrained = bank
            T = normalize(config.blend * T + (1 - config.blend) * normalize(bank, dim=-1), dim=-1)
            T = T * bank.norm(dim=-1, keepdim=True)
        d = T.shape[1]
        deep = rows.features.shape[1] > d
        config = config.model_copy(update={"rho": config.rho or RHO[deep]})
        widths = backbone.deep_parts if deep else ()
        # Few rows span a small space, so what needs labelled rows alone is computed there.
        space = Space.of(rows.features, d, widths, even=True)
        texts, chosen_by = Texts(T, scale, config.nu), Texts(untrained, scale, config.nu)
        choice = choose(rows, space, chosen_by, config)
        fitted, note = experts(space, weights(rows), texts, rho=ridge(config)), ""
        if pool is not None:
            everything = torch.cat([rows.features, normalize(pool.cpu().float(), dim=-1)])
            large = Space.of(everything, d, widths, even=True)
            beta = worth(rows, len(pool), config)
            sums = totals(large, row_weights(rows, len(everything), beta))
            without = choose(rows, space, chosen_by, config, folds=POOL_FOLDS)
            with_them, note = choose_pool(rows, large, chosen_by, config, without, sums)
            if with_them.pool:
                fitted = with_pool(rows, large, texts, config, without, sums)
                choice, space = with_them, large
        W, b = fitted.joined(space, choice.kappa, deep=deep)
        return FusedHead(
            (choice.heat * W).float(),
            (choice.heat * b).float(),
            text=learned,
            pool=len(pool) if pool is not None and choice.pool else 0,
            fit_notes=(note,) if note else (),
            fixed=self._ranking(learned, backbone, scale, deep=deep),
        )
