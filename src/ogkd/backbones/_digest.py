"""One number that says which function a backbone computes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ogkd.errors import BackboneError
from ogkd.files import sha256_file

__all__ = ["backbone_digest"]


def backbone_digest(weights: Path, parts: Mapping[str, str]) -> str:
    """Hash the weight file together with whatever else shapes the output.

    `parts` are named texts or hashes, such as the canonical JSON of the configuration and
    the hash of the tokenizer file; their order does not matter.
    """
    try:
        record = {"weights": sha256_file(weights), "parts": dict(parts)}
    except OSError as error:
        raise BackboneError(
            f"Cannot read {weights}: {error.strerror or error}. Check the path and its permissions."
        ) from error
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
