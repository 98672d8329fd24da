"""BERT's tokenizer from a local folder, and open_clip's cleaning of texts before it."""

from __future__ import annotations

import hashlib
import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import WordPiece

from ogkd.backbones._open_clip_config import (
    BertConfigFile,
    TextConfig,
    TokenizerSettings,
    read_tokenizer_settings,
)
from ogkd.backbones._weights import try_again
from ogkd.backbones.base import Tokens
from ogkd.errors import BackboneError

__all__ = ["WordPieceTokenizer", "clean_text", "load_tokenizer"]

# Typographic quotes, ligatures and wide letters become plain ones, as in the texts the models
# were trained on (open_clip cleans with ftfy, whose other repairs concern broken encodings).
_PLAIN = dict.fromkeys((0x02BC, 0x2018, 0x2019, 0x201A, 0x201B), "'")
_PLAIN |= dict.fromkeys(range(0x201C, 0x2020), '"')
_PLAIN |= {
    code: unicodedata.normalize("NFKC", chr(code))
    for code in (*range(0xFB00, 0xFB07), *range(0xFF01, 0xFFEF))
}


def clean_text(text: str) -> str:
    """Undo HTML entities and typography, and make every run of white space one blank."""
    text = html.unescape(html.unescape(text)).translate(_PLAIN)
    return " ".join(unicodedata.normalize("NFC", text).split())


@dataclass(frozen=True)
class WordPieceTokenizer:
    """Texts to ids, and ids to padded rows between a class and a separator token."""

    engine: Any  # tokenizers.Tokenizer
    cls_id: int
    sep_id: int
    pad_id: int
    digest: str

    def pieces(self, text: str) -> list[int]:
        """Ids of a cleaned text, uncut and without special tokens."""
        return list(self.engine.encode(clean_text(text), add_special_tokens=False).ids)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        """[CLS] ids [SEP] in each row, padded to the longest."""
        longest = max(map(len, pieces), default=-2) + 2
        ids = torch.full((len(pieces), longest), self.pad_id, dtype=torch.int64)
        mask = torch.zeros(ids.shape, dtype=torch.bool)
        for row, piece in enumerate(pieces):
            full = [self.cls_id, *piece, self.sep_id]
            ids[row, : len(full)] = torch.tensor(full)
            mask[row, : len(full)] = True
        return Tokens(ids=ids, mask=mask)


def load_tokenizer(
    folder: Path, text: TextConfig, bert: BertConfigFile, *, name: str
) -> WordPieceTokenizer:
    """Build the tokenizer of a folder and prove that it fits the text tower."""
    options = dict(text.tokenizer_kwargs or {})
    if options.pop("clean", "whitespace") != "whitespace" or options:
        raise BackboneError(
            f"{folder / 'open_clip_config.json'}: tokenizer_kwargs {text.tokenizer_kwargs} are not "
            "known here. Only the default cleaning of texts is supported."
        )
    if text.context_length > bert.max_position_embeddings:
        raise BackboneError(
            f"{folder}: context_length {text.context_length} is more than the text tower's "
            f"{bert.max_position_embeddings} positions. Correct open_clip_config.json."
        )
    settings = read_tokenizer_settings(folder, name=name)
    source, engine = _engine(folder, settings, name=name)
    special = {}
    for role in ("cls", "sep", "pad", "unk"):
        token = getattr(settings, f"{role}_token")
        special[role] = engine.token_to_id(token)
        if special[role] is None:
            raise BackboneError(
                f"Tokenizer mismatch: {source} has no token {token}, which the text tower needs. "
                f"{try_again(name)}"
            )
    highest = max(engine.get_vocab(with_added_tokens=True).values())
    if highest >= bert.vocab_size:
        raise BackboneError(
            f"Tokenizer mismatch: {source} goes up to id {highest}, but the text tower has only "
            f"{bert.vocab_size} embeddings. Use the tokenizer that came with the weights."
        )
    if special["pad"] != bert.pad_token_id:
        raise BackboneError(
            f"Tokenizer mismatch: {source} pads with id {special['pad']}, but config.json has "
            f"pad_token_id {bert.pad_token_id}. Use the tokenizer that came with the weights."
        )
    engine.no_padding()
    engine.no_truncation()
    used = settings.model_dump_json().encode()
    digest = hashlib.sha256(source.read_bytes() + used).hexdigest()
    return WordPieceTokenizer(
        engine=engine,
        cls_id=special["cls"],
        sep_id=special["sep"],
        pad_id=special["pad"],
        digest=digest,
    )


def _engine(folder: Path, settings: TokenizerSettings, *, name: str) -> tuple[Path, Any]:
    fast, plain = folder / "tokenizer.json", folder / "vocab.txt"
    try:
        if fast.is_file():
            engine = Tokenizer.from_file(str(fast))
            if not isinstance(engine.model, WordPiece):
                raise BackboneError(
                    f"Tokenizer mismatch: {fast} is not BERT's kind (WordPiece). {try_again(name)}"
                )
            # What tokenizer_config.json says of letter case wins, as it does in transformers.
            if settings.model_fields_set & {"do_lower_case", "strip_accents"}:
                engine.normalizer = _normaliser(settings)
            return fast, engine
        if plain.is_file():
            return plain, _from_vocabulary(plain, settings)
    except BackboneError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        file = fast if fast.is_file() else plain
        raise BackboneError(f"{file} is damaged: {error}. {try_again(name)}") from error
    raise BackboneError(
        f"{folder} has no tokenizer: neither tokenizer.json nor vocab.txt. Nothing is fetched for "
        f"a local folder, so put one of them beside the weights. {try_again(name)}"
    )


def _from_vocabulary(path: Path, settings: TokenizerSettings) -> Any:
    lines = path.read_text(encoding="utf-8").split("\n")
    vocabulary = {line.rstrip("\r"): index for index, line in enumerate(lines) if line.strip()}
    engine = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    engine.normalizer = _normaliser(settings)
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    known = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    engine.add_special_tokens([token for token in known if token in vocabulary])
    return engine


def _normaliser(settings: TokenizerSettings) -> Any:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.tokenize_chinese_chars,
        strip_accents=settings.strip_accents,
        lowercase=settings.do_lower_case,
    )
