"""Batches of images, captions, and which of them agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from builtin_vlm.captions import Described, Fact, all_facts, write
from builtin_vlm.data import GRID, Pool, crop, normalise
from builtin_vlm.lexicon import PHRASES


@dataclass
class Batch:
    pixels: Tensor
    where: Tensor  # [B, K] part of each kept patch that the finding covers
    kept: Tensor  # [B, K] which patches the model looks at
    ids: Tensor
    mask: Tensor
    agrees: Tensor  # [captions, images] 1 where all that the caption says is true of the image
    labels: list[Tensor]  # per key of facts: value per image, -1 where it does not apply
    stated: list[Tensor]  # the same per caption, -1 where it does not say


class Source:
    """Batches by step number: step k is the same whatever was run before."""

    def __init__(
        self,
        pools: list[Pool],
        tokenizer: Tokenizer,
        seed: int,
        size: int,
        favoured: Sequence[str] = (),
    ) -> None:
        self.pools, self.tokenizer, self.seed, self.size = pools, tokenizer, seed, size
        weights = np.array([4.0 if pool.name in favoured else 1.0 for pool in pools])
        self.chances = weights / weights.sum()
        self.keys = _fact_keys(pools)
        self.columns = {fact: i for i, fact in enumerate(_flat(self.keys))}

    def batch(self, step: int, keep: int = GRID * GRID) -> Batch:
        rng = np.random.default_rng([self.seed, step])
        # Few families per batch: the negatives are then of the same kind, and hard.
        families = rng.choice(len(self.pools), 4, replace=False, p=self.chances)
        views = []
        for place in range(self.size):
            pool = self.pools[families[place % 4]]
            views.append(crop(pool, int(rng.integers(len(pool.images))), rng))
        images = [view[2] for view in views]
        written = [write(image, rng) for image in images]
        texts = [_disturb(text, rng, self.tokenizer) for text, _ in written]
        encoded = self.tokenizer.encode_batch(texts)
        kept = torch.from_numpy(rng.random((self.size, GRID * GRID)).argsort(1)[:, :keep])
        where = torch.from_numpy(np.stack([view[1] for view in views])).flatten(1)
        pixels = torch.from_numpy(np.stack([view[0] for view in views])).permute(0, 3, 1, 2)
        return Batch(
            pixels=normalise(pixels),
            where=where.gather(1, kept),
            kept=kept,
            ids=torch.tensor([e.ids for e in encoded]),
            mask=torch.tensor([e.attention_mask for e in encoded]),
            agrees=self._agreement(images, [facts for _, facts in written]),
            labels=self._labels([all_facts(image) for image in images]),
            stated=self._labels([facts for _, facts in written]),
        )

    def _agreement(self, images: list[Described], said: list[frozenset[Fact]]) -> Tensor:
        true = torch.zeros(len(images), len(self.columns))
        for row, image in enumerate(images):
            true[row, [self.columns[fact] for fact in all_facts(image)]] = 1
        told = torch.zeros(len(said), len(self.columns))
        for row, facts in enumerate(said):
            told[row, [self.columns[fact] for fact in facts]] = 1
        return (told @ true.T >= told.sum(1, keepdim=True) - 0.5).float()

    def _labels(self, told: list[frozenset[Fact]]) -> list[Tensor]:
        known = [dict(facts) for facts in told]
        return [
            torch.tensor([values.index(facts[key]) if key in facts else -1 for facts in known])
            for key, values in self.keys.items()
        ]


def _fact_keys(pools: list[Pool]) -> dict[str, list[str]]:
    values: dict[str, set[str]] = {}
    for key, value in PHRASES:
        values.setdefault(key, set()).add(value)
    for pool in pools:
        for pair in pool.described:
            for key, value in all_facts(pair[0]):
                values.setdefault(key, set()).add(value)
    return {key: sorted(found) for key, found in sorted(values.items())}


def _flat(keys: dict[str, list[str]]) -> list[Fact]:
    return [(key, value) for key, values in keys.items() for value in values]


def _disturb(text: str, rng: np.random.Generator, tokenizer: Tokenizer) -> str:
    """Sometimes put in a word that means nothing here, so that unknown words do little harm."""
    if rng.random() > 0.2:
        return text
    words = text.split(" ")
    for _ in range(int(rng.integers(1, 4))):
        stray = tokenizer.id_to_token(int(rng.integers(4, tokenizer.get_vocab_size())))
        words.insert(int(rng.integers(len(words) + 1)), stray.removeprefix("##"))
    return " ".join(words)
