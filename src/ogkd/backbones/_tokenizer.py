"""A folder's tokenizer: texts to ids, and ids to padded rows between special tokens.

`bert_tokenizer` is for open_clip folders, which describe a BERT; `folder_tokenizer` takes the
tokenizer of a transformers folder as it is.
"""

from __future__ import annotations

import hashlib
import html
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.models import WordPiece

from ogkd.backbones._open_clip_config import (
    BertConfigFile,
    TextConfig,
    TokenizerSettings,
    read_tokenizer_settings,
)
from ogkd.backbones.base import Tokens
from ogkd.errors import BackboneError

# Typographic quotes, ligatures and wide letters become plain ones, as in the texts the models
# were trained on (open_clip cleans with ftfy, whose other repairs concern broken encodings).
_PLAIN = dict.fromkeys((0x02BC, 0x2018, 0x2019, 0x201A, 0x201B), "'")
_PLAIN |= dict.fromkeys(range(0x201C, 0x2020), '"')
_PLAIN |= {
    code: unicodedata.normalize("NFKC", chr(code))
    for code in (*range(0xFB00, 0xFB07), *range(0xFF01, 0xFFEF))
}


@dataclass(frozen=True)
class Tokenizer:
    """Turns texts into ids and packs ids into padded rows."""

    backend: Any  # tokenizers.Tokenizer
    leading: tuple[int, ...]  # special tokens before a text
    trailing: tuple[int, ...]  # and after it
    pad_id: int
    prepare: Callable[[str], str]  # applied to a text first
    digest: str = ""

    def pieces(self, text: str) -> list[int]:
        return list(self.backend.encode(self.prepare(text), add_special_tokens=False).ids)

    def pack(self, pieces: Sequence[Sequence[int]], *, length: int = 0) -> Tokens:
        """Put special tokens around each row and pad to the longest, at least to `length`."""
        rows = [[*self.leading, *piece, *self.trailing] for piece in pieces]
        columns = max([len(row) for row in rows] + [length])
        ids = torch.full((len(rows), columns), self.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(rows), columns), dtype=torch.bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[index, : len(row)] = True
        return Tokens(ids, mask)


def mismatch(problem: str) -> BackboneError:
    return BackboneError(f"Tokenizer mismatch: {problem}.")


def clean_text(text: str) -> str:
    """Undo HTML entities and typography, and collapse white space, as open_clip does."""
    text = html.unescape(html.unescape(text)).translate(_PLAIN)
    return " ".join(unicodedata.normalize("NFC", text).split())


def folder_tokenizer(
    folder: Path, *, vocabulary: int, pad_id: int | None, prepare: Callable[[str], str] = str
) -> Tokenizer:
    """Read the tokenizer.json (or vocabulary files) of a transformers folder.

    `vocabulary` is the number of rows of the embedding matrix; `pad_id` is used if the folder
    names no padding token.
    """
    backend = _unbounded(_read_backend(folder))
    _check_vocabulary(backend, vocabulary, folder)
    settings = read_tokenizer_settings(folder)
    named = "pad_token" in settings.model_fields_set
    padding = backend.token_to_id(settings.pad_token) if named else None
    if padding is None:
        padding = pad_id if pad_id is not None and 0 <= pad_id < vocabulary else 0
    return Tokenizer(backend, *_special_tokens(backend, folder), int(padding), prepare)


def bert_tokenizer(folder: Path, text: TextConfig, bert: BertConfigFile) -> Tokenizer:
    """Build the tokenizer of an open_clip folder and check that it fits the text tower."""
    options = dict(text.tokenizer_kwargs or {})
    if options.pop("clean", "whitespace") != "whitespace" or options:
        raise mismatch(f"{folder}: tokenizer_kwargs {text.tokenizer_kwargs} are not supported")
    if text.context_length > bert.max_position_embeddings:
        raise mismatch(
            f"{folder}: context_length {text.context_length} is more than the text tower's "
            f"{bert.max_position_embeddings} positions"
        )
    settings = read_tokenizer_settings(folder)
    source, backend = _wordpiece(folder, settings)
    special = {}
    for role in ("cls", "sep", "pad", "unk"):
        token = getattr(settings, f"{role}_token")
        special[role] = backend.token_to_id(token)
        if special[role] is None:
            raise mismatch(f"{source} has no token {token}, which the text tower needs")
    _check_vocabulary(backend, bert.vocab_size, source)
    if special["pad"] != bert.pad_token_id:
        raise mismatch(
            f"{source} pads with id {special['pad']}, but config.json has pad_token_id "
            f"{bert.pad_token_id}"
        )
    used = settings.model_dump_json().encode()
    return Tokenizer(
        _unbounded(backend),
        leading=(special["cls"],),
        trailing=(special["sep"],),
        pad_id=special["pad"],
        prepare=clean_text,
        digest=hashlib.sha256(source.read_bytes() + used).hexdigest(),
    )


def _unbounded(backend: Any) -> Any:
    """Padding and truncation are done here, not by the library."""
    backend.no_padding()
    backend.no_truncation()
    return backend


def _check_vocabulary(backend: Any, rows: int, source: Path) -> None:
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= rows:
        raise mismatch(
            f"{source} has ids up to {largest}, but the text tower has only {rows} embeddings"
        )


def _special_tokens(backend: Any, folder: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The ids that the tokenizer itself puts before and after a text."""
    bare = backend.encode("a photo", add_special_tokens=False).ids
    full = backend.encode("a photo").ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            return tuple(full[:start]), tuple(full[start + len(bare) :])
    raise mismatch(f"{folder} changes the ids of a text when it adds its special tokens")


def _read_backend(folder: Path) -> Any:
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return Backend.from_file(str(path))
        if (folder / "vocab.txt").is_file() or (folder / "merges.txt").is_file():
            from transformers import AutoTokenizer

            return AutoTokenizer.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # tokenizers raises bare Exception
        raise BackboneError(f"The tokenizer in {folder} cannot be read: {error}.") from error
    raise BackboneError(f"{folder} has no tokenizer.json, no vocab.txt and no merges.txt.")


def _wordpiece(folder: Path, settings: TokenizerSettings) -> tuple[Path, Any]:
    """BERT's tokenizer and the file that it was read from."""
    fast, plain = folder / "tokenizer.json", folder / "vocab.txt"
    file = fast if fast.is_file() else plain
    try:
        if file == fast:
            backend: Any = Backend.from_file(str(fast))
        else:
            backend = BertWordPieceTokenizer(str(plain))._tokenizer
    except Exception as error:  # tokenizers raises bare Exception
        raise BackboneError(f"The tokenizer {file} cannot be read: {error}.") from error
    if not isinstance(backend.model, WordPiece):
        raise mismatch(f"{fast} is not of BERT's kind (WordPiece)")
    # The letter case of tokenizer_config.json takes precedence, as in transformers.
    if file == plain or settings.model_fields_set & {"do_lower_case", "strip_accents"}:
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=settings.tokenize_chinese_chars,
            strip_accents=settings.strip_accents,
            lowercase=settings.do_lower_case,
        )
    return file, backend
