"""Fused: a text head and Gaussian heads on images, weighted by cross-fitting on the support.

The equations are in experts.py, what the support decides in fused_choice.py
(docs/concepts/fused.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone
from ogkd.core.geometry import mean_texts, prototypes
from ogkd.methods import Head, LinearHead, Method, Support, TextHead, TextSide, rows_of
from ogkd.methods.base import Folder
from ogkd.methods.experts import Space, Texts, experts
from ogkd.methods.fused_choice import RHO, FusedConfig, choose, learn_from_pool, ridge, weights
from ogkd.methods.heads import take
from ogkd.methods.ranking import Ranking
from ogkd.methods.registry import register

_TEXT = "text."  # prefix of the names of the text head's tensors
_VARIANCE = 0.1  # about what rows of unit length have within classes; the ridge is relative to it
_NOT_USED = "Unlabelled images were not used: they lowered the likelihood of held-out labels."


@dataclass(frozen=True)
class FusedHead(LinearHead):
    """A linear head, saved with the text head, which answers for classes without images."""

    text: TextHead = field(kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    ranking: Ranking | None = field(default=None, kw_only=True)

    @property
    def class_texts(self) -> Tensor:
        return self.text.T

    def tensors(self) -> dict[str, Tensor]:
        texts = {f"{_TEXT}{name}": tensor for name, tensor in self.text.tensors().items()}
        return super().tensors() | texts


@register
class Fused(Method[FusedConfig]):
    """logits_c = heat (kappa text_c + n_c visual_c) / (kappa + n_c), one linear head.

    visual_c is the mean over the representations of an image: the global feature, or the deeper
    ones where the backbone has them. kappa and heat maximise the likelihood of held-out support
    images times a prior, so they are defined even with one image per class.
    """

    name = "fused"
    summary = "texts and Gaussian heads on deeper features, weighted on the support alone"
    supports = frozenset({"findings", "unlabelled"})
    citation = "this project, docs/concepts/fused.md; the visual side after Wang et al., ICLR 2024"

    def uses_deep(self, backbone: Backbone) -> bool:
        return self.config.features == "auto" and bool(backbone.deep_parts)

    def fit(
        self, support: Support | None, text: TextSide, *, seed: int, folder: Folder = None
    ) -> Head:
        assert support is not None
        # Only the support may decide, not validation images.
        rows = replace(rows_of(support, text.class_names), validation=None)
        alone, T, backbone = self._text_head(text), self._texts(text), text.backbone
        d, pool = T.shape[1], support.unlabelled
        deep = rows.features.shape[1] > d
        config = self.config.model_copy(update={"rho": self.config.rho or RHO[deep]})
        widths = backbone.deep_parts if deep else ()
        split = partial(Space.of, d=d, widths=widths, even=True)
        # Few rows span a small space, so what needs labelled rows alone is computed there.
        space, notes = split(rows.features), tuple[str, ...]()
        texts = Texts(T, backbone.logit_scale, config.nu)
        choice, fitted = choose(rows, space, texts, config), None
        if pool is not None:
            unlabelled = normalize(pool.cpu().float(), dim=-1)
            learned = learn_from_pool(rows, unlabelled, space, texts, config, split)
            if learned is None:
                notes = (_NOT_USED,)
            else:
                choice, space, fitted = learned
        fitted = fitted or experts(space, weights(rows), texts, rho=ridge(config))
        W, b = fitted.joined(space, choice.kappa, deep=deep)
        W, b = (choice.heat * W).float(), (choice.heat * b).float()
        ranking = self._ranking(alone, backbone, deep=deep)
        return FusedHead(W, b, text=alone, notes=notes, ranking=ranking)

    def head_for(self, head: Head, text: TextSide) -> Head:
        """Use the texts alone: the other classes have no images."""
        return self._text_head(text)

    def read_head(self, tensors: Mapping[str, Tensor], text: TextSide, scale: float) -> Head:
        """Rebuild the head, or the text side alone if that was saved."""
        if "W" not in tensors:
            return super().read_head(tensors, text, scale)
        W, b, T = take(tensors, **{"W": "Cw", "b": "C", f"{_TEXT}T": "Cd"})
        d, backbone = T.shape[1], text.backbone
        if W.shape[1] not in (d, d + sum(backbone.deep_parts)):
            raise ValueError(f"texts of shape {tuple(T.shape)} beside W of {tuple(W.shape)}")
        alone = TextHead(T, scale)
        ranking = self._ranking(alone, backbone, deep=W.shape[1] > d)
        return FusedHead(W, b, text=alone, ranking=ranking)

    def _text_head(self, text: TextSide) -> TextHead:
        T = text.single if self.config.text == "single" else prototypes(text.bank)
        return TextHead(T, text.backbone.logit_scale)

    def _texts(self, text: TextSide) -> Tensor:
        """Class texts [C, d]: of one template at unit length; of the bank, see `mean_texts`."""
        if self.config.text == "single":
            return text.single.cpu()
        M = mean_texts(text.bank).cpu()
        # The directions of M, rounded as in earlier versions, so that no model changes.
        T = normalize(prototypes(text.bank).cpu() + normalize(M, dim=-1), dim=-1)
        texts: Tensor = T * M.norm(dim=-1, keepdim=True)
        return texts

    def _ranking(self, texts: TextHead, backbone: Backbone, *, deep: bool) -> Ranking:
        config = self.config
        return Ranking(
            T=texts.T,
            scale=texts.scale,
            nu=config.nu,
            kappa=config.kappa or config.kappa0,
            ridge=_VARIANCE * (config.rho or RHO[deep]),
            d=texts.T.shape[1],
            widths=tuple(backbone.deep_parts) if deep else (),
        )
