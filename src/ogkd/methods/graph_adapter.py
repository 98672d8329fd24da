"""GraphAdapter: class texts adapted by a text graph and an image graph of one layer each."""

from __future__ import annotations

import math

import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from ogkd.methods import Head, TextSide, register
from ogkd.methods.feature_method import FeatureMethod, PriorConfig, Rows, text_prior
from ogkd.methods.heads import TextHead


class GraphAdapterConfig(PriorConfig):
    """The released shares; what its files leave open is in the method's docstring."""

    alpha: float = Field(default=0.7, ge=0, le=1)  # share of the text graph in the rest
    beta: float = Field(default=0.7, ge=0, le=1)  # share of the text itself
    epochs: int = Field(default=100, ge=0)  # passes over the images
    batch_size: int = Field(default=256, ge=1)  # images in each step
    lr: float = Field(default=1e-3, gt=0)  # learning rate


@register
class GraphAdapter(FeatureMethod[GraphAdapterConfig]):
    """t'_c = beta t_c + (1 - beta) (alpha g_text + (1 - alpha) g_image), cross-entropy on cosines.

    g = tanh((A X W)_0 + b_c): X are C + 1 nodes, the text t_c and all texts, or t_c and the mean
    image features of all classes; A = D^-1/2 (S + I) D^-1/2 with S the cosines of the nodes, from
    zero up. W [d, d] is uniform within 1 / sqrt(d), the biases b [C, d] start at zero. As only
    row 0 is read, (A X)_0 is computed once for each class.
    Named differences from the released code, which cannot be run: one graph (there classes are
    dealt into four clusters and averaged, for 1,000 classes); beta is not in its files (0.7 here);
    Adam, the rate and the epochs are not either; means over the given views (there ten augmented
    ones). A class without images has its text in place of the mean.
    """

    name = "graph-adapter"
    summary = "class texts adapted by a graph of texts and a graph of image means"
    citation = "Li et al., GraphAdapter, NeurIPS 2023"

    def fit_rows(self, rows: Rows, text: TextSide, *, seed: int) -> Head:
        config, scale = self.config, text.backbone.logit_scale
        T = text_prior(text, config.prior)
        sums = rows.one_hot.mT @ rows.features
        means = torch.where(sums.norm(dim=-1, keepdim=True) > 0, normalize(sums, dim=-1), T)
        known = torch.stack([first_rows(T, T), first_rows(T, means)])  # [2, C, d]: (A X)_0
        generator = torch.Generator().manual_seed(seed)
        C, d = T.shape
        W = torch.empty(2, d, d).uniform_(-1, 1, generator=generator) / math.sqrt(d)
        b = torch.zeros(2, C, d)
        mixture = torch.tensor([config.alpha, 1 - config.alpha]).view(2, 1, 1)
        parameters = [W.requires_grad_(), b.requires_grad_()]
        optimiser = torch.optim.Adam(parameters, lr=config.lr)

        def adapted() -> Tensor:
            graphs = (mixture * (known @ W + b).tanh()).sum(0)
            return normalize(config.beta * T + (1 - config.beta) * graphs, dim=-1)

        for _ in range(config.epochs):
            order = torch.randperm(len(rows.labels), generator=generator)
            for batch in order.split(config.batch_size):
                z = scale * rows.features[batch] @ adapted().mT
                loss = cross_entropy(z, rows.labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
        return TextHead(adapted().detach(), scale)


def first_rows(T: Tensor, nodes: Tensor) -> Tensor:
    """(A X)_0 of each class's graph [C, d]: X is its text, then the nodes, all of unit length."""
    X = torch.cat([T.unsqueeze(1), nodes.expand(len(T), *nodes.shape)], dim=1)  # [C, n + 1, d]
    S = (X @ X.mT).clamp_min(0) + torch.eye(X.shape[1])
    degree = S.sum(dim=-1).rsqrt()  # [C, n + 1]
    A_0 = degree[:, :1] * S[:, 0] * degree
    return (A_0.unsqueeze(1) @ X).squeeze(1)
