"""Checkpoints of a run, and the folder that the package loads."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from builtin_vlm.data import INPUT, MEAN, STD
from builtin_vlm.model import Trainee
from builtin_vlm.text import BOS, EOS, MAX_TOKENS, PAD, UNK
from ogkd.files import folder_atomically, write_atomically, write_json, write_text


def save_checkpoint(path: Path, model: Trainee, optimizer: torch.optim.AdamW, step: int) -> None:
    tensors = {f"model.{k}": v.contiguous() for k, v in model.state_dict().items()}
    for i, state in optimizer.state_dict()["state"].items():
        tensors |= {f"adam.{i}.{k}": v.contiguous().clone() for k, v in state.items()}
    with write_atomically(path) as aside:
        save_file(tensors, aside, metadata={"step": str(step)})


def load_checkpoint(path: Path, model: Trainee, optimizer: torch.optim.AdamW) -> int:
    """Put the run back where it was; the number of steps done (0 without a checkpoint)."""
    if not path.exists():
        return 0
    tensors = load_file(path)
    model.load_state_dict(
        {k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")}
    )
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("adam."):
            _, index, key = name.split(".")
            state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict(optimizer.state_dict() | {"state": state})
    with safe_open(path, "pt") as file:
        return int(file.metadata()["step"])


def load_weights(folder: Path, model: Trainee, tokenizer: Tokenizer) -> None:
    """Take the weights of a model that `export` wrote; its helper heads start at random."""
    if Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab() != tokenizer.get_vocab():
        raise SystemExit(
            f"{folder} has another vocabulary than the captions now need, so its text weights do "
            "not fit. Train without --start-from, or use only words of its vocabulary."
        )
    model.clip.load_state_dict(
        {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    )


def export(out: Path, model: Trainee, tokenizer: Tokenizer) -> None:
    """Write the folder that the package loads; the model card beside it is kept."""
    card = out / "MODEL_CARD.md"
    text = card.read_text(encoding="utf-8") if card.exists() else ""
    config = json.loads(model.clip.config.to_json_string(use_diff=True))
    config["architectures"] = ["CLIPModel"]
    weights = {
        k: v.detach().to(torch.float16 if v.is_floating_point() else v.dtype).contiguous()
        for k, v in model.clip.state_dict().items()
    }
    with folder_atomically(out) as aside:
        save_file(weights, aside / "model.safetensors", metadata={"format": "pt"})
        write_json(aside / "config.json", config)
        tokenizer.save(str(aside / "tokenizer.json"))
        write_json(
            aside / "tokenizer_config.json",
            {
                "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": MAX_TOKENS,
                "pad_token": PAD, "unk_token": UNK, "bos_token": BOS, "eos_token": EOS,
            },
        )  # fmt: skip
        write_json(
            aside / "preprocessor_config.json",
            {
                "image_processor_type": "CLIPImageProcessor", "do_convert_rgb": True,
                "do_resize": True, "size": {"shortest_edge": INPUT}, "resample": 3,
                "do_center_crop": True, "crop_size": {"height": INPUT, "width": INPUT},
                "do_rescale": True, "rescale_factor": 1 / 255,
                "do_normalize": True, "image_mean": list(MEAN), "image_std": list(STD),
            },
        )  # fmt: skip
        if text:
            write_text(aside / "MODEL_CARD.md", text)
