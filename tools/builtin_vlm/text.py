"""The built-in model's vocabulary: whole words, pieces of words and single characters.

Built by counting, without training, so that it is the same on every machine.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordPiece

from builtin_vlm import captions, lexicon

PAD, UNK, BOS, EOS = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
MAX_TOKENS = 64
WORDS = Path(__file__).with_name("words.txt")


def build_tokenizer(pieces: int = 1400) -> Tokenizer:
    words = Counter(_words(_texts()))
    characters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    vocabulary = [PAD, UNK, BOS, EOS, *characters]
    vocabulary += [f"##{c}" for c in string.ascii_lowercase + string.digits]
    vocabulary += sorted(word for word in words if len(word) > 1)
    vocabulary += _pieces(words, set(vocabulary), pieces)
    ids = {token: i for i, token in enumerate(dict.fromkeys(vocabulary))}
    tokenizer = Tokenizer(WordPiece(ids, unk_token=UNK, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", special_tokens=[(BOS, ids[BOS]), (EOS, ids[EOS])]
    )
    tokenizer.add_special_tokens([PAD, UNK, BOS, EOS])
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.enable_padding(pad_id=ids[PAD], pad_token=PAD)
    return tokenizer


def _texts() -> Iterable[str]:
    yield WORDS.read_text(encoding="utf-8")
    for group in (captions.NAME_FRAMES, captions.PLACE_FRAMES, captions.LEADS, captions.TAILS):
        yield from group
    for table in (
        lexicon.PHRASES,
        lexicon.CLASS_WORDS,
        lexicon.MODALITY_WORDS,
        lexicon.ORGAN_WORDS,
    ):
        for phrases in table.values():
            yield from phrases


def _words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        yield from re.findall(r"[a-z0-9]+", text.lower())


def _pieces(words: Counter[str], known: set[str], limit: int) -> list[str]:
    """The most frequent beginnings and continuations, longer ones preferred."""
    counts: Counter[str] = Counter()
    for word in words:
        for start in range(len(word)):
            for end in range(start + 2, min(len(word), start + 6) + 1):
                piece = word[start:end] if start == 0 else f"##{word[start:end]}"
                counts[piece] += 1
    scores = {
        p: n * len(p.removeprefix("##")) for p, n in counts.items() if n > 2 and p not in known
    }
    return sorted(scores, key=lambda p: (-scores[p], p))[:limit]
