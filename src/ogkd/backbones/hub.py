"""Fetch backbones from the hub into the cache: checked, converted once, complete or absent.

The cache has a folder `<cache>/backbones/NAME` in the model's own format, with its weights as
safetensors and a source.json that says where each file came from and what it hashes to.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import (
    constants,
    get_hf_file_metadata,
    hf_hub_download,
    hf_hub_url,
    try_to_load_from_cache,
)
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    OfflineModeIsEnabled,
)
from safetensors import SafetensorError
from safetensors.torch import save_file

from ogkd.backbones._folder import advising, peek, read_weights
from ogkd.backbones.catalog import FAMILIES, Record, catalog
from ogkd.download import check_space, explain_hub_error, hub_mirror, hub_offline
from ogkd.errors import BackboneError, OgkdError, StorageError
from ogkd.files import (
    alone,
    cache_dir,
    folder_atomically,
    sha256_file,
    storage_errors,
    write_json,
)

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
_SECONDS = 10  # to wait for the hub's first answer
_SHA256 = re.compile("[0-9a-f]{64}")
_MARKER = {"open_clip": "open_clip_config.json", "transformers": "config.json"}


@dataclass(frozen=True)
class FileFacts:
    size: int
    sha256: str | None  # the hub reports it for large files
    cached: bool


class Repository:
    """The files of `record.hub_id` at one commit; without a network, those in the hub's cache."""

    def __init__(self, record: Record, revision: str | None = None) -> None:
        self.record = record
        self.hub_id = str(record.hub_id)
        self.commit: str | None = None
        self.cache = Path(constants.HF_HUB_CACHE)
        self._revision = self._next = revision or "main"
        # Read here, not at import: a program may set them after it has started.
        self._endpoint = hub_mirror() or constants.ENDPOINT
        offline = hub_offline() or constants.HF_HUB_OFFLINE
        self.offline: str | None = "HF_HUB_OFFLINE is set" if offline else None

    def facts(self, name: str) -> FileFacts | None:
        """Size and hash of a file; None if it is not in the repository (offline: in the cache)."""
        if self.offline is None:
            try:
                return self._ask(name)
            except EntryNotFoundError:
                return None
            except (HfHubHTTPError, HFValidationError) as error:
                raise self._translate(error) from error
            except (HTTPError, OfflineModeIsEnabled) as error:
                # A quick request failed, so there is no network: use what is in the cache.
                self.offline = f"the hub cannot be reached ({error})"
        with self._errors():
            path = self._cached(name)
        return None if path is None else FileFacts(path.stat().st_size, None, cached=True)

    def optional(self, name: str) -> Path | None:
        return None if self.facts(name) is None else self.download(name)

    def lacking(self, what: str) -> BackboneError:
        """The error for something that the repository (offline: the cache) does not have."""
        if self.offline:
            name = self.record.name
            return BackboneError(
                f"The weights of {name} are not on this machine, and {self.offline}.\n"
                f"  On a machine with a network run:  ogkd backbones fetch {name}\n"
                f"  Then copy its folder to the same place here:  {self.record.folder}\n"
                "  (OGKD_CACHE moves the cache), or to any other place and give that path as the "
                "backbone.\n"
                "  The built-in model needs no download: give 'builtin' as the backbone."
            )
        return BackboneError(
            f"{self.hub_id} does not have {what} at revision {self._revision}. See its page, "
            f"{self._endpoint}/{self.hub_id}, for what it has."
        )

    def _ask(self, name: str) -> FileFacts:
        revision = self.commit or self._revision
        url = hf_hub_url(self.hub_id, name, revision=revision, endpoint=self._endpoint)
        metadata = get_hf_file_metadata(url, timeout=_SECONDS, endpoint=self._endpoint)
        self.commit = self.commit or metadata.commit_hash
        sha256 = metadata.etag if metadata.etag and _SHA256.fullmatch(metadata.etag) else None
        return FileFacts(metadata.size or 0, sha256, cached=self._cached(name) is not None)

    def _cached(self, name: str) -> Path | None:
        revision = self.commit or self._revision
        path = try_to_load_from_cache(self.hub_id, name, cache_dir=self.cache, revision=revision)
        if not isinstance(path, str):
            return None
        self.commit = self.commit or Path(path).relative_to(self.cache).parts[2]
        return Path(path)

    def download(self, name: str) -> Path:
        # The first file is requested by branch, so that the hub's cache records the branch's
        # commit and can serve it offline later; the others come from exactly that commit.
        revision, self._next = self._next, self.commit or self._revision
        with self._errors(), storage_errors(self.cache):
            path = hf_hub_download(
                self.hub_id,
                name,
                revision=revision,
                cache_dir=self.cache,
                endpoint=self._endpoint,
                local_files_only=self.offline is not None,
            )
        return Path(path)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OgkdError:
            raise
        except Exception as error:  # from HTTP, the file transfer or the operating system
            raise self._translate(error) from error

    def _translate(self, error: BaseException) -> BackboneError:
        page = f"{self._endpoint}/{self.hub_id}"
        return BackboneError(
            explain_hub_error(error, self.hub_id, page=page, revision=self._revision)
        )


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
    files = {name: hub.optional(f"{record.examples}/{name}") for name in names}
    with folder_atomically(target) as aside:
        for name, file in files.items():
            if file is None:
                raise hub.lacking(f"the file {record.examples}/{name}")
            shutil.copyfile(file, aside / name)
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
            for stored in (path.resolve(), path):  # in the hub's cache: it is fetched again
                stored.unlink(missing_ok=True)
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
