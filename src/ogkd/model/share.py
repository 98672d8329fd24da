"""Models on the hub: a folder to it, and a folder from it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ogkd.download import HUB, mirrored
from ogkd.errors import BackboneError, ConfigError
from ogkd.model.calibration import CALIBRATION
from ogkd.model.familiarity import SUPPORT
from ogkd.model.readme import README

if TYPE_CHECKING:
    from ogkd.model.classifier import Classifier

FILES = ("model.json", "weights.safetensors", SUPPORT, CALIBRATION, README)


def push(model: Classifier, hub_id: str, *, private: bool, message: str) -> str:
    """Write the model to a repository on the hub, made if it is absent; its address."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=mirrored(HUB))
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "model")
        try:
            api.create_repo(hub_id, private=private, exist_ok=True)
            commit = api.upload_folder(
                repo_id=hub_id,
                folder_path=Path(folder) / "model",
                allow_patterns=list(FILES),
                commit_message=message,
            )
        except Exception as error:  # from HTTP, a token, or the name
            raise ConfigError(f"{hub_id} cannot be written: {error}", argument="hub_id") from error
    return str(commit.commit_url)


def is_hub_id(name: str | Path) -> bool:
    """Whether a name that is no folder can be one on the hub, "org/name".

    A `Path` is never one: no path of this machine, however misspelt, is sent to the hub.
    """
    parts = str(name).split("/")
    if isinstance(name, Path) or len(parts) != 2 or not all(parts) or parts[0] in ".~":
        return False
    return not Path(name).exists()


def pull(hub_id: str) -> Path:
    """The folder of a model on the hub, in the hub's cache; only files of a model are fetched."""
    from ogkd.backbones.hub import hub_files  # slow to import

    try:
        files = hub_files(hub_id, *FILES)
    except BackboneError as error:
        raise ConfigError(str(error), argument="model") from error
    if FILES[0] not in files:
        raise ConfigError(
            f"{hub_id} is not a folder here, and no model on the hub, or the hub is not reached.",
            argument="model",
        )
    return files[FILES[0]].parent
