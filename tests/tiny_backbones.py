"""Very small random models in transformers' folder format, made on the spot by the tests."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPModel, SiglipConfig, SiglipModel

WORDS = re.findall(
    r"\S+", "a photo of the scan with benign malignant normal tumor cyst brain kidney lung ."
)
SIZE = 32  # pixels; patches of 8, so a grid of 4 x 4
CONTEXT = 12  # tokens
TEXTS = ["a photo of a benign tumor.", "normal lung", "the brain scan with a malignant cyst"]

_SMALL = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TEXT: dict[str, Any] = {**_SMALL, "hidden_size": 16, "max_position_embeddings": CONTEXT}
_VISION: dict[str, Any] = {**_SMALL, "hidden_size": 24, "image_size": SIZE, "patch_size": 8}


def make_clip(folder: Path, *, legacy: bool = False, dropout: float = 0.0) -> CLIPModel:
    """A CLIPModel; `legacy` names the wrong end-of-text id that old checkpoints have."""
    if legacy:
        vocabulary = write_tokenizer(folder, [*WORDS, "<start>", "<end>"], "<start>", "<end>")
        ends = {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 1}
    else:
        special = ["[PAD]", "[UNK]", "[BOS]", "[EOS]"]
        vocabulary = write_tokenizer(folder, [*special, *WORDS], "[BOS]", "[EOS]")
        ends = {"eos_token_id": 3, "bos_token_id": 2, "pad_token_id": 0}
    config = CLIPConfig(
        text_config={**_TEXT, **ends, "vocab_size": vocabulary, "attention_dropout": dropout},
        vision_config=_VISION,
        projection_dim=20,
    )
    return _write_model(folder, CLIPModel(config))


def make_siglip(folder: Path) -> SiglipModel:
    vocabulary = write_tokenizer(folder, ["[UNK]", "</s>", *WORDS], None, "</s>")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "SiglipTokenizer", "pad_token": {"content": "</s>"}})
    )
    config = SiglipConfig(
        text_config={**_TEXT, "vocab_size": vocabulary, "projection_size": 24},
        vision_config=_VISION,
    )
    return _write_model(folder, SiglipModel(config))


def _write_model(folder: Path, model: Any) -> Any:
    """Random weights large enough that a mistake shows; config and weights go to the folder."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(torch.empty(value.shape).normal_(0.0, 0.3, generator=generator))
            if "norm" in name.lower() and name.endswith("weight"):
                value.add_(1.0)
    model.eval()
    (folder / "config.json").write_text(json.dumps(model.config.to_dict()))
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    return model


def write_tokenizer(folder: Path, words: list[str], first: str | None, last: str) -> int:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = {word: index for index, word in enumerate(words)}
    unknown = "[UNK]" if "[UNK]" in vocabulary else words[-3]
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    around = [token for token in (first, last) if token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join([first or "", "$A", last]).strip(),
        special_tokens=[(token, vocabulary[token]) for token in around],
    )
    # Saved settings of another use; the loader has to put them aside.
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(folder / "tokenizer.json"))
    return len(words)
