"""Read the files of a model folder and put weights into a model: all of them, or an error.

No network, and nothing in a file is ever executed.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import hashlib
import json
import pickle
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ogkd import files
from ogkd.errors import BackboneError, StorageError, out_of_memory
from ogkd.files import sha256_file

# A key of the file -> the parameters it fills, stacked along their first axis in the file.
KeyTable = Mapping[str, tuple[str, ...]]
# A number in a configuration; the vocabulary of any known model is smaller than the largest.
Size = Annotated[int, Field(gt=0, le=2_000_000)]
Record = TypeVar("Record", bound=BaseModel)

_WORTH_REMEMBERING = 2**24  # bytes
_TICK = 2_000_000_000  # nanoseconds: the coarsest clock that a file system has
_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_SHOWN = 8  # keys listed in a message
# What training checkpoints have beside tensors, such as a loss; nothing of it runs code.
_SCALAR: Any = np.float64(0).__reduce__()[0]
_HARMLESS = [
    *(argparse.Namespace, np.dtype, _SCALAR, (_SCALAR, "numpy.core.multiarray.scalar")),
    *(type(np.dtype(kind)) for kind in ("f4", "f8", "i4", "i8", "?")),
]
_DAMAGED = (SafetensorError, OSError, RuntimeError, EOFError, ValueError, KeyError)


class Format(NamedTuple):
    """A layout of model folders: the value in a JSON file that tells it, and its weight files."""

    marker: str
    keys: tuple[str, ...]
    values: tuple[str, ...]  # any value, if empty
    weights: tuple[str, ...]  # the first one that is there is read


PLAIN_WEIGHTS = ("model.safetensors", "pytorch_model.bin")
# The first one that a folder has counts. Some repositories have two; features in caches and models
# are those of a CLIPModel where there is one beside open_clip's own towers.
FORMATS = {
    "transformers": Format("config.json", ("model_type",), ("clip", "siglip"), PLAIN_WEIGHTS),
    "open_clip": Format(
        "open_clip_config.json",
        ("model_cfg",),
        (),
        (
            "open_clip_model.safetensors",
            "open_clip_pytorch_model.safetensors",
            "open_clip_pytorch_model.bin",
        ),
    ),
    "keep": Format("config.json", ("model_type",), ("keep",), PLAIN_WEIGHTS),
    "biovil": Format("config.json", ("model_type",), ("cxr-bert",), PLAIN_WEIGHTS),
}
FORMAT_HELP = "open_clip_config.json, and no config.json of clip or siglip"
_TIMM = ("model_cfg", "vision_cfg", "timm_model_name")


@cache
def layouts(kind: str) -> dict[str, Any]:
    """The tables of layouts.toml about one format."""
    tables: dict[str, Any] = files.read_toml(Path(__file__).with_name("layouts.toml"))[kind]
    return tables


def tower_keys(kind: str, theirs: str, ours: str) -> dict[str, str]:
    """The names of one kind of tower, below `theirs` in the file and below `ours` in the model."""
    return {
        f"{theirs}.{key}".removeprefix("."): " ".join(f"{ours}.{name}" for name in names.split())
        for key, names in layouts("towers")[kind].items()
    }


class FileRecord(BaseModel):
    """What is read of a JSON file; the rest of the file is ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object, or say which file is wrong and where."""
    try:
        value = files.read_json(path)
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read: {error}.") from error
    if not isinstance(value, dict):
        raise BackboneError(f"{path} does not contain a JSON object.")
    return value


def parse_record(kind: type[Record], raw: Any, path: Path) -> Record:
    """`raw` as a typed record, or say which values of the file are not supported."""
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()[:4]
        )
        raise BackboneError(f"{path} is not supported: {problems}.") from error


def peek(path: Path, *keys: str) -> Any:
    """What is under `keys` in a JSON file; None if there is no such thing, or no such file."""
    try:
        value = files.read_json(path)
        for key in keys:
            value = value[key]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return value


def detect_format(folder: Path, *, complete: bool = True) -> str | None:
    """The format of the model in a folder; None if it contains no model that can be read.

    A folder that is not `complete` has no weights yet, only configurations.
    """
    own = folder / FORMATS["open_clip"].marker
    if peek(own, *_TIMM) is not None:
        return "open_clip"
    for name, kind in FORMATS.items():
        value = peek(folder / kind.marker, *kind.keys)
        has_weights = not complete or any((folder / file).is_file() for file in kind.weights)
        if name == "transformers" and own.is_file() and not has_weights:
            continue
        if value in kind.values if kind.values else value is not None:
            return name
    keys = weight_keys(folder)
    return next((kind for kind, sign in layouts("signatures").items() if sign in keys), None)


def weight_keys(folder: Path) -> set[str]:
    """The names of all tensors in a folder's weight files, as far as they can be read."""
    keys: set[str] = set()
    for path in weight_files(folder) if folder.is_dir() else ():
        with contextlib.suppress(BackboneError):
            keys |= read_weights(path).tensors.keys()
    return keys


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a folder; of two with the same stem the one in safetensors."""
    files = [path for path in folder.iterdir() if path.suffix in _WEIGHTS]
    files.sort(key=lambda path: (path.suffix == ".safetensors", path.name))
    return list({path.stem: path for path in files}.values())


def find_weights(folder: Path, kind: str) -> Path:
    """The weight file of a folder in this format: one of its usual names, or the only one."""
    names = FORMATS[kind].weights
    for name in names:
        if (folder / name).is_file():
            return folder / name
    others = weight_files(folder)
    if kind == "open_clip" and len(others) == 1:
        return others[0]
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

    def count(self, prefix: str) -> int:
        """The number of blocks: one more than the largest number after `prefix`."""
        matches = (re.match(rf"{re.escape(prefix)}\.(\d+)\.", key) for key in self.tensors)
        return max((int(match[1]) for match in matches if match), default=0) + 1


def read_weights(path: Path) -> Weights:
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            with torch.serialization.safe_globals(_HARMLESS):
                state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (*_DAMAGED, pickle.UnpicklingError) as error:
        if out_of_memory(error):
            raise MemoryError(str(error)) from error
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        raise BackboneError(f"{path} cannot be read as a weight file: {reason}.") from error
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]  # a training checkpoint stores the optimiser beside the weights
    if isinstance(state, Tensor):
        state = {path.stem: state}
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise BackboneError(f"{path} is not a table of named tensors.")
    return Weights(path, {key.removeprefix("module."): value for key, value in state.items()})


def save_weights(tensors: Mapping[str, Tensor], target: Path) -> None:
    """Write a weight file; tensors that share memory, which safetensors cannot store, are copied.

    The file says that they are torch's.
    """
    copies = {key: value.detach().clone().contiguous() for key, value in tensors.items()}
    try:
        save_file(copies, target, {"format": "pt"})
    except SafetensorError as error:
        raise StorageError(f"Cannot write {target}: {error}.") from error


def backbone_digest(weights: Path, parts: Mapping[str, str]) -> str:
    """Hash the weight file together with everything else that determines the output.

    `parts` are named texts or hashes, such as the canonical JSON of the configuration and
    the hash of the tokenizer file; their order does not matter.
    """
    record = {"weights": known_sha256(weights), "parts": dict(parts)}
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def known_sha256(path: Path) -> str:
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


def key_table(model: nn.Module, names: Mapping[str, str]) -> KeyTable:
    """Expand `names`, which maps modules or tensors of the file to those of `model`.

    A `*` stands for the number of a block. Several names of the model, separated by spaces, are
    stacked in the file. A module of the model that is absent or has no parameters has no keys.
    """
    table: dict[str, tuple[str, ...]] = {}
    parameters = [name for name, _ in model.named_parameters()]
    for theirs, ours in names.items():
        targets = ours.split()
        start = re.escape(targets[0]).replace(r"\*", r"(?P<number>\d+)")
        pattern = re.compile(rf"{start}(?P<rest>\..+)?")
        for match in filter(None, map(pattern.fullmatch, parameters)):
            number = match.groupdict().get("number", "")
            key, *filled = (
                name.replace("*", number) + (match["rest"] or "") for name in (theirs, *targets)
            )
            key = key.removeprefix(".")  # of a tower without a prefix
            table[key] = tuple(filled)
    return table


class Stored(NamedTuple):
    """How a weight file has the parameters of a model."""

    file: Path
    table: KeyTable
    transposed: Collection[str]


def assign_weights(
    model: nn.Module,
    weights: Weights,
    table: KeyTable,
    *,
    ignored: Sequence[str] = (),
    transposed: Collection[str] = (),
) -> Stored:
    """Fill every parameter of `model` as float32, or say exactly what disagrees.

    `ignored` are patterns of keys that no output depends on; `transposed` are matrices that a file
    has with their inputs first.
    """
    parameters = dict(model.named_parameters())
    state = weights.tensors
    wrong: list[str] = []
    new: dict[str, Tensor] = {}
    for key, targets in table.items():
        if key not in state:
            continue
        shapes = [parameters[target].shape for target in targets]
        pieces = _pieces(state[key], shapes, transposed=key in transposed)
        if isinstance(pieces, str):
            wrong.append(f"{key} is {pieces}")
            continue
        new |= dict(zip(targets, pieces, strict=True))
    missing = [key for key in table if key not in state]
    ignores = re.compile("|".join(map(fnmatch.translate, ignored)) or "(?!)").match
    unexpected = [key for key in state if key not in table and not ignores(key)]
    if missing or unexpected or wrong:
        raise _misfit(weights.file, missing, unexpected, wrong)
    model.load_state_dict(new, strict=True, assign=True)
    return Stored(weights.file, table, transposed)


def _pieces(
    tensor: Tensor, shapes: Sequence[torch.Size], *, transposed: bool
) -> list[Tensor] | str:
    """A stored tensor as parameters of these shapes, one above the other; or what is wrong."""
    expected = list(shapes[0])[:: -1 if transposed else 1]
    if len(shapes) > 1:
        expected[0] = sum(shape[0] for shape in shapes)
    # Axes of length one are a matter of taste: [w] may be stored as [1, 1, w].
    if not tensor.is_floating_point() or _squeezed(tensor.shape) != _squeezed(expected):
        kind = str(tensor.dtype).removeprefix("torch.")
        return f"{list(tensor.shape)} {kind}, expected {expected}"
    value = tensor.to(torch.float32)
    if transposed:
        value = value.T.contiguous()
    pieces = value.split([shape[0] for shape in shapes]) if len(shapes) > 1 else (value,)
    return [piece.reshape(shape) for piece, shape in zip(pieces, shapes, strict=True)]


def _squeezed(shape: Sequence[int]) -> list[int]:
    return [length for length in shape if length != 1]


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
