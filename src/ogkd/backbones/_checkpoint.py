"""Tensors into a transformers model: all of them, or an error that names those that differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ogkd.errors import BackboneError

__all__ = ["find_weights", "load_strictly", "quiet_transformers"]

_MOST_NAMED = 8


def find_weights(folder: Path, names: Sequence[str]) -> Path:
    """The first of `names` that is in `folder`."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    if shards := sorted(folder.glob("*.index.json")):
        raise BackboneError(
            f"{folder} holds its weights in parts ({shards[0].name}), which ogkd does not read. "
            "Save the model again as one file (transformers: max_shard_size='50GB')."
        )
    raise BackboneError(
        f"{folder} has no weights. Looked for {', '.join(names)}. "
        "Copy the weight file beside the configuration."
    )


def load_strictly(
    model_class: Any, config: Any, tensors: Mapping[str, Tensor], *, source: Path
) -> Any:
    """Build `model_class` in float32 from `tensors`; a key too many, too few or misshapen stops it.

    transformers renames the keys that its own releases have renamed, and skips the stored
    position ids of old checkpoints; every other difference is named in the error.
    """
    with quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                None,
                config=config,
                state_dict=dict(tensors),
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # so that they are all reported, below
                output_loading_info=True,
            )
        except Exception as error:  # transformers raises many kinds for a bad configuration
            raise BackboneError(
                f"The configuration beside {source} does not describe a "
                f"{model_class.__name__} ({_first_line(error)}). Use the config.json that was "
                "published with these weights."
            ) from error
    misshapen = {
        f"{key} is {list(stored)}, expected {list(wanted)}"
        for key, stored, wanted in info["mismatched_keys"]
    }
    problems = [
        f"{what}: {_names(keys)}"
        for what, keys in (
            ("missing keys", info["missing_keys"]),
            ("unexpected keys", info["unexpected_keys"]),
            ("wrong shapes", misshapen),
        )
        if keys
    ]
    if problems:
        raise BackboneError(
            f"{source} does not fit its configuration: {'; '.join(problems)}. "
            "Use the config.json that was published with these weights."
        )
    return model


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bar, no advice, no load report: we say ourselves what is wrong."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _names(keys: Set[str]) -> str:
    shown = sorted(keys)[:_MOST_NAMED]
    more = f" and {len(keys) - len(shown)} more" if len(keys) > len(shown) else ""
    return ", ".join(shown) + more


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
