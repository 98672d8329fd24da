"""Checkpoints in open_clip's folder format: a timm ViT and a Hugging Face BERT.

BiomedCLIP and its relatives. Every file is taken from the folder; no name inside a
configuration is ever looked up on the network.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor, nn

from ogkd.backbones._bert import TextTower, derive_bert_config, text_table
from ogkd.backbones._folder import assign_weights, backbone_digest, find_weights, read_weights
from ogkd.backbones._open_clip_config import (
    BertConfigFile,
    OpenClipConfig,
    read_bert_config,
    read_open_clip_config,
    read_timm_config,
)
from ogkd.backbones._tokenizer import bert_tokenizer
from ogkd.backbones._towers import TowersBackbone, deep_parts
from ogkd.backbones._vit import ImageTower, VisionSpec, vision_spec, vision_table
from ogkd.backbones.base import TextDropout, Tokens
from ogkd.images.transforms import Preprocessing

_WEIGHTS = (
    "open_clip_model.safetensors",
    "open_clip_pytorch_model.safetensors",
    "open_clip_pytorch_model.bin",
)
# Positions (0, 1, 2, ...), which older versions of transformers saved; and a constant that a
# sigmoid-trained model adds to all logits, which cancels in a softmax.
_IGNORED = ("text.transformer.embeddings.position_ids", "logit_bias")


class _Model(nn.Module):
    def __init__(self, spec: VisionSpec, config: OpenClipConfig, bert: BertConfigFile) -> None:
        super().__init__()
        self.image = ImageTower(spec)
        self.text = TextTower(config, bert)
        self.logit_scale = nn.Parameter(torch.empty(()))


class OpenClipBackbone(TowersBackbone):
    """A timm ViT and a BERT."""

    model: _Model

    def _image_sizes(self) -> tuple[int, int]:
        return self.model.image.spec.embed_dim, self.model.image.spec.grid

    def _deep_parts(self) -> tuple[int, ...]:
        tower = self.model.image
        depth, width = tower.spec.depth, tower.spec.width
        return deep_parts(depth, width, class_token=tower.has_class_token)

    def _word_embeddings(self) -> nn.Embedding:
        embeddings: nn.Embedding = self.model.text.bert.embeddings.word_embeddings
        return embeddings

    def _encode_pixels(
        self, pixels: Tensor, *, patches: bool, deep: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        features: tuple[Tensor, Tensor | None, Tensor | None]
        features = self.model.image(pixels, patches=patches, deep=deep)
        return features

    def _encode_embeddings(
        self, embeddings: Tensor, tokens: Tokens, dropout: TextDropout | None
    ) -> Tensor:
        features: Tensor = self.model.text(embeddings, tokens.mask, dropout)
        return features


def load_open_clip(
    folder: Path, *, name: str, device: torch.device, weights: Path | None = None
) -> OpenClipBackbone:
    """Load a folder with `open_clip_config.json`, a weight file and a tokenizer.

    `weights` replaces the folder's own weight file.
    """
    config, preprocess = read_open_clip_config(folder)
    stored = read_weights(weights or find_weights(folder, _WEIGHTS))
    spec = vision_spec(config, read_timm_config(folder, config.vision_cfg), stored)
    bert = read_bert_config(folder) or derive_bert_config(stored)
    tokenizer = bert_tokenizer(folder, config.text_cfg, bert)
    with torch.device("meta"):  # saves initialising weights that are replaced at once
        model = _Model(spec, config, bert)
    table = {
        **vision_table(model.image, "image."),
        **text_table(model.text, "text."),
        "logit_scale": ("logit_scale",),
    }
    assign_weights(model, stored, table, ignored=_IGNORED)
    record = {
        "vision": asdict(spec),
        "text": bert.model_dump(mode="json"),
        "text_head": config.text_cfg.model_dump(
            mode="json", include={"hf_proj_type", "hf_pooler_type", "context_length"}
        ),
    }
    preprocessing = Preprocessing(
        size=spec.image_size,
        mean=preprocess.mean,
        std=preprocess.std,
        # "random" is for training; open_clip evaluates with bicubic.
        interpolation="bilinear" if preprocess.interpolation == "bilinear" else "bicubic",
        resize=preprocess.resize_mode,
    )
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
        digest=backbone_digest(stored.file, parts),
        context_length=config.text_cfg.context_length,
        device=device,
    )
