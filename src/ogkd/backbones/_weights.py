"""Load tensors into a model: every key matched, or an error that names those that differ."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ogkd.backbones._folder import try_again
from ogkd.errors import BackboneError

# A key of the file -> the parameters it fills, stacked along their first axis in the file.
KeyTable = Mapping[str, tuple[str, ...]]

_SHOWN = 8  # keys listed in a message before "and N more"


def needed_shape(
    state: Mapping[str, Tensor], key: str, *, axes: int, file: Path, name: str
) -> tuple[int, ...]:
    """The shape of a tensor that the architecture is derived from; it must have `axes` axes."""
    if key not in state:
        raise _misfit(file, [("missing keys", [key])], name)
    shape = tuple(state[key].shape)
    if len(shape) != axes or 0 in shape:
        raise _misfit(
            file, [("wrong shapes", [f"{key} is {list(shape)}, expected {axes} axes"])], name
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
    problems = [
        ("missing keys", [key for key in table if key not in state]),
        ("unexpected keys", [key for key in state if key not in table and key not in ignored]),
        ("wrong shapes", wrong),
    ]
    if any(keys for _, keys in problems):
        raise _misfit(file, problems, name)
    new: dict[str, Tensor] = {}
    for key, targets in table.items():
        value = state[key].to(torch.float32)
        sizes = [own[target].shape[0] if own[target].dim() else 1 for target in targets]
        pieces = value.split(sizes) if len(targets) > 1 else (value,)
        for target, piece in zip(targets, pieces, strict=True):
            new[target] = piece.reshape(own[target].shape)
    model.load_state_dict(new, strict=True, assign=True)


def load_into_transformers(
    model_class: Any, config: Any, tensors: Mapping[str, Tensor], *, file: Path, name: str
) -> Any:
    """Build `model_class` in float32 from exactly these tensors.

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
                ignore_mismatched_sizes=True,  # so that all of them are reported, below
                output_loading_info=True,
            )
        except Exception as error:  # transformers raises many kinds for a bad configuration
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise BackboneError(
                f"The configuration beside {file} does not describe a {model_class.__name__} "
                f"({reason}). Use the config.json that was published with these weights."
            ) from error
    wrong = [
        f"{key} is {list(stored)}, expected {list(wanted)}"
        for key, stored, wanted in info["mismatched_keys"]
    ]
    problems = [
        ("missing keys", sorted(info["missing_keys"])),
        ("unexpected keys", sorted(info["unexpected_keys"])),
        ("wrong shapes", sorted(wrong)),
    ]
    if any(keys for _, keys in problems):
        raise _misfit(file, problems, name)
    return model


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
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


def _misfit(file: Path, problems: Iterable[tuple[str, list[str]]], name: str) -> BackboneError:
    found = "; ".join(f"{what}: {_some(keys)}" for what, keys in problems if keys)
    return BackboneError(
        f"{file} does not fit its configuration; {found}. Use the configuration that was "
        f"published with these weights. {try_again(name)}"
    )


def _some(items: Collection[str]) -> str:
    shown = list(items)[:_SHOWN]
    more = len(items) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
