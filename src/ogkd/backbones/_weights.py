"""Weight files to modules: read safely, matched key by key, refused with the key's name."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ogkd.errors import BackboneError

__all__ = ["KeyTable", "assign_weights", "needed_shape", "read_state", "try_again"]

# A key of the file -> the parameters it fills, stacked along their first axis in the file.
KeyTable = Mapping[str, tuple[str, ...]]

_SHOWN = 6  # keys listed in a message before "and N more"


def try_again(name: str) -> str:
    """The next step that every damaged or wrong file has in common."""
    return (
        f'Download it again ("ogkd backbones fetch {name}"), or, if the folder is your own, '
        "copy it again from where it came from."
    )


def read_state(path: Path, *, name: str) -> dict[str, Tensor]:
    """Map a weight file's tensors into memory; nothing in the file is ever executed."""
    if not path.is_file():
        raise BackboneError(f"There is no weight file {path}. {try_again(name)}")
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (
        SafetensorError,
        OSError,
        RuntimeError,
        EOFError,
        ValueError,
        KeyError,
        pickle.UnpicklingError,
    ) as error:
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise BackboneError(
            f"{path} ({path.stat().st_size:,} bytes) is damaged, cut short or not a weight file: "
            f"{reason}. {try_again(name)}"
        ) from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a training checkpoint keeps the weights beside the optimiser
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise BackboneError(f"{path} does not hold a table of named tensors. {try_again(name)}")
    return {key.removeprefix("module."): value for key, value in state.items()}


def needed_shape(
    state: Mapping[str, Tensor], key: str, *, axes: int, file: Path, name: str
) -> tuple[int, ...]:
    """The shape, of `axes` axes, of a tensor that the architecture is read from."""
    if key not in state:
        raise BackboneError(
            f"{file} does not fit its configuration; missing keys: {key}. Is it the weight file of "
            f"another model? {try_again(name)}"
        )
    shape = tuple(state[key].shape)
    if len(shape) != axes or 0 in shape:
        raise BackboneError(
            f"{file} does not fit its configuration; wrong shapes: {key} is {list(shape)}, "
            f"expected {axes} axes. {try_again(name)}"
        )
    return shape


def assign_weights(
    model: nn.Module,
    state: Mapping[str, Tensor],
    table: KeyTable,
    *,
    file: Path,
    name: str,
    ignored: Collection[str] = (),
) -> None:
    """Fill every parameter of `model` from `state` as float32, or say exactly what disagrees."""
    own = dict(model.named_parameters())
    filled = {target for targets in table.values() for target in targets}
    if filled != own.keys():
        # Only another release of the library, with renamed modules, can cause this.
        odd = sorted(filled ^ own.keys())
        raise BackboneError(
            f"The installed transformers names its modules differently ({_some(odd)}). "
            "Install the version that constraints.txt pins."
        )
    _check_keys(own, state, table, file=file, name=name, ignored=ignored)
    new: dict[str, Tensor] = {}
    for key, targets in table.items():
        value = state[key].to(torch.float32)
        sizes = [own[target].shape[0] if own[target].dim() else 1 for target in targets]
        pieces = value.split(sizes) if len(targets) > 1 else (value,)
        for target, piece in zip(targets, pieces, strict=True):
            new[target] = piece.reshape(own[target].shape)
    model.load_state_dict(new, strict=True, assign=True)


def _check_keys(
    own: Mapping[str, Tensor],
    state: Mapping[str, Tensor],
    table: KeyTable,
    *,
    file: Path,
    name: str,
    ignored: Collection[str],
) -> None:
    problems: list[str] = []
    if missing := [key for key in table if key not in state]:
        problems.append(f"missing keys: {_some(missing)}")
    if unexpected := [key for key in state if key not in table and key not in ignored]:
        problems.append(f"unexpected keys: {_some(unexpected)}")
    wrong: list[str] = []
    for key, targets in table.items():
        if key not in state:
            continue
        first = own[targets[0]]
        expected = (sum(own[t].shape[0] for t in targets), *first.shape[1:]) if first.dim() else ()
        found = tuple(state[key].shape)
        same_scalar = expected == () and state[key].numel() == 1
        if (found != expected and not same_scalar) or not state[key].is_floating_point():
            kind = str(state[key].dtype).removeprefix("torch.")
            wrong.append(f"{key} is {list(found)} {kind}, expected {list(expected)}")
    if wrong:
        problems.append(f"wrong shapes: {_some(wrong)}")
    if problems:
        raise BackboneError(
            f"{file} does not fit its configuration; {'; '.join(problems)}. Do the weights and "
            f"open_clip_config.json belong together? {try_again(name)}"
        )


def _some(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
