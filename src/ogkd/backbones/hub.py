"""Fetch backbones from the hub into the cache: checked, converted once, complete or absent.

The cache has a folder `<cache>/backbones/NAME` in the model's own format, with its weights as
safetensors and a source.json that says where each file came from and what it hashes to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from ogkd.backbones._folder import advising, peek, read_weights
from ogkd.backbones._repository import Repository
from ogkd.backbones.catalog import FAMILIES, Record, catalog
from ogkd.download import check_space
from ogkd.errors import BackboneError, StorageError
from ogkd.files import alone, cache_dir, folder_atomically, sha256_file, write_json

_SOURCE = "source.json"
_WEIGHTS = {
    "open_clip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    "transformers": ("model.safetensors", "pytorch_model.bin"),
}
_VOCABULARY = ("vocab.txt", "vocab.json", "merges.txt")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", *_VOCABULARY)
_SMALL = {
    "open_clip": ("config.json", *_TOKENIZER),
    "transformers": ("preprocessor_config.json", "processor_config.json", *_TOKENIZER),
}
_LARGER_DISK = "set OGKD_CACHE (and HF_HOME, for the hub's own cache) to a folder on a larger disk"
_MARKER = {"open_clip": "open_clip_config.json", "transformers": "config.json"}


def examples_folder(record: Record) -> Path:
    return record.folder.with_name(record.folder.name + "-examples")


def read_source(folder: Path) -> dict[str, Any] | None:
    """Read source.json of a fetched folder; None if there is no valid one."""
    path = folder / _SOURCE
    return peek(path) if peek(path, "files") and peek(path, "weights", "file") else None


def present(record: Record) -> Path | None:
    """The folder of a fetched backbone; None if it is absent, an error if it is damaged."""
    folder = record.folder
    source = read_source(folder)
    if source is None:
        return None
    for name, facts in source["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["size"]:
            raise BackboneError(
                f"{path} is missing or incomplete ({facts['size']:,} bytes expected). Delete the "
                f"folder and fetch the backbone again: `ogkd backbones fetch {record.name}`."
            )
    return folder


def present_backbones() -> list[str]:
    """Names in the catalogue whose weights are on this machine, except the built-in model."""
    return [name for name, record in catalog().items() if read_source(record.folder)]


def fetch(record: Record, *, force: bool = False, revision: str | None = None) -> Path:
    """Fetch a backbone, check it, convert it to safetensors, and return its folder."""
    if record.hub_id is None:
        raise BackboneError(f"{record.name} is part of a package: there is nothing to fetch.")
    with alone(record.folder):
        if not force and (folder := present(record)):
            return folder
        hub = Repository(record, revision or record.revision)
        kind, marker = _recognise(record, hub)
        files = [marker, *(path for name in _SMALL[kind] if (path := hub.optional(name)))]
        if kind == "open_clip":
            files += _from_other_repositories(record, marker, {file.name for file in files})
        return _keep(record, hub, kind, files, *_fetch_weights(record, hub, kind))


def fetch_examples(record: Record, names: Sequence[str]) -> Path:
    """Fetch the example images for which the model's publisher gives outputs."""
    target = examples_folder(record)
    if all((target / name).is_file() for name in names):
        return target
    hub = Repository(record, record.revision)
    files = [hub.required(f"{record.examples}/{name}") for name in names]
    with folder_atomically(target) as aside:
        for file in files:
            shutil.copyfile(file, aside / file.name)
    return target


def _recognise(record: Record, hub: Repository) -> tuple[str, Path]:
    """Find the format of the repository and the file that defines it."""
    kinds = [record.format] if record.format else ["transformers", "open_clip"]
    for kind in kinds:
        marker = hub.optional(_MARKER[str(kind)])
        known = record.format or kind == "open_clip"
        if marker and (known or peek(marker, "model_type") in FAMILIES):
            return str(kind), marker
    raise hub.lacking(
        "a model that ogkd can load (open_clip_config.json, or config.json of a CLIPModel, "
        "SiglipModel or VisionTextDualEncoderModel)"
    )


def _from_other_repositories(record: Record, marker: Path, have: set[str]) -> list[Path]:
    """Fetch BERT's configuration and tokenizer from the repositories that open_clip's names."""
    wanted: list[tuple[str, tuple[str, ...]]] = []
    if "config.json" not in have:
        wanted.append(("hf_model_name", ("config.json",)))
    if not {"tokenizer.json", "vocab.txt"} & have:
        wanted.append(("hf_tokenizer_name", _TOKENIZER))
    paths = []
    for key, names in wanted:
        other = str(peek(marker, "model_cfg", "text_cfg", key) or "")
        if other.count("/") == 1:
            hub = Repository(record.model_copy(update={"hub_id": other}))
            # The loader may work without them, and reports what is missing if it cannot.
            with contextlib.suppress(BackboneError):
                paths += [path for name in names if (path := hub.optional(name))]
    return paths


def _fetch_weights(record: Record, hub: Repository, kind: str) -> tuple[Path, str]:
    """The weight file in the hub's cache, and its hash."""
    candidates = (record.weights,) if record.weights else _WEIGHTS[kind]
    for name in candidates:
        facts = hub.facts(name)
        if facts is None:
            continue
        # Once in the hub's cache and once, converted, in ours.
        needs = {hub.cache: 0 if facts.cached else facts.size, cache_dir(): facts.size}
        check_space(needs, what=record.name, remedy=_LARGER_DISK)
        path = hub.download(name)
        digest = sha256_file(path)
        expected = (record.sha256 if name == record.weights else None) or facts.sha256
        if expected and digest != expected:
            hub.forget(path)
            raise BackboneError(
                f"{name} of {record.hub_id} is not the expected file and was deleted.\n"
                f"  expected sha256 {expected}\n  found    sha256 {digest}\n"
                "Try again. If the hash still differs, the publisher has changed the file: compare "
                "the hashes on its page before you trust it."
            )
        return path, digest
    raise hub.lacking(f"a weight file that ogkd reads ({', '.join(candidates)})")


def _keep(
    record: Record, hub: Repository, kind: str, files: Sequence[Path], weights: Path, sha256: str
) -> Path:
    with folder_atomically(record.folder) as aside:
        for file in files:
            shutil.copyfile(file, aside / file.name)
        stored = aside / _WEIGHTS[kind][0]
        if weights.suffix == ".safetensors":
            _link_or_copy(weights, stored)
        else:
            _convert(weights, stored, name=record.name)
        facts = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(aside.iterdir())
        }
        source = {
            "schema": 1,
            "name": record.name,
            "format": kind,
            "hub_id": record.hub_id,
            "revision": hub.commit,
            "licence": record.licence,
            "original": {"file": weights.name, "sha256": sha256},
            "weights": {"file": stored.name, **facts[stored.name]},
            "files": facts,
        }
        write_json(aside / _SOURCE, source)
    return record.folder


def _convert(path: Path, target: Path, *, name: str) -> None:
    """Convert a .bin file, read without running code, to safetensors."""
    # Tensors of a .bin may share memory, which safetensors cannot store: copy each.
    with advising(name):
        stored = read_weights(path).tensors
    tensors = {key: value.detach().clone().contiguous() for key, value in stored.items()}
    try:
        save_file(tensors, target, {"format": "pt"})
    except SafetensorError as error:
        raise StorageError(
            f"Cannot write {target}: {error}. Free some space, or {_LARGER_DISK}."
        ) from error


def _link_or_copy(path: Path, target: Path) -> None:
    """Link to the same bytes if the file system allows it, or else copy them."""
    try:
        os.link(path.resolve(), target)
    except OSError:
        shutil.copyfile(path, target)
