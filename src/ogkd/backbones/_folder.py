"""Read the files of a model folder and put weights into a model: all of them, or an error.

No network, and nothing in a file is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ogkd import files
from ogkd.errors import BackboneError, StorageError, out_of_memory
from ogkd.files import sha256_file

# A key of the file -> the parameters it fills, stacked along their first axis in the file.
KeyTable = Mapping[str, tuple[str, ...]]
FAMILIES = ("clip", "siglip")  # model types of the transformers format

_WORTH_REMEMBERING = 2**24  # bytes
_TICK = 2_000_000_000  # nanoseconds: the coarsest clock that a file system has
_SHOWN = 8  # keys listed in a message
_LARGEST = 2_000_000  # number in a configuration: the vocabulary of any known model is smaller
_DAMAGED = (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or say which file is wrong and where."""
    try:
        value = files.read_json(path)
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise BackboneError(f"{path} does not contain a JSON object.")
    return value


def check_sizes(config: Mapping[str, Any], path: Path) -> None:
    """Refuse a configuration of a network that does not exist, before any of it is built."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_sizes(value, path)
        elif isinstance(value, int | float) and value > _LARGEST:
            raise BackboneError(f"{path} has {key} = {value:g}, more than any known model has.")


def peek(path: Path, *keys: str) -> Any:
    """What is under `keys` in a JSON file; None if there is no such thing, or no such file."""
    try:
        value = files.read_json(path)
        for key in keys:
            value = value[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value


def detect_format(folder: Path) -> str | None:
    """The format of the model in a folder; None if it contains no model."""
    config = folder / "open_clip_config.json"
    transformers = peek(folder / "config.json", "model_type") in FAMILIES
    # Some repositories have both; open_clip's own towers can only be read as CLIPModel.
    if config.is_file() and not (
        transformers and peek(config, "model_cfg", "vision_cfg", "timm_model_name") is None
    ):
        return "open_clip"
    return "transformers" if transformers else None


def find_weights(folder: Path, names: Sequence[str]) -> Path:
    """The first of the files `names` that is in `folder`."""
    for file in names:
        if (folder / file).is_file():
            return folder / file
    raise BackboneError(f"{folder} has no weight file {' or '.join(names)}.")


@dataclass(frozen=True)
class Weights:
    """The tensors of a weight file, by their names."""

    file: Path
    tensors: Mapping[str, Tensor]

    def shape(self, key: str, axes: int) -> tuple[int, ...]:
        """The shape of a tensor that the architecture is derived from; it must have `axes` axes."""
        if key not in self.tensors:
            raise _misfit(self.file, missing=[key])
        shape = tuple(self.tensors[key].shape)
        if len(shape) != axes or 0 in shape:
            raise _misfit(self.file, wrong=[f"{key} is {list(shape)}, expected {axes} axes"])
        return shape


def read_weights(path: Path) -> Weights:
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (*_DAMAGED, pickle.UnpicklingError) as error:
        if out_of_memory(error):
            raise MemoryError(str(error)) from error
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise BackboneError(f"{path} cannot be read as a weight file: {reason}.") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a training checkpoint stores the optimiser beside the weights
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise BackboneError(f"{path} is not a table of named tensors.")
    return Weights(path, {key.removeprefix("module."): value for key, value in state.items()})


def backbone_digest(weights: Path, parts: Mapping[str, str]) -> str:
    """Hash the weight file together with everything else that determines the output.

    `parts` are named texts or hashes, such as the canonical JSON of the configuration and
    the hash of the tokenizer file; their order does not matter.
    """
    record = {"weights": _known_sha256(weights), "parts": dict(parts)}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _known_sha256(path: Path) -> str:
    """The SHA-256 of a file, remembered while the file is unchanged.

    Hashing takes longer than encoding an image. A file that was written just now may change again
    within the same tick of its clock, so nothing is remembered about it.
    """
    if path.stat().st_size < _WORTH_REMEMBERING:
        return sha256_file(path)
    address = hashlib.sha256(str(path.resolve()).encode(errors="replace")).hexdigest()
    record = files.cache_dir() / "digests" / f"{address}.json"
    state = _state(path)
    known = str(peek(record, "sha256"))
    if peek(record, "state") == state and re.fullmatch("[0-9a-f]{64}", known):
        return known
    digest = sha256_file(path)
    if _state(path) == state and time.time_ns() - max(state[-2:]) > _TICK:
        with contextlib.suppress(StorageError):  # it costs time, nothing else
            files.write_json(record, {"state": state, "sha256": digest}, ours=True)
    return digest


def _state(path: Path) -> list[int]:
    """What changes with a file's content; the time of the last change cannot be set back."""
    stat = path.stat()
    return [stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns]


def assign_weights(
    model: nn.Module, weights: Weights, table: KeyTable, *, ignored: Collection[str] = ()
) -> None:
    """Fill every parameter of `model` as float32, or say exactly what disagrees."""
    parameters = dict(model.named_parameters())
    state = weights.tensors
    wrong: list[str] = []
    new: dict[str, Tensor] = {}
    for key, targets in table.items():
        if key not in state:
            continue
        tensor = state[key]
        first = parameters[targets[0]]
        sizes = [parameters[target].shape[0] if first.dim() else 1 for target in targets]
        expected = (sum(sizes), *first.shape[1:]) if first.dim() else ()
        same_scalar = expected == () and tensor.numel() == 1
        if (tensor.shape != expected and not same_scalar) or not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            wrong.append(f"{key} is {list(tensor.shape)} {kind}, expected {list(expected)}")
            continue
        value = tensor.to(torch.float32)
        pieces = value.split(sizes) if len(targets) > 1 else (value,)
        for target, piece in zip(targets, pieces, strict=True):
            new[target] = piece.reshape(parameters[target].shape)
    missing = [key for key in table if key not in state]
    unexpected = [key for key in state if key not in table and key not in ignored]
    if missing or unexpected or wrong:
        raise _misfit(weights.file, missing, unexpected, wrong)
    model.load_state_dict(new, strict=True, assign=True)


def load_into_transformers(model_class: Any, config: dict[str, Any], weights: Weights) -> Any:
    """Build `model_class` in float32 from exactly these tensors.

    transformers renames the keys that its own releases have renamed, and skips the stored
    position ids of old checkpoints; every other difference is named in the error.
    """
    with _quiet_transformers():
        try:
            model, info = model_class.from_pretrained(
                None,
                config=model_class.config_class.from_dict(config),
                state_dict=dict(weights.tensors),
                dtype=torch.float32,
                ignore_mismatched_sizes=True,  # so that all of them are reported, below
                output_loading_info=True,
            )
        except Exception as error:  # transformers raises many kinds for a bad configuration
            if out_of_memory(error):
                raise MemoryError(str(error)) from error
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise BackboneError(
                f"The config.json for {weights.file} describes no {model_class.__name__}: {reason}."
            ) from error
    wrong = [
        f"{key} is {list(stored)}, expected {list(wanted)}"
        for key, stored, wanted in info["mismatched_keys"]
    ]
    problems = [sorted(info["missing_keys"]), sorted(info["unexpected_keys"]), sorted(wrong)]
    if any(problems):
        raise _misfit(weights.file, *problems)
    return model


@contextlib.contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence transformers' progress bars, advice and load report: our errors say what is wrong."""
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


def _misfit(
    file: Path,
    missing: Sequence[str] = (),
    unexpected: Sequence[str] = (),
    wrong: Sequence[str] = (),
) -> BackboneError:
    problems = {"missing keys": missing, "unexpected keys": unexpected, "wrong shapes": wrong}
    listed = "; ".join(
        f"{what}: {', '.join(keys[:_SHOWN])}" + (", ..." if len(keys) > _SHOWN else "")
        for what, keys in problems.items()
        if keys
    )
    return BackboneError(f"{file} does not fit its configuration; {listed}.")
