"""SS-Text+: class means and texts blended in closed form, no validation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.methods import Head, LinearHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, Prior, PriorConfig, Rows, text_prior


class SSTextConfig(PriorConfig):
    """With `balanced` (one lambda = 1/N for all classes) and without `repel`, it is SS-Text."""

    prior: Prior = "bank"
    balanced: bool = False
    repel: bool = True


@register
class SSText(FeatureMethod[SSTextConfig]):
    """w_c = argmin -1/(N tau) sum_{i in c} v_i' w_c + lambda_c/2 |w_c - t_c|^2, lambda_c = 1/N_c.

    In closed form w_c = t_c + 1/(lambda_c N tau) sum_{i in c} v_i: a class with few images leans
    on its text. tau is the backbone's temperature, 1 / scale. `repel` then takes a step of
    length one against 2 w_c - mean_j w_j, away from the common mean. Logits are scale times
    the cosine of v and w_c.
    Named differences from the released code: text and image features are L2-normalised before
    they are added (there they are not); lambda is not clipped at 0.001; N and N_c count images,
    whose views share the weight.
    """

    name = "ss-text+"
    summary = "class means and texts blended in closed form, for unequal shots"
    citation = "Silva-Rodriguez et al., Few-Shot, Now for Real, MICCAI 2025"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config = self.config
        T, scale = text_prior(text, config.prior), text.backbone.logit_scale
        w = blend(rows, T, scale, balanced=config.balanced)
        if config.repel:
            w = w - normalize(2 * w - w.mean(0), dim=-1)
        return LinearHead(scale * normalize(w, dim=-1), torch.zeros(rows.classes))


def blend(rows: Rows, T: Tensor, scale: float, *, balanced: bool) -> Tensor:
    """The minimiser w [C, d], not normalised."""
    counts = rows.counts
    N = counts.sum()
    lambda_c = (1 / N).expand_as(counts) if balanced else 1 / counts
    sums = rows.one_hot.mT @ rows.features / rows.views
    return T + (scale / (lambda_c * N)).unsqueeze(1) * sums
