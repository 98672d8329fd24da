"""Folders of published models with made weights, by the fixtures in `parity/towers`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from made_weights import made_state
from tiny_backbones import WORDS, write_tokenizer

TOWERS = Path(__file__).parent / "parity" / "towers"
CLIP_IDS = torch.tensor([[15, 0, 1, 2, 7, 16], [15, 13, 16, 0, 0, 0]])
BERT_IDS = torch.tensor([[2, 5, 6, 7, 12, 3], [2, 18, 3, 0, 0, 0]])
CONCH_IDS = torch.tensor([[1, 3, 4, 5, 9, 2], [1, 8, 2, 0, 0, 0]])
CASES = {
    **dict.fromkeys(("own_vit", "clip_resnet"), CLIP_IDS),
    **dict.fromkeys(("own_vit_bert", "keep", "flair", "medclip"), BERT_IDS),
    **dict.fromkeys(("biovil", "biovil_t", "pmc_clip"), BERT_IDS),
    "conch": CONCH_IDS,
}


def metadata(name: str) -> dict[str, Any]:
    with safe_open(TOWERS / f"{name}.safetensors", "pt") as file:
        return {key: json.loads(file.metadata()[key]) for key in ("shapes", "config")}


def tower_weights(name: str) -> dict[str, Tensor]:
    state = made_state(metadata(name)["shapes"])
    return {key: torch.from_numpy(value) for key, value in state.items()}


def write_folder(folder: Path, name: str) -> Path:
    """A folder as it is published, with made weights."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tower_weights(name), folder / "model.safetensors")
    for file, content in metadata(name)["config"].items():
        (folder / file).write_text(json.dumps(content))
    if CASES[name] is BERT_IDS:
        special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
        (folder / "vocab.txt").write_text("\n".join([*special, *WORDS]) + "\n")
    elif CASES[name] is CONCH_IDS:
        write_tokenizer(folder, ["<pad>", "<start>", "<end>", *WORDS[:14]], "<start>", "<end>")
    else:
        write_tokenizer(folder, [*WORDS, "<start>", "<end>"], "<start>", "<end>")
    return folder
