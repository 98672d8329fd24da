"""Unfinished training on disk: written atomically, and only resumed by the same training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ogkd.errors import ConfigError
from ogkd.files import write_atomically

_TENSORS = ("contexts", "momentum", "losses", "average")


@dataclass(frozen=True)
class TrainingState:
    """All that the loop needs to resume; randomness is a function of seed and epoch."""

    contexts: Tensor
    momentum: Tensor  # empty before the first step; Adam's two averages are stacked
    epoch: int  # epochs done
    losses: Tensor  # cross-entropy of each epoch and run [epoch, S]
    average: Tensor  # the weighted sum of contexts so far; empty if the last ones are returned


@dataclass(frozen=True)
class Checkpoint:
    """One file; `fingerprint` identifies the training (settings, data, model) it belongs to."""

    path: Path
    fingerprint: str

    def save(self, state: TrainingState) -> None:
        """Replace the file with this state in one step."""
        tensors = {name: getattr(state, name).contiguous() for name in _TENSORS}
        metadata = {"fingerprint": self.fingerprint, "epoch": str(state.epoch)}
        with write_atomically(self.path, ours=True) as aside:
            aside.write_bytes(save(tensors, metadata))  # so that a full disk is an OSError

    def load(self) -> TrainingState | None:
        """Return the saved state, or None if there is none yet."""
        if not self.path.is_file():
            return None
        try:
            with safe_open(self.path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in _TENSORS}
            state = TrainingState(epoch=int(metadata["epoch"]), **tensors)
        except (SafetensorError, OSError, KeyError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"The checkpoint {self.path} is damaged ({error}). Delete it, or restart the "
                "training from the beginning.",
                argument="restart",
            ) from error
        if metadata.get("fingerprint") != self.fingerprint:
            raise ConfigError(
                f"The checkpoint {self.path} belongs to a training with other settings, images or "
                "backbone. Choose another output folder, or discard it and restart.",
                argument="restart",
            )
        return state
