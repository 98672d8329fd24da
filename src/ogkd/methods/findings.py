"""Several findings in one image: each is a problem of two classes, absent and present.

A method that `takes_findings` fits every finding by itself, on the images where it is known. Which
finding another image shows, or does not, plays no part: sharing a covariance between findings
would hide each from itself (docs/evidence/findings.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from ogkd.errors import ConfigError
from ogkd.methods.base import Method, Support, TextSide
from ogkd.methods.heads import FindingsHead


def fit_findings(method: Method, support: Support, text: TextSide, *, seed: int) -> FindingsHead:
    """Fit every finding on the images where it is known: labels [N, F] are 1, 0 or -1 (unknown).

    Logits are log-odds, with those of the finding among the images learned from: a method takes
    classes to be equally frequent, and a rare finding would be announced far too often.
    """
    if method.trains:
        raise ConfigError(
            f"{method.name} would train a context for each of {len(text.class_names)} findings, "
            "which is not supported: set text to bank or single.",
            argument="settings",
        )
    heads, odds = [], []
    for f in range(len(text.class_names)):
        known = (support.labels[:, f] >= 0).nonzero()[:, 0]
        labels = support.labels[known, f]
        part = replace(support.some(known), labels=labels)
        heads += method.fit([part], _answers(text, f), seeds=[seed])
        present, absent = ((labels == answer).sum() + 1.0 for answer in (1, 0))
        odds.append((present / absent).log())
    return FindingsHead(tuple(heads), torch.stack(odds))


def read_findings(
    method: Method, tensors: Mapping[str, Tensor], text: TextSide, scale: float
) -> FindingsHead:
    """Rebuild the head from its saved tensors; a KeyError names one that is missing."""
    heads = []
    for f in range(len(text.class_names)):
        prefix = f"{f}."
        inner = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        heads.append(method.read_head(inner, _answers(text, f), scale))
    shapes = {head.shape for head in heads}
    prior = tensors["prior"].float()
    if len(shapes) != 1 or shapes.pop()[0] != 2 or prior.shape != (len(heads),):
        raise ValueError(f"heads of shapes {[head.shape for head in heads]}, prior {prior.shape}")
    return FindingsHead(tuple(heads), prior)


def _answers(text: TextSide, f: int) -> TextSide:
    """The texts of one finding: of the classes that it is absent, and that it is present."""
    name = text.class_names[f]
    prompts = (text.absent[f], text.prompts[f]) if text.absent and text.prompts else ()
    return TextSide(text.backbone, (f"no {name}", name), prompts, normal=(0,))
