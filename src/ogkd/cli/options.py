"""Options that several commands share, and how `--set key=value` is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ogkd.errors import ConfigError

__all__ = [
    "BackboneOption",
    "ClassesOption",
    "DataArgument",
    "DeviceOption",
    "EngineOption",
    "EngineOverride",
    "ModelArgument",
    "OnErrorOption",
    "RootOption",
    "SliceOption",
    "read_classes",
    "read_settings",
]

BackboneOption = Annotated[
    str, typer.Option("--backbone", "-b", help="A known name, a folder or a hub id.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
EngineOption = Annotated[
    str, typer.Option(help="How images are encoded: torch (float32), int8 or int8-fast (CPU).")
]
EngineOverride = Annotated[
    str | None, typer.Option(help="Encode images in another way than the fit: torch, int8, ...")
]
DataArgument = Annotated[
    Path,
    typer.Argument(
        help="Class folders, {train,val,test}/class folders, a CSV, a split JSON, a MedMNIST "
        ".npz, or the name of a downloaded benchmark."
    ),
]
RootOption = Annotated[
    Path | None, typer.Option(help="The folder that the paths of a split JSON count from.")
]
ClassesOption = Annotated[
    str | None, typer.Option(help="Class names in label order, with commas, where DATA has none.")
]
OnErrorOption = Annotated[
    str,
    typer.Option(help="Unreadable files: stop (all are listed) or skip (noted in skipped.csv)."),
]
SliceOption = Annotated[
    str | None,
    typer.Option(help="The slice of NIfTI volumes and cines: axis=2,index=middle or index=0."),
]
ModelArgument = Annotated[Path, typer.Argument(help="A folder that `ogkd fit --out` made.")]


def read_classes(text: str | None) -> list[str] | None:
    """The class names of `a, b, c`."""
    return None if text is None else [name.strip() for name in text.split(",")]


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` texts into settings; a value is JSON where it can be, else text."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, such as train.epochs=50, but got '{pair}'.")
        try:
            settings[key.strip()] = json.loads(value)
        except ValueError:
            settings[key.strip()] = value
    return settings
