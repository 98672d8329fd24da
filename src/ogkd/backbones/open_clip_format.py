"""Checkpoints in open_clip's folder format: a timm ViT and a Hugging Face BERT.

BiomedCLIP and its relatives. Every file is taken from the folder; no name inside a
configuration is ever looked up on the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from ogkd.backbones._bert import TextTower, derive_bert_config, text_table
from ogkd.backbones._folder import backbone_digest, find_weights, read_state
from ogkd.backbones._open_clip_config import (
    BertConfigFile,
    OpenClipConfig,
    PreprocessConfig,
    read_bert_config,
    read_open_clip_config,
    read_timm_config,
)
from ogkd.backbones._tokenizer import Tokenizer, bert_tokenizer
from ogkd.backbones._vit import ImageTower, VisionSpec, vision_spec, vision_table
from ogkd.backbones._weights import assign_weights
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import BackboneError
from ogkd.images.transforms import Preprocessing

_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)
# A table of positions (0, 1, 2, ...) that older versions of transformers saved.
_IGNORED = ("text.transformer.embeddings.position_ids",)


class _Model(nn.Module):
    def __init__(self, spec: VisionSpec, config: OpenClipConfig, bert: BertConfigFile) -> None:
        super().__init__()
        self.image = ImageTower(spec)
        self.text = TextTower(config, bert)
        self.logit_scale = nn.Parameter(torch.empty(()))


class OpenClipBackbone(Backbone):
    """A frozen timm ViT and BERT; see `Backbone` for the contract."""

    leading_tokens = 1  # [CLS]
    trailing_tokens = 1  # [SEP]

    def __init__(
        self,
        model: _Model,
        tokenizer: Tokenizer,
        preprocessing: Preprocessing,
        *,
        name: str,
        digest: str,
        context_length: int,
        device: torch.device,
    ) -> None:
        self._model = model.to(device).eval().requires_grad_(False)
        spec = model.image.spec
        self.name = name
        self.digest = digest
        self.preprocessing = preprocessing
        self.embed_dim = spec.embed_dim
        self.text_width = int(model.text.bert.config.hidden_size)
        self.context_length = context_length
        self.patch_grid = (spec.grid, spec.grid)
        self.logit_scale = float(model.logit_scale.exp())
        self.device = device
        self._tokenizer = tokenizer

    # no_grad, not inference_mode: features must be usable in a loss that is differentiated.
    @torch.no_grad()
    def encode_images(self, pixels: Tensor, *, patches: bool = True) -> ImageFeatures:
        size = self.preprocessing.size
        if pixels.dim() != 4 or tuple(pixels.shape[1:]) != (3, size, size):
            raise BackboneError(
                f"{self.name} takes pixels of shape [B, 3, {size}, {size}] but got "
                f"{list(pixels.shape)}. Prepare them with ogkd.images.transforms.to_pixels(images, "
                "backbone.preprocessing)."
            )
        image, parts = self._model.image(pixels.to(self.device), patches=patches)
        return ImageFeatures(
            globals=functional.normalize(image, dim=-1),
            patches=None if parts is None else functional.normalize(parts, dim=-1),
        )

    def pieces(self, text: str) -> list[int]:
        return self._tokenizer.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        tokens = self._tokenizer.pack(pieces)
        return Tokens(ids=tokens.ids.to(self.device), mask=tokens.mask.to(self.device))

    def embed(self, tokens: Tokens) -> Tensor:
        return self._model.text.bert.embeddings.word_embeddings(tokens.ids)  # type: ignore[no-any-return]

    def encode_text(
        self, embeddings: Tensor, tokens: Tokens, *, dropout: TextDropout | None = None
    ) -> Tensor:
        if embeddings.shape[1] > self.context_length:
            raise BackboneError(
                f"{self.name} reads at most {self.context_length} tokens but got "
                f"{embeddings.shape[1]}. Shorten the texts or the learnable context."
            )
        features: Tensor = self._model.text(embeddings, tokens.mask, dropout)
        return functional.normalize(features, dim=-1)


def load_open_clip(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> OpenClipBackbone:
    """Load a folder with `open_clip_config.json`, a weight file and a tokenizer.

    `weights` replaces the folder's own weight file.
    """
    config, preprocess = read_open_clip_config(folder, name=name)
    timm = read_timm_config(folder, config.vision_cfg, name=name)
    file = weights or find_weights(folder, _WEIGHTS, name=name)
    state = read_state(file, name=name)
    spec = vision_spec(config, timm, state, file=file, name=name)
    bert = read_bert_config(folder, name=name) or derive_bert_config(state, file=file, name=name)
    tokenizer = bert_tokenizer(folder, config.text_cfg, bert, name=name)
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        model = _Model(spec, config, bert)
    table = {
        **vision_table(model.image, "image."),
        **text_table(model.text, "text."),
        "logit_scale": ("logit_scale",),
    }
    # A sigmoid-trained model adds a constant to all logits, which cancels in a softmax.
    ignored = (*_IGNORED, "logit_bias")
    assign_weights(model, state, table, file=file, name=name, ignored=ignored)
    _create_buffers(model)
    record = {
        "vision": asdict(spec),
        "text": bert.model_dump(mode="json"),
        "text_head": config.text_cfg.model_dump(
            mode="json", include={"hf_proj_type", "hf_pooler_type", "context_length"}
        ),
    }
    preprocessing = _preprocessing(preprocess, spec.image_size)
    parts = {
        "model": json.dumps(record, sort_keys=True),
        "preprocessing": json.dumps(asdict(preprocessing), sort_keys=True),
        "tokenizer": tokenizer.digest,
    }
    return OpenClipBackbone(
        model,
        tokenizer,
        preprocessing,
        name=name,
        digest=backbone_digest(file, parts),
        context_length=config.text_cfg.context_length,
        device=device,
    )


def _preprocessing(config: PreprocessConfig, size: int) -> Preprocessing:
    return Preprocessing(
        size=size,
        mean=config.mean,
        std=config.std,
        # "random" is for training; open_clip evaluates with bicubic.
        interpolation="bilinear" if config.interpolation == "bilinear" else "bicubic",
        resize=config.resize_mode,
    )


def _create_buffers(model: nn.Module) -> None:
    """Create BERT's position numbers and segment zeros, which are buffers, not weights."""
    for module in model.modules():
        for key, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                fresh = torch.zeros(buffer.shape, dtype=buffer.dtype)
                if key == "position_ids":
                    fresh = torch.arange(buffer.shape[-1]).expand(buffer.shape)
                module.register_buffer(key, fresh, persistent=False)
