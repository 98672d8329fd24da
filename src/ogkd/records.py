"""Records kept as JSON: which version wrote them, and whether they were changed since."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ogkd.errors import ConfigError
from ogkd.files import read_json

Record = TypeVar("Record", bound=BaseModel)


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """The content with a digest of itself, by which `check_seal` notices any change."""
    return {**content, "sha256": _content_sha256(content)}


def check_seal(content: Mapping[str, Any]) -> None:
    """Raise a ValueError if sealed content was changed; what was never sealed passes."""
    if content.get("sha256") not in (None, _content_sha256(content)):
        raise ValueError("it does not match its checksum: it was changed after it was written")


def _content_sha256(content: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_record(path: Path, kind: type[Record], *, newest: int, oldest: int = 0) -> Record:
    """A record from its file; what is wrong with it is a ValueError.

    `oldest` and `newest` are the schemas that this version reads; others are a ConfigError.
    """
    content = read_json(path)
    schema = content.get("schema_version") if isinstance(content, dict) else None
    if schema is not None and not isinstance(schema, int):
        raise ValueError("field 'schema_version': it is not a whole number")
    if schema is not None and schema > newest:
        raise ConfigError(
            f"{path} was written by a newer ogkd (schema {schema}, this one reads up to {newest}). "
            "Upgrade with: pip install --upgrade ogkd."
        )
    if oldest and (schema is None or schema < oldest):
        raise ConfigError(
            f"{path} was written by an older ogkd (schema {schema or 1}, this one reads from "
            f"{oldest} on): fit or calibrate again."
        )
    check_seal(content if isinstance(content, dict) else {})
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from None


def first_problem(error: ValidationError) -> str:
    """The first field that is wrong, and why."""
    problem = error.errors(include_input=False, include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"])
    words = problem["msg"].removeprefix("Value error, ")
    # The names in a damaged file can be anything: on one line, and not long.
    return f"field '{repr(field)[1:-1][:80]}': {words}" if field else words
