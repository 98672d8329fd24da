"""What commands share: options, how their values are read, and which option an error is about."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand, TyperGroup

from ogkd.errors import ConfigError, OgkdError, StorageError

if TYPE_CHECKING:
    from ogkd.features.ray_encode import RayWorkers
    from ogkd.model.classifier import Classifier

# Data
DataArgument = Annotated[
    Path,
    typer.Argument(
        help="Class folders, {train,val,test}/class folders, a CSV, a split JSON, a MedMNIST "
        ".npz, or the name of a downloaded benchmark."
    ),
]
ImagesArgument = Annotated[
    list[Path], typer.Argument(help="Image files, or folders, which are searched recursively.")
]
SplitOption = Annotated[str, typer.Option(help="Which split to use, if the data has splits.")]
RootOption = Annotated[
    Path | None, typer.Option(help="The folder that paths in a split JSON are relative to.")
]
ClassesOption = Annotated[
    str | None,
    typer.Option(help="Class names in label order, separated by commas, if DATA has none."),
]
SliceOption = Annotated[
    str | None,
    typer.Option(
        help="Which slice of a volume or frame of a cine: axis=2,index=middle or index=0."
    ),
]
OnErrorOption = Annotated[
    Literal["stop", "skip"],
    typer.Option(help="Unreadable files: stop and list them, or skip them (see skipped.csv)."),
]

# Models
ModelArgument = Annotated[Path, typer.Argument(help="A folder written by `ogkd fit --out`.")]
ModelOut = Annotated[Path, typer.Option("--out", "-o", help="The model folder to write.")]
BackboneOption = Annotated[
    str, typer.Option("--backbone", "-b", help="A known name, a folder or a hub id.")
]
MovedBackbone = Annotated[
    str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it has moved.")
]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]
EngineOption = Annotated[
    str, typer.Option(help="How images are encoded: torch, or on a CPU onnx or onnx-int8.")
]
EngineOverride = Annotated[
    str | None,
    typer.Option(help="Encode images with another engine than the fit: torch, onnx-int8, ..."),
]
BatchSizeOption = Annotated[int, typer.Option(min=1, help="Images encoded at once.")]

# Evaluations
GradedOption = Annotated[
    bool | None, typer.Option(help="The classes are ordered grades: adds quadratic kappa.")
]
ResamplesOption = Annotated[
    int, typer.Option(min=0, max=100_000, help="Bootstrap resamples; 0 for no intervals.")
]
NamesOption = Annotated[
    bool, typer.Option("--names", help="Show file names and full paths in the report.")
]
ThumbnailsOption = Annotated[
    bool, typer.Option(help="Show small copies of images in the report: mistakes and examples.")
]

# Output
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

# Ray clusters
RayOption = Annotated[bool, typer.Option("--ray", help="Spread the work over a Ray cluster.")]
AddressOption = Annotated[
    str | None, typer.Option(help="Ray cluster: auto or HOST:PORT (default: start one here).")
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Ray workers (default: as many as fit).")
]
CpusOption = Annotated[float, typer.Option(min=0.1, help="CPU cores for each Ray worker.")]
GpusOption = Annotated[float, typer.Option(min=0.0, help="GPUs for each Ray worker: 1, or 0.25.")]


def read_ray(
    ray: bool, address: str | None, workers: int | None, cpus: float, gpus: float
) -> RayWorkers | None:
    """Return the Ray workers to use; None for this process alone."""
    if not ray:
        refuse_ray_options(address, cpus, gpus, workers)
        return None
    from ogkd.features.ray_encode import RayWorkers

    return RayWorkers(address, workers, cpus, gpus)


def refuse_ray_options(
    address: str | None, cpus: float, gpus: float, workers: int | None = None
) -> None:
    """Refuse options that have no effect without --ray."""
    given = {
        "--address": address is not None,
        "--workers": workers is not None,
        "--cpus-per-worker": cpus != 1.0,
        "--gpus-per-worker": gpus != 0.0,
    }
    for option, is_given in given.items():
        if is_given:
            raise ConfigError(f"{option} has no effect without --ray. Add --ray, or leave it out.")


def split_list(text: str) -> list[str]:
    """Split `a, b, c` at its commas; empty parts are dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def read_classes(text: str | None) -> list[str] | None:
    """Split class names at commas. An empty name is kept, so that it is reported as one."""
    return None if text is None else [name.strip() for name in text.split(",")]


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` texts into settings; a value that is not valid JSON is a string."""
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


def require_calibration(classifier: Classifier, **wanted: float | None) -> None:
    """Refuse options that need a calibrated model, before the library does in its own words."""
    for option, value in wanted.items():
        if value is not None and classifier.calibration is None:
            raise ConfigError(
                f"--{option.replace('_', '-')} needs a calibrated model, and this one is not: run "
                "`ogkd calibrate MODEL DATA` with labelled images that it did not learn from."
            )


def refuse_folders(**files: Path | None) -> None:
    """Refuse options that name an existing folder although a file is to be written."""
    for option, file in files.items():
        if file is not None and file.is_dir():
            raise ConfigError(f"--{option} {file} is a folder. Give the name of a file in it.")


def say(note: str) -> None:
    """Print a line on standard error, so that it is kept out of results."""
    typer.echo(note, err=True)


# The library's name of an argument -> the command line's, if they differ.
_OTHER_NAMES = {"class_names": "classes", "show_names": "names", "out": "onnx"}


def with_option(message: str, argument: str, params: Sequence[Any]) -> str | None:
    """Add the option of a library argument to a message; None if there is no such option.

    `params` are those of a command. A message that names the option already stays as it is.
    """
    by_name = {param.name: param for param in params}
    found = by_name.get(argument) or by_name.get(_OTHER_NAMES.get(argument, ""))
    if found is None:
        return None
    if found.param_type_name == "argument":
        kind, shown = "argument", str(found.name).upper()
    else:
        kind, shown = "option", max(found.opts, key=len)
    if re.search(rf"(?<![\w-]){re.escape(shown)}(?![\w-])", message):
        return message
    stop = "." if message.endswith(".") else ""
    return f"{message.removesuffix('.')} ({kind} {shown}){stop}"


def _written_to(message: str, values: Mapping[str, Any]) -> str | None:
    """Return the parameter whose path could not be written; None if it is the cache's."""
    for name, value in values.items():
        for path in (value, value.resolve()) if isinstance(value, Path) else ():
            if re.search(rf"writ(e|ing) {re.escape(str(path))}(?=[/.:])", message):
                return name
    return None


class _NamesOptions:
    """A command or group that adds its option to a library error about an argument."""

    params: list[Any]

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)  # type: ignore[misc]  # the other base class has it
        except OgkdError as error:
            if isinstance(error, StorageError):
                error.argument = _written_to(str(error), ctx.params)
            named = error.argument and with_option(str(error), error.argument, self.params)
            if named:
                error.args, error.argument = (named,), None
            raise


class _Command(_NamesOptions, TyperCommand):
    pass


class _Group(_NamesOptions, TyperGroup):
    pass


class CommandGroup(typer.Typer):
    """Commands under one name; their errors name the option that they are about."""

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(help=help, cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        return super().command(name, cls=_Command, **settings)
