"""SS-Text+: class means and texts blended in closed form, no validation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.methods import Head, LinearHead, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, Prior, PriorConfig, Rows, text_prior


class SSTextConfig(PriorConfig):
    """The prompt bank is the prior."""

    prior: Prior = "bank"


@register
class SSText(FeatureMethod[SSTextConfig]):
    """w_c = argmin -1/(N tau) sum_{i in c} v_i' w_c + lambda_c/2 |w_c - t_c|^2, lambda_c = 1/N_c.

    In closed form w_c = t_c + 1/(lambda_c N tau) sum_{i in c} v_i: a class with few images leans
    on its text. tau is the backbone's temperature, 1 / scale. Then a step of
    length one is taken against 2 w_c - mean_j w_j, away from the common mean. Logits are scale
    times the cosine of v and w_c.
    Named differences from the released code: text and image features are L2-normalised before
    they are added (there they are not); lambda is not clipped at 0.001; N and N_c count images,
    whose views share the weight.
    """

    name = "ss-text+"
    summary = "class means and texts blended in closed form, for unequal shots"
    citation = "Silva-Rodriguez et al., Few-Shot, Now for Real, MICCAI 2025"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        T, scale = text_prior(text, self.config.prior), text.backbone.logit_scale
        w = blend(rows, T, scale)
        w = w - normalize(2 * w - w.mean(0), dim=-1)  # away from the common mean
        return LinearHead(scale * normalize(w, dim=-1), torch.zeros(rows.classes))


def blend(rows: Rows, T: Tensor, scale: float) -> Tensor:
    """The minimiser w [C, d], not normalised."""
    lambda_c, N = 1 / rows.counts, rows.counts.sum()
    sums = rows.one_hot.mT @ rows.features / rows.views
    return T + (scale / (lambda_c * N)).unsqueeze(1) * sums
