"""A folder's tokenizer: texts to ids, and ids to padded rows between special tokens.

`bert_tokenizer` is for the text towers that are a BERT; `folder_tokenizer` takes the tokenizer of a
folder as it is.
"""

from __future__ import annotations

import hashlib
import html
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator
from tokenizers import Tokenizer as Backend
from tokenizers import normalizers
from tokenizers.implementations import BertWordPieceTokenizer
from tokenizers.models import WordPiece

from ogkd.backbones._folder import FileRecord, parse_record, read_json
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

    def __post_init__(self) -> None:
        # Padding and truncation are done here, not by the library.
        self.backend.no_padding()
        self.backend.no_truncation()

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


def clean_text(text: str) -> str:
    """Undo HTML entities and typography, and collapse white space, as open_clip does."""
    text = html.unescape(html.unescape(text)).translate(_PLAIN)
    return " ".join(unicodedata.normalize("NFC", text).split())


def _token_text(value: Any) -> Any:
    # A token is written as its text, or as an object that describes it.
    return value.get("content") if isinstance(value, dict) else value


_Token = Annotated[str, BeforeValidator(_token_text)]


class TokenizerSettings(FileRecord):
    """tokenizer_config.json, over special_tokens_map.json."""

    do_lower_case: bool = True
    strip_accents: bool | None = None
    tokenize_chinese_chars: bool = True
    cls_token: _Token = "[CLS]"
    sep_token: _Token = "[SEP]"
    pad_token: _Token = "[PAD]"
    unk_token: _Token = "[UNK]"


def _read_settings(folder: Path) -> TokenizerSettings:
    raw: dict[str, Any] = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        if (folder / file).is_file():
            raw |= read_json(folder / file)
    # null means that a setting is absent (and for strip_accents, its default).
    raw = {key: value for key, value in raw.items() if value is not None}
    return parse_record(TokenizerSettings, raw, folder / "tokenizer_config.json")


def folder_tokenizer(
    folder: Path, *, rows: int, pad_id: int | None, prepare: Callable[[str], str] = str
) -> Tokenizer:
    """Read the tokenizer.json, or vocab.json and merges.txt, of a transformers folder.

    `rows` is the number of embeddings; `pad_id` is used if the folder names no padding token.
    """
    source, backend = _read_backend(folder, rows)
    settings = _read_settings(folder)
    named = "pad_token" in settings.model_fields_set
    padding = backend.token_to_id(settings.pad_token) if named else None
    if padding is None:
        padding = pad_id if pad_id is not None and 0 <= pad_id < rows else 0
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    tokenizer = Tokenizer(backend, (), (), int(padding), prepare, digest)
    # What the tokenizer itself puts before and after a text.
    bare = backend.encode("a photo", add_special_tokens=False).ids
    full = backend.encode("a photo").ids
    for start in range(len(full) - len(bare) + 1):
        if full[start : start + len(bare)] == bare:
            leading, trailing = full[:start], full[start + len(bare) :]
            return replace(tokenizer, leading=tuple(leading), trailing=tuple(trailing))
    raise BackboneError(f"{folder} changes the ids of a text when it adds its special tokens.")


def bert_tokenizer(
    folder: Path, *, rows: int, prepare: Callable[[str], str] = clean_text
) -> Tokenizer:
    """Build the tokenizer of a folder whose BERT has `rows` embeddings; open_clip cleans texts."""
    settings = _read_settings(folder)
    source, backend = _read_backend(folder, rows, wordpiece=True)
    # The letter case of tokenizer_config.json takes precedence, as in transformers.
    if source.suffix == ".txt" or settings.model_fields_set & {"do_lower_case", "strip_accents"}:
        backend.normalizer = normalizers.BertNormalizer(
            clean_text=True,
            handle_chinese_chars=settings.tokenize_chinese_chars,
            strip_accents=settings.strip_accents,
            lowercase=settings.do_lower_case,
        )
    ids = []
    for role in ("cls", "sep", "pad", "unk"):
        token = getattr(settings, f"{role}_token")
        ids.append(backend.token_to_id(token))
        if ids[-1] is None:
            raise BackboneError(f"{source} has no token {token}, which the text tower needs.")
    used = settings.model_dump_json().encode()
    return Tokenizer(
        backend,
        leading=(ids[0],),
        trailing=(ids[1],),
        pad_id=ids[2],
        prepare=prepare,
        digest=hashlib.sha256(source.read_bytes() + used).hexdigest(),
    )


def _read_backend(folder: Path, rows: int, *, wordpiece: bool = False) -> tuple[Path, Any]:
    """The file of a tokenizer and the tokenizer itself, whose ids fit into `rows` embeddings."""
    names = ("tokenizer.json", "vocab.txt") if wordpiece else ("tokenizer.json", "merges.txt")
    file = next((folder / name for name in names if (folder / name).is_file()), None)
    if file is None:
        raise BackboneError(f"{folder} has no {' and no '.join(names)}.")
    backend: Any
    try:
        if file.suffix == ".json":
            backend = Backend.from_file(str(file))
        elif wordpiece:
            backend = BertWordPieceTokenizer(str(file))._tokenizer
        else:
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            backend = loaded.backend_tokenizer
    except Exception as error:  # tokenizers raises bare Exception
        raise BackboneError(f"The tokenizer {file} cannot be read: {error}.") from error
    if wordpiece and not isinstance(backend.model, WordPiece):
        raise BackboneError(f"{file} is not a WordPiece tokenizer, as BERT has.")
    largest = max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
    if largest >= rows:
        raise BackboneError(
            f"{file} has ids up to {largest}, but the text tower has only {rows} embeddings."
        )
    return file, backend
