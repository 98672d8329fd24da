"""The two families of transformers models: CLIP and SigLIP.

Each has a backbone that knows where the family's features come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._tokenizer import mismatch
from ogkd.backbones._towers import TowersBackbone, attend, deep_blocks, deep_features, deep_parts
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.errors import BackboneError

_Encoded = tuple[Tensor, Tensor, Tensor | None]  # globals, patches and, if wanted, deep


class _FamilyBackbone(TowersBackbone):
    has_class_token = True

    def _image_sizes(self) -> tuple[int, int]:
        vision = self.model.config.vision_config
        return self.model.config.projection_dim, vision.image_size // vision.patch_size

    def _deep_parts(self) -> tuple[int, ...]:
        vision = self.model.config.vision_config
        depth, width = vision.num_hidden_layers, vision.hidden_size
        return deep_parts(depth, width, class_token=self.has_class_token)

    def _deep(self, states: Sequence[Tensor] | None) -> Tensor | None:
        """Deeper features of the states before the first and after every block, if given."""
        if states is None:
            return None
        chosen = [states[number] for number in deep_blocks(len(states) - 1)]
        return deep_features(chosen, class_token=self.has_class_token)

    def _word_embeddings(self) -> nn.Embedding:
        embeddings: nn.Embedding = self.model.text_model.get_input_embeddings()
        return embeddings

    def _run_text(self, embeddings: Tensor, dropout: TextDropout | None, *, causal: bool) -> Tensor:
        """Last hidden states [B, L, w] of a CLIP or SigLIP text tower, before its final norm.

        transformers' own towers accept ids only, so their pre-norm layers are run one by one.
        """
        text = self.model.text_model
        rate = self.model.config.text_config.attention_dropout
        hidden: Tensor = text.embeddings(inputs_embeds=embeddings)
        return run_layers(text.encoder.layers, hidden, causal, dropout, rate)


def run_layers(
    layers: Iterable[Any],
    hidden: Tensor,
    causal: bool = False,
    dropout: TextDropout | None = None,
    rate: float = 0.0,
    states: list[Tensor] | None = None,
) -> Tensor:
    """What the last layer gives; `states` collects what all of them give."""
    for layer in layers:
        normed = layer.layer_norm1(hidden)
        hidden = hidden + _attend(layer.self_attn, normed, causal, dropout, rate)
        hidden = hidden + layer.mlp(layer.layer_norm2(hidden))
        if states is not None:
            states.append(hidden)
    return hidden


def _attend(
    attention: Any, hidden: Tensor, causal: bool, dropout: TextDropout | None, rate: float
) -> Tensor:
    shape = (*hidden.shape[:2], attention.num_heads, -1)
    query, key, value = (
        projection(hidden).view(shape).transpose(1, 2)  # [B, heads, L, w / heads]
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    mixed = attend(query, key, value, causal=causal, dropout=dropout, rate=rate)
    output: Tensor = attention.out_proj(mixed.transpose(1, 2).reshape(hidden.shape))
    return output


class ClipBackbone(_FamilyBackbone):
    """CLIPModel: class token and end-of-text token, each through its projection.

    Attention in the text tower is causal, so what follows the end of a text changes nothing:
    texts trimmed to the longest of them give exactly the features of padded ones.
    """

    def _encode_pixels(self, pixels: Tensor, *, patches: bool, deep: bool) -> _Encoded:
        vision = self.model.vision_model
        hidden = vision.pre_layrnorm(vision.embeddings(pixels))
        states = [hidden] if deep else None
        # [B, 1 + P, width]
        hidden = run_layers(vision.encoder.layers, hidden, states=states)
        # The head was trained on the class token; it is applied to the patches too.
        projected = self.model.visual_projection(vision.post_layernorm(hidden))
        return projected[:, 0], projected[:, 1:], self._deep(states)

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        text = self.model.text_model
        hidden = self._run_text(embeddings, dropout, causal=True)
        rows = torch.arange(len(hidden), device=hidden.device)
        pooled = text.final_layer_norm(hidden[rows, self._ends(tokens)])
        projected: Tensor = self.model.text_projection(pooled)
        return projected

    def _ends(self, tokens: Tokens) -> Tensor:
        """The position of each text's first end-of-text token, [B]."""
        end = self.model.config.text_config.eos_token_id
        if end == 2:
            # Checkpoints from before 2023 name a wrong id; their end-of-text id is the largest.
            return tokens.ids.masked_fill(~tokens.mask, -1).argmax(dim=1)
        is_end: Tensor = (tokens.ids == end) & tokens.mask
        return is_end.int().argmax(dim=1)

    def check_tokenizer(self, folder: Path) -> None:
        """Refuse a tokenizer that does not end texts as the text tower expects."""
        tokens = self.tokenize(["a photo"])
        if int(self._ends(tokens)) != tokens.ids.shape[1] - 1:
            raise mismatch(
                f"{folder} does not end texts with text_config.eos_token_id of config.json"
            )


class SiglipBackbone(_FamilyBackbone):
    """SiglipModel: attention pooling of the image, last token of the text.

    Texts are padded to the full context and NOT trimmed: the tower was trained that way, without
    a mask. It attends in both directions and takes its feature from the last position, padding
    or not, so a shorter row would give other features. `Tokens.mask` still marks the text.

    There is no projection to share: patches are the normalised final states of the image tower,
    only roughly in the space of the pooled feature, as the pooling head has its own weights.
    The stored `logit_bias` is the same for all classes and cancels in a softmax.
    """

    pads_fully = True
    has_class_token = False

    def _image_sizes(self) -> tuple[int, int]:
        vision = self.model.config.vision_config
        return vision.hidden_size, vision.image_size // vision.patch_size

    def _encode_pixels(self, pixels: Tensor, *, patches: bool, deep: bool) -> _Encoded:
        output = self.model.vision_model(pixel_values=pixels, output_hidden_states=deep)
        return output.pooler_output, output.last_hidden_state, self._deep(output.hidden_states)

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        if embeddings.shape[1] != self.context_length:
            raise BackboneError(
                f"{self.name} takes texts padded to {self.context_length} tokens, not "
                f"{embeddings.shape[1]}.",
                argument="embeddings",
            )
        text = self.model.text_model
        hidden = self._run_text(embeddings, dropout, causal=False)
        pooled: Tensor = text.head(text.final_layer_norm(hidden[:, -1]))
        return pooled
