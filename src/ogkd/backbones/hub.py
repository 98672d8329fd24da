"""Fetch backbones from the hub into the cache: checked, converted once, complete or absent.

The cache has a folder `<cache>/backbones/NAME` in the model's own format, with its weights as
safetensors and a source.json that says where each file came from and what it hashes to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, hf_hub_download, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError
from safetensors.torch import save_file

from ogkd.backbones._folder import FORMAT_HELP, FORMATS, detect_format, peek, read_weights
from ogkd.backbones.catalog import Record, catalog
from ogkd.download import HUB, check_space, hub_offline, mirrored
from ogkd.errors import BackboneError, OgkdError, StorageError
from ogkd.files import (
    cache_dir,
    exclusive_lock,
    folder_atomically,
    sha256_file,
    storage_errors,
    write_json,
)

EXAMPLES = "examples"  # folder of the example images that come with a model
_SOURCE = "source.json"
_WEIGHTS = {
    "open_clip": ("open_clip_model.safetensors", "open_clip_pytorch_model.bin"),
    "transformers": ("model.safetensors", "pytorch_model.bin"),
}
_OPEN_CLIP = "open_clip_config.json"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
)
_SMALL = ("config.json", "preprocessor_config.json", "processor_config.json", *_TOKENIZER)
_SECONDS = 10  # to wait for the hub's first answer
_LOGIN = "log in with `hf auth login`"
# In this order: the first two are kinds of the last.
_REFUSALS = {
    GatedRepoError: f"is gated: accept its terms on its page, then {_LOGIN}",
    RepositoryNotFoundError: f"is not on the hub, or private: check the name, or {_LOGIN}",
    RevisionNotFoundError: "does not have that revision",
    HFValidationError: "is not a valid hub id",
}


@dataclass(frozen=True)
class _Repository:
    """The files of a repository; without a network, those in the hub's cache."""

    hub_id: str
    revision: str
    files: Mapping[str, tuple[int, str | None]]  # size, and the sha256 that the hub reports
    offline: str = ""  # why only the cache is used

    def get(self, name: str) -> Path:
        with _hub_errors(self.hub_id), storage_errors(Path(constants.HF_HUB_CACHE)):
            path = hf_hub_download(
                self.hub_id,
                name,
                revision=self.revision,
                cache_dir=constants.HF_HUB_CACHE,
                endpoint=mirrored(HUB),
                local_files_only=bool(self.offline),
            )
        return Path(path)


@contextlib.contextmanager
def _hub_errors(hub_id: str) -> Iterator[None]:
    try:
        yield
    except OgkdError:
        raise
    except Exception as error:  # from HTTP, the file transfer or the operating system
        reasons = [text for kind, text in _REFUSALS.items() if isinstance(error, kind)]
        reason = reasons[0] if reasons else f"cannot be fetched now ({error})"
        raise BackboneError(
            f"{hub_id} {reason}: {mirrored(HUB)}/{hub_id}", argument="backbone"
        ) from error


def _open_repository(hub_id: str, revision: str) -> _Repository:
    # Read here, not at import: a program may set it after it has started.
    offline = "HF_HUB_OFFLINE is set" if hub_offline() or constants.HF_HUB_OFFLINE else ""
    with _hub_errors(hub_id):
        if not offline:
            try:
                info = HfApi(mirrored(HUB)).model_info(
                    hub_id, revision=revision, timeout=_SECONDS, files_metadata=True
                )
                files = {
                    file.rfilename: (file.size or 0, file.lfs.sha256 if file.lfs else None)
                    for file in info.siblings or ()
                }
                return _Repository(hub_id, revision, files)
            except HfHubHTTPError:
                raise
            except HTTPError as error:
                offline = f"the hub cannot be reached ({error})"
        folder = Path()
        with contextlib.suppress(LocalEntryNotFoundError):
            folder = Path(snapshot_download(hub_id, revision=revision, local_files_only=True))
        paths = [path for path in folder.rglob("*") if path.is_file()] if folder.name else []
        stored = {
            path.relative_to(folder).as_posix(): (path.stat().st_size, None) for path in paths
        }
        return _Repository(hub_id, revision, stored, offline)


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
                f"{path} is missing or incomplete. Delete the folder and fetch the backbone again: "
                f"`ogkd backbones fetch {record.name}`."
            )
    return folder


def present_backbones() -> list[str]:
    """Names in the catalogue whose weights are on this machine, except the built-in model."""
    return [name for name, record in catalog().items() if read_source(record.folder)]


def fetch(record: Record) -> Path:
    """Fetch a backbone, check it, convert it to safetensors, and return its folder."""
    if record.hub_id is None:
        raise BackboneError(f"{record.name} is part of a package: there is nothing to fetch.")
    with exclusive_lock(record.folder):
        if folder := present(record):
            return folder
        hub = _open_repository(record.hub_id, record.revision or "main")
        files = {name: hub.get(name) for name in (_OPEN_CLIP, *_SMALL) if name in hub.files}
        kind: str | None = record.format
        if kind is None and files:
            kind = detect_format(next(iter(files.values())).parent)
        marker = files.get("config.json" if kind == "transformers" else _OPEN_CLIP)
        if kind is None or marker is None:
            raise _lacking(record, hub, f"{_OPEN_CLIP}, or a config.json of {', '.join(FAMILIES)}")
        if kind == "open_clip":
            files |= _text_files(marker, files)
        else:
            files.pop(_OPEN_CLIP, None)
        return _keep(record, kind, marker.parent.name, files, hub)


def _lacking(record: Record, hub: _Repository, what: str) -> BackboneError:
    """The error for something that the repository (offline: the cache) does not have."""
    if not hub.offline:
        return BackboneError(f"{hub.hub_id} has no {what}.", argument="backbone")
    return BackboneError(
        f"The weights of {record.name} are not on this machine, and {hub.offline}. Run `ogkd "
        f"backbones fetch {record.name}` on a machine with a network and copy its folder to "
        f"{record.folder}, or use the built-in model.",
        argument="backbone",
    )


def _text_files(marker: Path, have: Mapping[str, Path]) -> dict[str, Path]:
    """BERT's configuration and tokenizer from the repositories that open_clip's file names."""
    files: dict[str, Path] = {}
    for key, enough, names in (
        ("hf_model_name", {"config.json"}, ("config.json",)),
        ("hf_tokenizer_name", {"tokenizer.json", "vocab.txt"}, _TOKENIZER),
    ):
        hub_id = str(peek(marker, "model_cfg", "text_cfg", key) or "")
        if hub_id.count("/") == 1 and not enough & have.keys():
            # The loader may work without them, and reports what is missing if it cannot.
            with contextlib.suppress(BackboneError):
                hub = _open_repository(hub_id, "main")
                files |= {name: hub.get(name) for name in names if name in hub.files}
    return files


def _get_weights(record: Record, hub: _Repository, kind: str) -> tuple[Path, str]:
    """The weight file in the hub's cache, and its hash."""
    candidates = (record.weights,) if record.weights else _WEIGHTS[kind]
    name = next((name for name in candidates if name in hub.files), None)
    if name is None:
        raise _lacking(record, hub, f"weight file {' or '.join(candidates)}")
    size, announced = hub.files[name]
    # Once in the hub's cache and once, converted, in ours.
    check_space(cache_dir(), 2 * size, what=record.name)
    path = hub.get(name)
    digest = sha256_file(path)
    expected = record.sha256 or announced
    if expected and digest != expected:
        for stored in (path.resolve(), path):  # in the hub's cache: it is fetched again
            stored.unlink(missing_ok=True)
        raise BackboneError(
            f"{name} of {record.hub_id} was deleted: its sha256 is {digest}, not {expected}."
        )
    return path, digest


def _keep(
    record: Record, kind: str, commit: str, files: Mapping[str, Path], hub: _Repository
) -> Path:
    weights, sha256 = _get_weights(record, hub, kind)
    with folder_atomically(record.folder) as aside:
        for name, file in files.items():
            shutil.copyfile(file, aside / name)
        stored = aside / _WEIGHTS[kind][0]
        if weights.suffix == ".safetensors":
            try:
                os.link(weights.resolve(), stored)  # the same bytes, if the file system allows it
            except OSError:
                shutil.copyfile(weights, stored)
        else:
            _convert(weights, stored)
        facts = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(aside.iterdir())
        }
        source = {
            "schema": 1,
            "name": record.name,
            "format": kind,
            "hub_id": record.hub_id,
            "revision": commit,
            "licence": record.licence,
            "original": {"file": weights.name, "sha256": sha256},
            "weights": {"file": stored.name, **facts[stored.name]},
            "files": facts,
        }
        write_json(aside / _SOURCE, source)
        if record.examples:
            (aside / EXAMPLES).mkdir()
            for name in hub.files:
                if name.startswith(f"{record.examples}/"):
                    shutil.copyfile(hub.get(name), aside / EXAMPLES / Path(name).name)
    return record.folder


def _convert(path: Path, target: Path) -> None:
    """Convert a .bin file, read without running code, to safetensors."""
    # Tensors of a .bin may share memory, which safetensors cannot store: copy each.
    stored = read_weights(path).tensors
    tensors = {key: value.detach().clone().contiguous() for key, value in stored.items()}
    try:
        save_file(tensors, target, {"format": "pt"})
    except SafetensorError as error:
        raise StorageError(f"Cannot write {target}: {error}.") from error
