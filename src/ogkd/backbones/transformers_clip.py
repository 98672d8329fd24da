"""Folders in transformers' format: CLIP here, SigLIP and dual encoders beside it.

`load_transformers` reads a folder with no network; `ClipBackbone` serves CLIPModel
checkpoints (OpenAI CLIP, PubMedCLIP, PLIP, QuiltNet and the built-in model).
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from ogkd.backbones._model_folder import WEIGHT_FILES, ModelFolder
from ogkd.backbones._transformers_base import TransformersBackbone, run_layers
from ogkd.backbones.base import Backbone, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

__all__ = ["FAMILIES", "WEIGHT_FILES", "ClipBackbone", "load_transformers"]

FAMILIES = ("clip", "siglip", "vision-text-dual-encoder")


def load_transformers(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> Backbone:
    """Load a CLIPModel, SiglipModel or VisionTextDualEncoderModel folder, offline and strictly.

    Without a preprocessor_config.json the usual preprocessing of the family is used: CLIP
    resizes the short side and crops, SigLIP and ViT resize both sides at once.
    """
    source = ModelFolder.open(folder, name=name, device=device, weights=weights)
    family = source.config.get("model_type")
    if family == "clip":
        return _load_clip(source)
    if family == "siglip":
        from ogkd.backbones._siglip import load_siglip

        return load_siglip(source)
    if family == "vision-text-dual-encoder":
        from ogkd.backbones._dual import load_dual

        return load_dual(source)
    raise BackboneError(
        f"{folder / 'config.json'} has model_type {family!r}. ogkd loads {', '.join(FAMILIES)} "
        "and folders in open_clip's format (open_clip_config.json)."
    )


def _load_clip(source: ModelFolder) -> ClipBackbone:
    from transformers import CLIPConfig, CLIPModel

    model = source.model(CLIPConfig, CLIPModel)
    text = model.config.text_config
    backbone = ClipBackbone(
        source,
        model,
        tokenizer=source.tokenizer(
            vocabulary=text.vocab_size,
            pad_id=text.pad_token_id,
        ),
        preprocessing=source.preprocessing(
            Preprocessing(size=model.config.vision_config.image_size)
        ),
        context_length=text.max_position_embeddings,
    )
    backbone.check_tokenizer(source.path)
    return backbone


class ClipBackbone(TransformersBackbone):
    """CLIPModel: class token and end-of-text token, each through its projection.

    Attention in the text tower looks back only, so what follows the end of a text changes
    nothing: texts cut at the longest of them give exactly the features of padded ones.
    """

    def _widths(self) -> tuple[int, int]:
        config = self.model.config
        return config.projection_dim, config.text_config.hidden_size

    def _word_embeddings(self) -> nn.Embedding:
        embeddings: nn.Embedding = self.model.text_model.embeddings.token_embedding
        return embeddings

    def _encode_pixels(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        vision = self.model.vision_model
        hidden = vision(pixel_values=pixels).last_hidden_state  # [B, 1 + P, width]
        # The head was trained on the class token; the same head serves the patches.
        projected = self.model.visual_projection(vision.post_layernorm(hidden))
        return projected[:, 0], projected[:, 1:]

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        text = self.model.text_model
        hidden = run_layers(
            text.encoder.layers,
            text.embeddings(inputs_embeds=embeddings),
            causal=True,
            dropout=dropout,
            rate=self.model.config.text_config.attention_dropout,
        )
        rows = torch.arange(len(hidden), device=hidden.device)
        pooled = text.final_layer_norm(hidden[rows, self._ends(tokens)])
        projected: Tensor = self.model.text_projection(pooled)
        return projected

    def _ends(self, tokens: Tokens) -> Tensor:
        """Where each text ends, [B]: its first end-of-text token."""
        end = self.model.config.text_config.eos_token_id
        if end == 2:
            # Checkpoints of before 2023 name a wrong id; there the end is the largest id.
            return tokens.ids.masked_fill(~tokens.mask, -1).argmax(dim=1)
        is_end: Tensor = (tokens.ids == end) & tokens.mask
        return is_end.int().argmax(dim=1)

    def check_tokenizer(self, folder: Path) -> None:
        """Refuse a tokenizer that does not end a text as the text tower expects."""
        tokens = self.tokenize(["a photo"])
        if int(self._ends(tokens)) != tokens.ids.shape[1] - 1:
            raise BackboneError(
                f"Tokenizer mismatch: the tokenizer in {folder} writes a text as "
                f"{tokens.ids[0].tolist()}, which does not end with the end-of-text id that "
                "config.json names (text_config.eos_token_id). Use the tokenizer files that were "
                "published with the model."
            )
