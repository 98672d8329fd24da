"""Captions for phantom images: a small grammar over what was drawn.

A caption states facts (pairs such as ("margin", "smooth")). An image agrees with a caption
if all its facts hold for it, so training knows exactly which pairs match, also by chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from builtin_vlm.lexicon import CLASS_WORDS, MODALITY_WORDS, ORGAN_WORDS, PHRASES

Fact = tuple[str, str]

NAME_FRAMES = (
    "a photo of a {c}.",
    "{c}",
    "an image of {c}",
    "a {m} image of {c}.",
    "this is {c}.",
    "{m} showing {c}",
    "a picture of {c} in the {o}",
    "{o}, {m}: {c}.",
    "findings are consistent with {c}",
    "{c} is seen on this {m} of the {o}.",
)
PLACE_FRAMES = (
    "a {m} image of the {o}.",
    "{m} of the {o}",
    "a photo of the {o}.",
    "the {o} on {m}",
    "an image obtained by {m}",
    "{o} {m}",
)
LEADS = (
    "",
    "",
    "there is ",
    "this image shows ",
    "we see ",
    "the picture has ",
    "notable for ",
    "characterized by ",
    "one can see ",
    "visible here: ",
    "it shows ",
    "findings: ",
    "features include ",
)
JOINERS = (", ", " and ", " with ", "; ", ". ", ", also ", " together with ")
TAILS = ("", "", "", ".", ".", " in this image", " on {m}", " of the {o}", " in the {o}.")


@dataclass(frozen=True)
class Described:
    """What captions may say of one image; `named` is False where the class has no public name."""

    dataset: str
    label: int
    modality: str
    organ: str
    facts: tuple[Fact, ...]
    named: bool


def describe(
    dataset: str, label: int, modality: str, organ: str, facts: Sequence[Fact], *, named: bool
) -> Described:
    known = tuple(fact for fact in facts if fact in PHRASES)
    return Described(dataset, label, modality, organ, known, named)


def all_facts(image: Described) -> frozenset[Fact]:
    """Everything that is true of the image, in the terms that captions use."""
    own = {("modality", image.modality), ("organ", image.organ)}
    own.add(("class", f"{image.dataset}/{image.label}"))
    return frozenset(own | set(image.facts))


def write(image: Described, rng: np.random.Generator) -> tuple[str, frozenset[Fact]]:
    """One caption and the facts it states."""
    kind = rng.random()
    has_name = image.named and (image.dataset, image.label) in CLASS_WORDS
    if has_name and kind < 0.16:
        return _named(image, rng)
    if kind < 0.24 or not image.facts:
        frame = _one(PLACE_FRAMES, rng)
        return _fill(frame, image, rng)
    return _attributes(image, rng, mention_name=has_name and kind > 0.95)


def _named(image: Described, rng: np.random.Generator) -> tuple[str, frozenset[Fact]]:
    name = _one(CLASS_WORDS[image.dataset, image.label], rng)
    text, facts = _fill(_one(NAME_FRAMES, rng).replace("{c}", name), image, rng)
    facts |= {("class", f"{image.dataset}/{image.label}")}
    if image.facts and rng.random() < 0.25:
        fact = image.facts[int(rng.integers(len(image.facts)))]
        text = text.rstrip(".") + _one((", ", " with ", ". "), rng) + _one(PHRASES[fact], rng)
        facts |= {fact}
    return text, facts


def _attributes(
    image: Described, rng: np.random.Generator, *, mention_name: bool
) -> tuple[str, frozenset[Fact]]:
    count = min(len(image.facts), int(rng.choice([1, 2, 3, 4], p=[0.32, 0.3, 0.24, 0.14])))
    chosen = [image.facts[i] for i in rng.permutation(len(image.facts))[:count]]
    # A finding says more than its absence: prefer what is there.
    chosen.sort(key=lambda fact: fact[1] in ("none", "absent"))
    parts = [_one(PHRASES[fact], rng) for fact in chosen]
    text = _one(LEADS, rng) + parts[0]
    for part in parts[1:]:
        text += _one(JOINERS, rng) + part
    facts = frozenset(chosen)
    if mention_name:
        text += ", " + _one(("suggesting ", "typical of ", "as in "), rng)
        text += _one(CLASS_WORDS[image.dataset, image.label], rng)
        facts |= {("class", f"{image.dataset}/{image.label}")}
    tail, more = _fill(_one(TAILS, rng), image, rng)
    return text + tail, facts | more


def _fill(text: str, image: Described, rng: np.random.Generator) -> tuple[str, frozenset[Fact]]:
    facts: set[Fact] = set()
    if "{m}" in text:
        facts.add(("modality", image.modality))
        text = text.replace("{m}", _one(MODALITY_WORDS[image.modality], rng))
    if "{o}" in text:
        facts.add(("organ", image.organ))
        text = text.replace("{o}", _one(ORGAN_WORDS[image.organ], rng))
    return text, frozenset(facts)


def _one(options: Sequence[str], rng: np.random.Generator) -> str:
    return options[int(rng.integers(len(options)))]
