"""Measure the built-in model: zero-shot by class name and by description, and linear probes.

    python tools/evaluate_builtin.py

prints the table of MODEL_CARD.md. Its images are of streams that training never draws.
"""

from __future__ import annotations

import argparse
import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from tokenizers import Tokenizer
from torch import Tensor
from transformers import CLIPModel

from builtin_vlm.data import HELD_OUT_CLASSES, HELD_OUT_DATASETS, INPUT, MEAN, STD
from ogkd.data.phantoms import PHANTOMS, render
from ogkd.images.transforms import Preprocessing, to_pixels

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "src" / "ogkd" / "backbones" / "builtin_data"
TEMPLATE = "a photo of a {}."
SEED, TRAIN, TEST = 20, 0, 2
PREP = Preprocessing(size=INPUT, mean=MEAN, std=STD, interpolation="bicubic")
RGB = NDArray[np.uint8]


@lru_cache(maxsize=64)
def _images(name: str, label: int, count: int, seed: int, stream: int) -> tuple[RGB, ...]:
    return tuple(
        render(name, label, seed=seed, index=index, stream=stream).image for index in range(count)
    )


def drawn(name: str, per_class: int, *, seed: int, stream: int) -> tuple[list[RGB], Tensor]:
    """`per_class` images of each class, and their labels."""
    classes = range(len(PHANTOMS[name].class_names))
    images = [x for c in classes for x in _images(name, c, per_class, seed, stream)]
    return images, torch.arange(len(classes)).repeat_interleave(per_class)


@torch.inference_mode()
def image_features(model: CLIPModel, images: list[RGB]) -> Tensor:
    """Image features [N, d], L2-normalised."""
    parts = []
    for start in range(0, len(images), 64):
        pooled = model.vision_model(pixel_values=to_pixels(images[start : start + 64], PREP))
        parts.append(model.visual_projection(pooled.pooler_output))
    return F.normalize(torch.cat(parts), dim=-1)


@torch.inference_mode()
def text_features(model: CLIPModel, tokenizer: Tokenizer, texts: list[str]) -> Tensor:
    """Text features [N, d], L2-normalised; what follows the end token has no influence."""
    ids = torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(texts)])
    pooled = model.text_model(input_ids=ids).pooler_output
    return F.normalize(model.text_projection(pooled), dim=-1)


def class_weights(model: CLIPModel, tokenizer: Tokenizer, name: str, kind: str) -> Tensor:
    """One text feature per class [C, d]: of its name, or the mean of its descriptions."""
    dataset = PHANTOMS[name]
    if kind == "name":
        return text_features(model, tokenizer, [TEMPLATE.format(c) for c in dataset.class_names])
    rows = [text_features(model, tokenizer, list(t)).mean(0) for t in dataset.descriptions]
    return F.normalize(torch.stack(rows), dim=-1)


def zero_shot(
    model: CLIPModel, tokenizer: Tokenizer, name: str, images: Tensor, y: Tensor
) -> list[float]:
    """Accuracy in per cent by class name and by descriptions."""
    row = []
    for kind in ("name", "descriptions"):
        guess = (images @ class_weights(model, tokenizer, name, kind).T).argmax(1)
        row.append(100 * (guess == y).float().mean().item())
    return row


def zero_shot_table(
    model: CLIPModel, tokenizer: Tokenizer, *, per_class: int, stream: int
) -> dict[str, list[float]]:
    """Zero-shot accuracy of every dataset, for the log of the training."""
    table = {}
    for name in PHANTOMS:
        images, labels = drawn(name, per_class, seed=SEED, stream=stream)
        row = zero_shot(model, tokenizer, name, image_features(model, images), labels)
        table[name] = [round(value, 1) for value in row]
    return table


def probe(model: CLIPModel, name: str, shots: int, seed: int, images: Tensor, y: Tensor) -> float:
    """Accuracy in per cent of logistic regression on `shots` images per class."""
    few, labels = drawn(name, shots, seed=100 + seed, stream=TRAIN)
    learner = LogisticRegression(C=10.0, max_iter=5000)
    learner.fit(image_features(model, few).numpy(), labels.numpy())
    return 100 * float(learner.score(images.numpy(), y.numpy()))


def evaluate(folder: Path, per_class: int, shots: int, seeds: int) -> dict[str, dict[str, float]]:
    model = CLIPModel.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = {}
    for name, dataset in PHANTOMS.items():
        pictures, labels = drawn(name, per_class, seed=SEED, stream=TEST)
        images = image_features(model, pictures)
        named, described = zero_shot(model, tokenizer, name, images, labels)
        probes = [probe(model, name, shots, seed, images, labels) for seed in range(seeds)]
        table[name] = {
            "chance": 100 / len(dataset.class_names),
            "name": named,
            "descriptions": described,
            "probe": float(np.mean(probes)),
            "probe_sd": float(np.std(probes, ddof=1)) if seeds > 1 else 0.0,
        }
    return table


def markdown(table: dict[str, dict[str, float]], shots: int) -> str:
    lines = [
        f"| dataset | classes | held out | chance | zero-shot, name | zero-shot, descriptions "
        f"| linear probe, {shots} shots |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in table.items():
        held = (
            "all"
            if name in HELD_OUT_DATASETS
            else ", ".join(c for dataset, c in HELD_OUT_CLASSES if dataset == name)
        )
        lines.append(
            f"| {name} | {len(PHANTOMS[name].class_names)} | {held or 'none'} "
            f"| {row['chance']:.1f} | {row['name']:.1f} | {row['descriptions']:.1f} "
            f"| {row['probe']:.1f} ± {row['probe_sd']:.1f} |"
        )
    mean = {k: np.mean([row[k] for row in table.values()]) for k in next(iter(table.values()))}
    lines.append(
        f"| mean | | | {mean['chance']:.1f} | {mean['name']:.1f} | {mean['descriptions']:.1f} "
        f"| {mean['probe']:.1f} |"
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--per-class", type=int, default=100)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print numbers instead of a table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table = evaluate(options.model, options.per_class, options.shots, options.seeds)
    print(json.dumps(table, indent=2) if options.json else markdown(table, options.shots))


if __name__ == "__main__":
    main()
