"""One folder in transformers' format: its files read and checked, no network."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ogkd.backbones._checkpoint import find_weights, load_strictly, quiet_transformers
from ogkd.backbones._digest import backbone_digest
from ogkd.backbones._hf_tokenizer import FolderTokenizer
from ogkd.backbones._open_clip_config import read_json
from ogkd.backbones._preprocessor import read_preprocessing
from ogkd.backbones._weights import read_state
from ogkd.errors import BackboneError
from ogkd.files import sha256_file
from ogkd.images.transforms import Preprocessing

__all__ = ["WEIGHT_FILES", "ModelFolder"]

WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")
_TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "merges.txt")


@dataclass(frozen=True)
class ModelFolder:
    """Where a model is, what its config.json says, and how the user asked for it."""

    path: Path
    name: str
    device: torch.device
    weights: Path
    config: dict[str, Any]

    @classmethod
    def open(
        cls, path: Path, *, name: str, device: torch.device, weights: Path | None = None
    ) -> ModelFolder:
        config = read_json(path / "config.json", name=name)
        return cls(path, name, device, weights or find_weights(path, WEIGHT_FILES), config)

    def model(self, config_class: Any, model_class: Any) -> Any:
        """The model in float32, with exactly the stored weights."""
        try:
            with quiet_transformers():
                config = config_class.from_dict(self.config)
        except Exception as error:  # transformers raises many kinds for a bad configuration
            raise BackboneError(
                f"{self.path / 'config.json'} is not a valid {config_class.__name__} ({error}). "
                "Use the config.json that was published with these weights."
            ) from error
        state = read_state(self.weights, name=self.name)
        return load_strictly(model_class, config, state, source=self.weights)

    def tokenizer(
        self,
        *,
        vocabulary: int,
        pad_id: int | None,
        prepare: Callable[[str], str] | None = None,
    ) -> FolderTokenizer:
        """The folder's tokenizer, checked against the size of the embedding matrix."""
        return FolderTokenizer(
            self.path,
            name=self.name,
            vocabulary=vocabulary,
            pad_id=pad_id if pad_id is not None and 0 <= pad_id < vocabulary else 0,
            prepare=prepare,
        )

    def preprocessing(self, default: Preprocessing) -> Preprocessing:
        """What the folder says of its images, else `default`, the family's own way."""
        return read_preprocessing(self.path, default, name=self.name)

    def digest(self, preprocessing: Preprocessing) -> str:
        """A hash of all that decides the numbers that come out."""
        files = [self.path / name for name in _TOKENIZER_FILES]
        return backbone_digest(
            self.weights,
            {
                "format": "transformers",
                "config": json.dumps(self.config, sort_keys=True),
                "preprocessing": repr(preprocessing),
                **{file.name: sha256_file(file) for file in files if file.is_file()},
            },
        )
