"""VisionTextDualEncoderModel folders: a vision transformer and a BERT-like text tower."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._model_folder import ModelFolder
from ogkd.backbones._transformers_base import TransformersBackbone
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

__all__ = ["DualBackbone", "load_dual"]

_COUNTS_FROM_PADDING = ("roberta", "xlm-roberta", "camembert")


class DualBackbone(TransformersBackbone):
    """VisionTextDualEncoderModel: the pooled output of each tower through its projection.

    Patches go the same way as the class token: through the vision tower's pooling head (a norm
    or a dense layer, whichever it has) and the projection.
    """

    def _widths(self) -> tuple[int, int]:
        config = self.model.config
        return config.projection_dim, config.text_config.hidden_size

    def _word_embeddings(self) -> nn.Embedding:
        embeddings: nn.Embedding = self.model.text_model.get_input_embeddings()
        return embeddings

    def _encode_pixels(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.model.vision_model(pixel_values=pixels).last_hidden_state  # [B, 1 + P, width]
        projected = self.model.visual_projection(_pooling_head(self.model.vision_model, hidden))
        return projected[:, 0], projected[:, 1:]

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        text = self.model.text_model
        if text.config.model_type == "bert":
            from ogkd.backbones._bert import bert_hidden

            hidden = bert_hidden(text, embeddings, tokens.mask, dropout, first_only=True)
            pooled = text.pooler(hidden)
        elif dropout is None:
            output = text(inputs_embeds=embeddings, attention_mask=tokens.mask.long())
            pooled = output.pooler_output
        else:
            raise BackboneError(
                f"Dropout in the text tower is not supported for {text.config.model_type}, only "
                "for bert. Train without it (text dropout off)."
            )
        projected: Tensor = self.model.text_projection(pooled)
        return projected

    def check_towers(self, folder: object) -> None:
        """Refuse towers whose outputs we would read in another way than transformers does."""
        vision, text = self.model.vision_model, self.model.text_model
        size = self.preprocessing.size
        with torch.no_grad():
            image = vision(pixel_values=torch.zeros(1, 3, size, size, device=self.device))
        hidden, pooled = image.last_hidden_state, image.pooler_output
        tokens = 1 + self.patch_grid[0] * self.patch_grid[1]
        if pooled is None or hidden.ndim != 3 or hidden.shape[1] != tokens:
            raise BackboneError(
                f"The vision tower in {folder} ({vision.config.model_type}) is not a transformer "
                f"with one class token and {tokens - 1} patches. ogkd loads vit, clip_vision_model "
                "and dinov2 towers."
            )
        if not torch.allclose(_pooling_head(vision, hidden)[:, 0], pooled, atol=1e-5):
            raise BackboneError(
                f"The vision tower in {folder} ({vision.config.model_type}) pools its tokens in a "
                "way that ogkd does not know. ogkd loads vit, clip_vision_model and dinov2 towers."
            )
        if getattr(text, "pooler", None) is None:
            raise BackboneError(
                f"The text tower in {folder} ({text.config.model_type}) has no pooler. "
                "ogkd loads bert and its kin (roberta, ...)."
            )


def _pooling_head(vision: Any, hidden: Tensor) -> Tensor:
    """What the tower does to its class token before the projection, done to every token."""
    if hasattr(vision, "post_layernorm"):  # CLIP
        normed: Tensor = vision.post_layernorm(hidden)
        return normed
    if (pooler := getattr(vision, "pooler", None)) is not None:  # ViT
        dense: Tensor = pooler.activation(pooler.dense(hidden))
        return dense
    return hidden  # DINOv2: the last norm is already done


def load_dual(source: ModelFolder) -> DualBackbone:
    """Read a VisionTextDualEncoderModel folder."""
    from transformers import VisionTextDualEncoderConfig, VisionTextDualEncoderModel

    model = source.model(VisionTextDualEncoderConfig, VisionTextDualEncoderModel)
    text, vision = model.config.text_config, model.config.vision_config
    half = (0.5, 0.5, 0.5)
    default = Preprocessing(size=vision.image_size)
    if vision.model_type == "vit":
        default = Preprocessing(
            vision.image_size, mean=half, std=half, interpolation="bilinear", resize="squash"
        )
    backbone = DualBackbone(
        source,
        model,
        tokenizer=source.tokenizer(
            vocabulary=text.vocab_size,
            pad_id=text.pad_token_id,
        ),
        preprocessing=source.preprocessing(default),
        context_length=_context_length(text),
    )
    backbone.check_towers(source.path)
    return backbone


def _context_length(text: Any) -> int:
    """Positions that a text can use; RoBERTa and its kin count from behind the padding id."""
    positions: int = text.max_position_embeddings
    behind: int = text.pad_token_id + 1 if text.model_type in _COUNTS_FROM_PADDING else 0
    return positions - behind
