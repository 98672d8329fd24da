"""A folder's own tokenizer: texts to ids and masks, cut and padded as the model needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer

from ogkd.backbones._open_clip_config import read_json
from ogkd.backbones.base import Tokens
from ogkd.errors import BackboneError

__all__ = ["FolderTokenizer"]


class FolderTokenizer:
    """The tokenizer.json (or vocabulary files) of a model folder.

    Args:
        folder: the model folder.
        name: how the user asked for the model.
        vocabulary: rows of the embedding matrix; an id beyond them is a mismatch.
        pad_id: the id of padding where the folder names no padding token.
        prepare: what the tokenizer's own class does to a text beforehand.

    Attributes:
        leading, trailing: ids of the special tokens before and after each text.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str,
        vocabulary: int,
        pad_id: int = 0,
        prepare: Callable[[str], str] | None = None,
    ) -> None:
        self._engine = _read_tokenizer(folder)
        self._engine.no_padding()
        self._engine.no_truncation()
        self._prepare = prepare
        named = _pad_token(folder, name)
        found = None if named is None else self._engine.token_to_id(named)
        self.pad_id = pad_id if found is None else int(found)
        largest = max(self._engine.get_vocab(with_added_tokens=True).values(), default=-1)
        if largest >= vocabulary:
            raise BackboneError(
                f"Tokenizer mismatch: the tokenizer in {folder} has ids up to {largest}, but the "
                f"embedding matrix has {vocabulary} rows. Use the tokenizer files that were "
                "published with the model."
            )
        self.leading, self.trailing = self._special_tokens(folder)

    def pieces(self, text: str) -> list[int]:
        """Ids of a text, uncut and without special tokens."""
        prepared = self._prepare(text) if self._prepare else text
        return list(self._engine.encode(prepared, add_special_tokens=False).ids)

    def pack(self, pieces: Sequence[Sequence[int]], *, length: int | None = None) -> Tokens:
        """Special tokens around each list, padded to `length` (None: the longest row)."""
        rows = [[*self.leading, *piece, *self.trailing] for piece in pieces]
        columns = max([len(row) for row in rows] + [length or 0])
        ids = torch.full((len(rows), columns), self.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(rows), columns), dtype=torch.bool)
        for index, row in enumerate(rows):
            ids[index, : len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[index, : len(row)] = True
        return Tokens(ids, mask)

    def _special_tokens(self, folder: Path) -> tuple[list[int], list[int]]:
        """What the tokenizer itself puts around a text."""
        bare = self._engine.encode("a photo", add_special_tokens=False).ids
        full = self._engine.encode("a photo").ids
        for start in range(len(full) - len(bare) + 1):
            if full[start : start + len(bare)] == bare:
                return full[:start], full[start + len(bare) :]
        raise BackboneError(
            f"Tokenizer mismatch: the tokenizer in {folder} changes the ids of a text when it adds "
            "its special tokens. Use the tokenizer files that were published with the model."
        )


def _read_tokenizer(folder: Path) -> Tokenizer:
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return Tokenizer.from_file(str(path))
        if (folder / "vocab.txt").is_file() or (folder / "merges.txt").is_file():
            from transformers import AutoTokenizer

            loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
            engine: Tokenizer = loaded.backend_tokenizer
            return engine
    except Exception as error:  # tokenizers raises bare Exception
        raise BackboneError(
            f"The tokenizer in {folder} cannot be read ({error}). Copy or download "
            "tokenizer.json again."
        ) from error
    found = "; spiece.model alone is not enough" if (folder / "spiece.model").is_file() else ""
    raise BackboneError(
        f"{folder} has no tokenizer. Looked for tokenizer.json, vocab.txt, and vocab.json with "
        f"merges.txt{found}. Copy tokenizer.json from where the model was published."
    )


def _pad_token(folder: Path, name: str) -> str | None:
    """The padding token that the folder's tokenizer files name."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        if (folder / file).is_file():
            token = read_json(folder / file, name=name).get("pad_token")
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                return token
    return None
