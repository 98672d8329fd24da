"""`calibration.json` of classes or findings: the images it was made with, reading and writing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field

from ogkd.errors import ConfigError
from ogkd.files import write_json
from ogkd.records import read_record, sealed

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
            calibration = read_record(path, cls, newest=SCHEMA)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise _unusable(path, f"is damaged ({error})") from error
        if weights_sha256 not in (None, calibration.weights_sha256):
            raise _unusable(path, "belongs to other weights than those beside it")
        return calibration

    def write(self, path: Path) -> None:
        """Write the file in one step."""
        write_json(path, sealed(self.model_dump(mode="json")), ours=True)


def check_share(name: str, value: float) -> None:
    if not 0 < value < 1:  # also refuses a NaN
        raise ConfigError(
            f"{name} is a share between 0 and 1, such as 0.9 or 0.05, but got {value}."
        )


def _unusable(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} {why}. Calibrate again, or delete this file.")
