"""`calibration.json`, whatever it is of: which images it was made with, reading and writing it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ogkd.errors import ConfigError
from ogkd.files import check_seal, read_json, sealed, write_json

CALIBRATION = "calibration.json"
SCHEMA = 1
Share = Annotated[float, Field(ge=0, le=1)]


class CalibrationFile(BaseModel):
    """What was learned from calibration images; no image and no image's name is in it."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA
    weights_sha256: str  # of the model that it belongs to
    engine: str | None = None  # that encoded the images; None: not noted, as in older files
    images: int = Field(ge=2)
    data_sha256: str
    image_keys: tuple[str, ...]  # as in ModelCard.support_images
    image_pixels: tuple[str, ...] = ()  # as in ModelCard.support_pixels

    @property
    def seen(self) -> frozenset[str]:
        """The calibration images by content and by pixels."""
        return frozenset((*self.image_keys, *self.image_pixels))

    @property
    def names(self) -> int:
        """How many classes or findings it is for."""
        raise NotImplementedError

    @classmethod
    def read(cls, path: Path, *, weights_sha256: str | None = None) -> Self | None:
        """Read and check; None if there is no such file. Other weights are refused."""
        try:
            content = read_json(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as error:
            raise _unusable(path, f"is damaged ({error})") from error
        found = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(found, int) and found > SCHEMA:
            raise ConfigError(
                f"{path} was written by a newer ogkd (schema {found}, this one reads up to "
                f"{SCHEMA}). Upgrade with: pip install --upgrade ogkd."
            )
        try:
            check_seal(content if isinstance(content, dict) else {})
        except ValueError as error:
            raise _unusable(path, f"does not match its checksum: {error}, or is damaged") from error
        try:
            calibration = cls.model_validate(content)
        except ValidationError as error:
            problem = error.errors()[0]
            place = ".".join(str(part) for part in problem["loc"]) or "(all)"
            raise _unusable(path, f"is damaged: '{place}' is wrong ({problem['msg']})") from None
        if weights_sha256 not in (None, calibration.weights_sha256):
            raise _unusable(path, "belongs to other weights than those beside it")
        return calibration

    def write(self, path: Path) -> None:
        """Write the file in one step."""
        content: dict[str, Any] = self.model_dump(mode="json")
        write_json(path, sealed(content), ours=True)


def check_share(name: str, value: float) -> None:
    if not 0 < value < 1:  # also refuses a NaN
        raise ConfigError(
            f"{name} is a share between 0 and 1, such as 0.9 or 0.05, but got {value}."
        )


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}. Calibrate again, or delete this file.")
