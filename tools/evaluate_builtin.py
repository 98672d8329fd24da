"""Measure the built-in model: zero-shot by class name and by description, and linear probes.

python tools/evaluate_builtin.py --model src/ogkd/backbones/builtin_data
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from tokenizers import Tokenizer
from torch import Tensor
from transformers import CLIPModel

from ogkd.datasets.phantoms import PHANTOMS, render
from ogkd.images.transforms import Preprocessing, to_pixels

TEMPLATE = "a photo of a {}."
SEED = 20


@lru_cache(maxsize=64)
def _images(name: str, label: int, count: int, stream: int) -> tuple[np.ndarray, ...]:
    return tuple(render(name, label, seed=SEED, index=i, stream=stream).image for i in range(count))


@torch.inference_mode()
def image_features(model: CLIPModel, prep: Preprocessing, images: list[np.ndarray]) -> Tensor:
    parts = []
    for start in range(0, len(images), 64):
        pooled = model.vision_model(pixel_values=to_pixels(images[start : start + 64], prep))
        parts.append(model.visual_projection(pooled.pooler_output))
    return F.normalize(torch.cat(parts), dim=-1)


@torch.inference_mode()
def text_features(model: CLIPModel, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    encoded = tokenizer.encode_batch(texts)
    ids = torch.tensor([e.ids for e in encoded])
    mask = torch.tensor([e.attention_mask for e in encoded])
    pooled = model.text_model(input_ids=ids, attention_mask=mask).pooler_output
    return F.normalize(model.text_projection(pooled), dim=-1)


def class_weights(model: CLIPModel, tokenizer: Tokenizer, name: str, kind: str) -> Tensor:
    dataset = PHANTOMS[name]
    if kind == "name":
        return text_features(model, tokenizer, [TEMPLATE.format(c) for c in dataset.class_names])
    rows = [text_features(model, tokenizer, list(t)).mean(0) for t in dataset.descriptions]
    return F.normalize(torch.stack(rows), dim=-1)


def zero_shot_table(
    model: CLIPModel, tokenizer: Tokenizer, *, per_class: int, stream: int
) -> dict[str, list[float]]:
    """Per dataset: accuracy by class name and by description, in per cent."""
    prep = preprocessing()
    table = {}
    for name, dataset in PHANTOMS.items():
        images = [
            x for c in range(len(dataset.class_names)) for x in _images(name, c, per_class, stream)
        ]
        labels = torch.arange(len(dataset.class_names)).repeat_interleave(per_class)
        features = image_features(model, prep, images)
        row = []
        for kind in ("name", "descriptions"):
            if kind == "descriptions" and not all(dataset.descriptions):
                continue
            guess = (features @ class_weights(model, tokenizer, name, kind).T).argmax(1)
            row.append(round(100 * (guess == labels).float().mean().item(), 1))
        table[name] = row
    return table


def preprocessing() -> Preprocessing:
    from train_builtin import INPUT, MEAN, STD

    return Preprocessing(size=INPUT, mean=MEAN, std=STD, interpolation="bicubic")
