"""A plain prompt-tuning loop that does what the released code does, for comparison only.

Written from the audit of the released OGKD trainer: the image tower runs at every step, every
prompt is padded to the full context, the text tower's dropout is on, the bank of prompts is encoded
twice (once one by one), and the test re-encodes the prompts for every batch of 100 images.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax, mse_loss, normalize
from transformers import BertConfig, BertModel

from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import Tokens


def _hugging_face(backbone: TowersBackbone) -> Any:
    """The backbone's BERT as transformers' own model, with the same weights in memory."""
    own = backbone.model.text.bert
    with torch.device("meta"):
        bert = BertModel(BertConfig(**own.config.model_dump()), add_pooling_layer=False)
    bert.load_state_dict(own.state_dict(), assign=True, strict=False)
    places = bert.embeddings  # buffers that the weights do not have
    places.position_ids = torch.arange(own.config.max_position_embeddings).unsqueeze(0)
    places.token_type_ids = torch.zeros_like(places.position_ids)
    return bert.requires_grad_(False).eval()


class PlainLoop:
    """One run: `start_up`, then `step` on pixels, then `test_batch`."""

    def __init__(
        self, backbone: TowersBackbone, names: list[str], bank: list[list[str]], config: Any
    ) -> None:
        self.backbone, self.names, self.texts, self.config = backbone, names, bank, config
        self.model = backbone.model
        self.bert = _hugging_face(backbone)
        self.scale = backbone.logit_scale
        tokens = self._pad(backbone.tokenize([f"a photo of a {name}." for name in names]))
        self.mask = tokens.mask
        with torch.no_grad():
            self.embedded = self.bert.embeddings.word_embeddings(tokens.ids)
        self.context = self.embedded[0, 1:5].clone().requires_grad_()
        self.optimiser = torch.optim.SGD([self.context], lr=2.5e-3, momentum=0.9, weight_decay=5e-4)

    def _pad(self, tokens: Tokens) -> Tokens:
        full = self.backbone.context_length  # BiomedCLIP's is 256
        ids = torch.zeros(tokens.ids.shape[0], full, dtype=torch.int64)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        ids[:, : tokens.ids.shape[1]] = tokens.ids
        mask[:, : tokens.mask.shape[1]] = tokens.mask
        return Tokens(ids, mask)

    def _text(self, embedded: Tensor, mask: Tensor) -> Tensor:
        """Hugging Face's own forward, as the released code calls it."""
        hidden = self.bert(inputs_embeds=embedded, attention_mask=mask.long()).last_hidden_state
        return normalize(self.model.text.proj(hidden[:, 0]), dim=-1)

    @torch.no_grad()
    def _encode(self, texts: list[str]) -> Tensor:
        tokens = self._pad(self.backbone.tokenize(texts))
        return self._text(self.bert.embeddings.word_embeddings(tokens.ids), tokens.mask)

    @torch.no_grad()
    def start_up(self) -> None:
        """Encode the bank once per template over all classes, and once more one by one."""
        self.bert.eval()
        count = len(self.texts[0])
        by_template = [self._encode([rows[i] for rows in self.texts]) for i in range(count)]
        self.bank = torch.stack(by_template, dim=1)  # [C, N, d]
        again = [torch.cat([self._encode([text]) for text in rows]) for rows in self.texts]
        T = normalize(torch.stack(again).mean(dim=1), dim=-1)
        self.T = normalize(self.bank.mean(dim=1), dim=-1)
        self.W = torch.softmax(self.config.alpha * T @ T.T, dim=-1)

    def step(self, pixels: Tensor, labels: Tensor, *, dropout: bool = True) -> dict[str, float]:
        """One training step; the losses are as released."""
        config = self.config
        self.bert.train(dropout)
        C = len(self.names)
        prefix, suffix = self.embedded[:, :1], self.embedded[:, 5:]
        prompts = torch.cat([prefix, self.context.expand(C, -1, -1), suffix], dim=1)
        T_hat = self._text(prompts, self.mask)
        with torch.no_grad():
            image, parts, _ = self.model.image(pixels, patches=True)
        v, Z = normalize(image, dim=-1), normalize(parts, dim=-1)
        with torch.no_grad():
            T_tilde = self._teacher(v)
        z_stu, z_tea = self.scale * v @ T_hat.T, self.scale * v @ T_tilde.T
        log_p = log_softmax(z_stu, -1)
        target = self._diffuse(log_softmax(z_tea, -1))
        ce = cross_entropy(z_stu, labels)
        sccm = mse_loss(T_hat, self.T)
        gad = kl_div(log_p, target, reduction="sum", log_target=True) / log_p.numel()
        lgd = self._lgd(Z, T_hat, T_tilde, labels)
        total = ce + config.lambda_sccm * sccm + config.lambda_gad * gad + config.lambda_lgd * lgd
        self.optimiser.zero_grad()
        total.backward()
        self.optimiser.step()
        self.bert.eval()
        terms = {"ce": ce, "sccm": sccm, "gad": gad, "lgd": lgd, "total": total}
        return {name: float(value.detach()) for name, value in terms.items()}

    def _teacher(self, v: Tensor) -> Tensor:
        """The selector as released: scores, median and MAD, standardised, one mask for all."""
        logits = self.scale * torch.einsum("bd,cnd->bcn", v, self.bank)
        s = logits.max(dim=1).values.mean(dim=0)
        z = (s - s.median()) / (s - s.median()).abs().median()
        keep = ((z - z.mean()) / z.std()).abs() <= self.config.tau
        return normalize(self.bank[:, keep].mean(dim=1), dim=-1)

    def _diffuse(self, q: Tensor) -> Tensor:
        gamma = self.config.gamma
        return (1 - gamma) * q + gamma * q @ self.W

    def _lgd(self, Z: Tensor, T_hat: Tensor, T_tilde: Tensor, labels: Tensor) -> Tensor:
        B, P = Z.shape[:2]
        K = max(1, round(P * self.config.top_ratio))
        S, S_tea = self.scale * Z @ T_hat.T, self.scale * Z @ T_tilde.T  # [B, P, C]
        y = labels.view(B, 1, 1)
        score = S_tea.gather(2, y.expand(B, P, 1)).squeeze(2)
        best = score.abs().topk(K, dim=1).indices.unsqueeze(2).expand(B, K, S.shape[2])
        log_p = log_softmax(S.gather(1, best), -1)
        target = self._diffuse(log_softmax(S_tea.gather(1, best), -1))
        u_stu = log_p.gather(2, y.expand(B, K, 1))
        u_tea = target.gather(2, y.expand(B, K, 1))
        return kl_div(u_stu, u_tea, reduction="sum", log_target=True) / (B * K)

    @torch.no_grad()
    def test_batch(self, pixels: Tensor) -> Tensor:
        """Predict a batch, prompts re-encoded and all patches projected, as released."""
        C = len(self.names)
        prefix, suffix = self.embedded[:, :1], self.embedded[:, 5:]
        T_hat = self._text(
            torch.cat([prefix, self.context.expand(C, -1, -1), suffix], dim=1), self.mask
        )
        image, _, _ = self.model.image(pixels, patches=True)
        return (self.scale * normalize(image, dim=-1) @ T_hat.T).softmax(-1)
