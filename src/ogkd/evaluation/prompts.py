"""A prompt bank as a backbone encodes it: which texts are outliers, and how well they classify.

The statistics are the teacher's (`ogkd.core.teacher`); nothing is learned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones.base import Backbone
from ogkd.core.geometry import prototypes
from ogkd.core.teacher import select_prompts, teacher_prototypes
from ogkd.data.case import Dataset, images_of, require_files
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore
from ogkd.prompts.bank import SINGLE, bank_for
from ogkd.prompts.check import Finding

FAR = -2.5  # standard deviations below which a text counts as an outlier
TAU = 1.5  # the selector's width in most of the released settings


@dataclass(frozen=True)
class PromptScore:
    """A text of a class: `z` is low for an outlier, `nearest` is the class it is closest to."""

    class_name: str
    text: str
    tokens: int
    z: float
    nearest: str


def score_prompts(
    backbone: Backbone, bank: Mapping[str, Sequence[str]]
) -> tuple[list[PromptScore], list[Finding]]:
    """Score every text as an outlier or not, and list the problems found.

    s_i = E[c,i]·t with t the mean of the class's other texts, so that a text does not support
    itself; z = (s_i - mean(s)) / std(s) within the class, as the selector standardises.
    """
    names = list(bank)
    room = backbone.context_length - backbone.leading_tokens - backbone.trailing_tokens
    features = _encode(backbone, [bank[name] for name in names])
    T = prototypes(features)  # [C, d]
    # A rule, the share of texts that may break it, a message, and what breaks it.
    rules: tuple[tuple[str, float, str, Callable[[PromptScore], bool]], ...] = (
        ("tokens", 0, f"have more than {room} tokens", lambda row: row.tokens > room),
        ("outlier", 0, f"are {-FAR} std or more from the others", lambda row: row.z < FAR),
        (
            "nearest class",
            0.2,
            "are closer to another class than to their own",
            lambda row: row.nearest != row.class_name,
        ),
    )
    scores: list[PromptScore] = []
    findings: list[Finding] = []
    for c, (name, E) in enumerate(zip(names, features, strict=True)):
        E = normalize(E, dim=-1)  # [N, d]
        rest = normalize(E.sum(dim=0) - E, dim=-1) if len(E) > 1 else T[c : c + 1]
        s = (E * rest).sum(dim=-1)  # [N]
        z = (s - s.mean()) / (s.std() if len(s) > 1 else s * 0).clamp(min=1e-6)
        similarity = E @ T.mT  # [N, C]
        similarity[:, c] = s
        nearest = similarity.argmax(dim=-1).tolist()
        rows = [
            PromptScore(name, text, len(backbone.pieces(text)), round(float(z[i]), 3), names[best])
            for i, (text, best) in enumerate(zip(bank[name], nearest, strict=True))
        ]
        scores += rows
        for rule, share, message, applies in rules:
            texts = tuple(row.text for row in rows if applies(row))
            if len(texts) > share * len(rows):
                message = f"{len(texts)} texts {message}."
                findings.append(Finding("warning", rule, name, message, texts))
    return scores, findings


def zero_shot_accuracy(
    backbone: Backbone,
    bank: Mapping[str, Sequence[str]],
    data: Dataset,
    *,
    splits: Sequence[str] = ("train", "val"),
    select_on: Sequence[str] | None = None,
    tau: float = TAU,
) -> dict[str, Any]:
    """Accuracy with one template, the whole bank, and the texts that the selector keeps.

    The selector (released rule, "batch") uses the images of `select_on` (default: `splits`)
    without their labels, all as one batch. Data without splits is used as a whole.
    """
    names = data.names
    features = _encode(backbone, bank_for(names, bank))
    V, labels = _images(backbone, data, splits)
    y = torch.tensor(labels)
    seen = V if select_on is None else _images(backbone, data, select_on)[0]
    mask = select_prompts(seen, features, tau=tau, selector="batch")
    heads = {
        "single": backbone.encode_texts([SINGLE.replace("{}", name) for name in names]),
        "ensemble": prototypes(features),
        "selective": teacher_prototypes(features, mask),
    }
    accuracy = {
        how: float(((V @ T.mT).argmax(dim=-1) == y).double().mean()) for how, T in heads.items()
    }
    kept = int(mask.sum()) / sum(len(rows) for rows in features)
    return {"images": len(labels), "accuracy": accuracy, "kept": kept, "tau": tau}


def _images(backbone: Backbone, data: Dataset, splits: Sequence[str]) -> tuple[Tensor, list[int]]:
    """Features [N, d] and labels."""
    cases = [case for case in data.cases if not case.split or case.split in splits]
    if not cases:
        raise DataError(
            f"The data has no images in {' or '.join(splits)}, only in {', '.join(data.splits)}.",
            argument="split",
        )
    require_files(cases)
    features = FeatureStore(backbone).get(images_of(cases)).globals[:, 0]
    return features, data.task.labels(data.targets(cases)).tolist()


def _encode(backbone: Backbone, texts: Sequence[Sequence[str]]) -> list[Tensor]:
    flat = backbone.encode_texts([text for row in texts for text in row])
    return list(flat.split([len(row) for row in texts]))
