"""Fetch files of a hub repository through huggingface_hub, with clear error messages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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

from ogkd.backbones.catalog import Record
from ogkd.download import explain_hub_error, hub_mirror, hub_offline
from ogkd.errors import BackboneError, OgkdError
from ogkd.files import storage_errors

_SECONDS = 10  # to wait for the hub's first answer
_SHA256 = re.compile("[0-9a-f]{64}")


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

    def required(self, name: str) -> Path:
        path = self.optional(name)
        if path is None:
            raise self.lacking(f"the file {name}")
        return path

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

    def forget(self, path: Path) -> None:
        """Delete a file from the hub's cache, so that it is fetched again."""
        path.resolve().unlink(missing_ok=True)
        path.unlink(missing_ok=True)

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
