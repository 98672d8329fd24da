"""The words of the training captions, from lexicon.json.

Facts are shared between datasets: ("shape", "round") has one meaning everywhere, which is
what lets the model read descriptions of datasets that it was never trained on. A class
without an entry in CLASS_WORDS is never named in training, although its images may be used.
"""

from __future__ import annotations

import json
from pathlib import Path

_DATA = json.loads(Path(__file__).with_name("lexicon.json").read_text(encoding="utf-8"))

MODALITY_WORDS: dict[str, list[str]] = _DATA["modalities"]
ORGAN_WORDS: dict[str, list[str]] = _DATA["organs"]
CLASS_WORDS: dict[tuple[str, int], list[str]] = {
    (dataset, int(label)): words
    for dataset, classes in _DATA["classes"].items()
    for label, words in classes.items()
}
PHRASES: dict[tuple[str, str], list[str]] = {
    (key, value): phrases
    for key, values in _DATA["attributes"].items()
    for value, phrases in values.items()
}
