"""What commands share: options, how their values are read, and which option an error is about."""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from ogkd.errors import ConfigError, OgkdError, StorageError
from ogkd.files import resolved
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.backbones import Backbone
    from ogkd.datasets.bags import BagRule
    from ogkd.features import EncodedBatch
    from ogkd.features.ray_encode import RayWorkers
    from ogkd.images import ImageRef
    from ogkd.model.card import ModelCard
    from ogkd.model.classifier import Classifier
    from ogkd.model.prior import Prior

# What the options of a fit do; other commands have some of them too.
HELP = {
    name: re.sub(r"\s+", " ", text[0].upper() + text[1:]).partition(" In Python")[0]
    for name, text in re.findall(
        r"^ {4}(\w+): (.+(?:\n {8}.+)*)", inspect.getdoc(FitRequest) or "", re.MULTILINE
    )
}

# Data
DataArgument = Annotated[Path, Argument(help=HELP["data"])]
IMAGES = Argument(help="Image files, or folders, which are searched recursively.")
SplitOption = Annotated[str, Option(help="Which split to use, if the data has splits.")]
ClassesOption = Annotated[
    str | None, Option("--classes", help=f"{HELP['class_names']} Separated by commas.")
]
FindingsOption = Annotated[
    str | None, Option("--findings", help=f"{HELP['findings']} Separated by commas.")
]
SliceOption = Annotated[str | None, Option(help=HELP["slice"])]
BagsOption = Annotated[str | None, Option(help=HELP["bags"])]
SlicesOption = Annotated[str | None, Option(help=HELP["slices"])]

# Models
ModelArgument = Annotated[Path, Argument(help="A folder written by `ogkd fit --out`.")]
ModelOut = Annotated[Path, Option("--out", "-o", help="The model folder to write.")]
BackboneOption = Annotated[str, Option("--backbone", "-b", help=HELP["backbone"])]
MovedBackbone = Annotated[
    str | None, Option("--backbone", "-b", help="Where the backbone is, if it has moved.")
]
DeviceOption = Annotated[str, Option(help=HELP["device"])]
EngineOption = Annotated[str, Option(help=HELP["engine"])]
EngineOverride = Annotated[
    str | None,
    Option(
        help="Encode images with another engine than the fit: torch, onnx, onnx-int8, bf16, fp16."
    ),
]

# Output
ExcelOption = Annotated[
    bool, Option("--excel", help="Start the CSV with a mark (BOM), so that Excel reads UTF-8.")
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]


@dataclass(frozen=True)
class RayOptions:
    """Options of commands that can spread their work over a Ray cluster."""

    without_ray: ClassVar[tuple[str, ...]] = ()  # options that have an effect without --ray too

    ray: Annotated[bool, Option("--ray", help="Spread the work over a Ray cluster.")] = False
    address: Annotated[
        str | None, Option(help="Ray cluster: auto or HOST:PORT (default: start one here).")
    ] = None
    workers: Annotated[
        int | None, Option(min=1, max=10_000, help="Ray workers (default: as many as fit).")
    ] = None
    cpus_per_worker: Annotated[
        float, Option(min=0.1, max=10_000, help="CPU cores for each Ray worker.")
    ] = 1.0
    gpus_per_worker: Annotated[
        float | None,
        Option(
            min=0.0,
            max=10_000,
            help="GPUs for each Ray worker: 1, or 0.25 (default: 1 or a share, if there are any).",
        ),
    ] = None

    def cluster(self) -> RayWorkers | None:
        """The Ray workers to use; None without --ray, where its options are refused."""
        if self.ray:
            from ogkd.features.ray_encode import RayWorkers

            count = self.workers or None
            return RayWorkers(self.address, count, self.cpus_per_worker, self.gpus_per_worker)
        for option in fields(RayOptions):
            value = getattr(self, option.name)
            if value != option.default and option.name not in self.without_ray:
                raise ConfigError(
                    f"--{option.name.replace('_', '-')} has no effect without --ray. Add --ray, or "
                    "leave it out."
                )
        return None


@dataclass(frozen=True)
class EncodingOptions(RayOptions):
    """Options of commands that encode many images, here or on a Ray cluster."""

    slice: SliceOption = None
    batch_size: Annotated[int, Option(min=1, max=4096, help="Images encoded at once.")] = 32
    device: DeviceOption = "auto"

    def find(self, images: Sequence[Path]) -> list[ImageRef]:
        """The image files in files and folders, with the slice to take of volumes."""
        from ogkd.cli.output import say
        from ogkd.datasets.read import unread_below
        from ogkd.images import SliceRule, find_images

        rule = None if self.slice is None else SliceRule.parse(self.slice)
        for what, advice in unread_below([path for path in images if path.is_dir()]):
            say(f"Note: {what} {advice}")
        return [image.sliced(rule) for image in find_images(images)]

    def find_bags(self, images: Sequence[Path], rule: BagRule) -> list[tuple[ImageRef, str | None]]:
        """Images with the bags that tables among the arguments name."""
        from ogkd.datasets.tables import read_bag_table

        found: list[tuple[ImageRef, str | None]] = []
        for path in images:
            if path.suffix.lower() in (".csv", ".tsv"):
                found += read_bag_table(path, rule.by)
            else:
                found += [(image, None) for image in self.find([path])]
        return found

    def encode(
        self,
        backbone: Backbone,
        images: Sequence[ImageRef],
        *,
        place: str,
        engine: str,
        patches: bool,
        deep: bool = False,
    ) -> Iterator[EncodedBatch]:
        """Encode here, or on the workers of a cluster, which load the backbone from `place`."""
        from ogkd.features import encode_files
        from ogkd.features.ray_encode import encode_files_on_ray

        size = self.batch_size
        if (workers := self.cluster()) is None:
            return encode_files(backbone, images, patches=patches, deep=deep, batch_size=size)
        return encode_files_on_ray(
            backbone,
            images,
            place=place,
            workers=workers,
            device=self.device,
            engine=engine,
            patches=patches,
            deep=deep,
            batch_size=size,
        )


def bag_rule(
    card: ModelCard, bags: str | None, slices: str | None, *, pictures: bool
) -> BagRule | None:
    """What makes a bag for a model: what it was fitted on, or these options; None without bags."""
    from ogkd.datasets.bags import BagRule

    if card.bags is None:
        for option, value in (("bags", bags), ("slices", slices), ("pictures", pictures or None)):
            if value is not None:
                raise ConfigError(
                    f"--{option} is for models of bags, but this one answers single images. Fit "
                    "one with --bags or --slices."
                )
        return None
    return BagRule.of(bags or card.bags.by, slices or card.bags.slices) or BagRule()


def split_list(text: str) -> list[str]:
    """Split `a, b, c` at its commas; empty parts are dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def read_classes(text: str | None) -> list[str] | None:
    """Split class names at commas. An empty name is kept, so that it is reported as one."""
    return None if text is None else [name.strip() for name in text.split(",")]


def read_prior(text: str | None) -> Prior | None:
    """Shares of classes, as `benign=0.9,malignant=0.1`, or "estimate"."""
    if text is None:
        return None
    if text.strip().casefold() == "estimate":
        return "estimate"
    shares: dict[str, float] = {}
    for pair in text.split(","):
        name, equals, value = (part.strip() for part in pair.rpartition("="))
        if not equals or not name:
            raise ConfigError(
                "--prior takes a share for every class, such as benign=0.9,malignant=0.1, or "
                f"estimate, but got '{pair.strip()}'."
            )
        if name in shares:
            raise ConfigError(f"--prior names the class '{name}' twice.")
        try:
            shares[name] = float(value)
        except ValueError:
            raise ConfigError(
                f"--prior is '{value}' for '{name}', which is not a number."
            ) from None
    return shares


def read_settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Turn `key=value` texts into settings; a value that is not valid JSON is a string."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set takes key=value, such as train.epochs=50, but got '{pair}'.")
        if (key := key.strip()) in settings:
            raise ConfigError(f"--set gives '{key}' twice. Give it once.")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
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


def refuse_excel(excel: bool, format: str) -> None:
    """Refuse --excel for another format than CSV."""
    if excel and format != "csv":
        raise ConfigError(f"--excel is for CSV, but --format is {format}. Use one of them.")


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
    kind = found.param_type_name
    shown = str(found.name).upper() if kind == "argument" else max(found.opts, key=len)
    if re.search(rf"(?<![\w-]){re.escape(shown)}(?![\w-])", message):
        return message
    stop = "." if message.endswith(".") else ""
    return f"{message.removesuffix('.')} ({kind} {shown}){stop}"


def _written_to(message: str, values: Mapping[str, Any]) -> str | None:
    """Return the parameter whose path could not be written; None if it is the cache's."""
    for name, value in values.items():
        for path in (value, resolved(value)) if isinstance(value, Path) else ():
            if re.search(rf"writ(e|ing) {re.escape(str(path))}(?=[/.:])", message):
                return name
    return None


class _OurCommand:
    """A command or group that refuses an option given twice; library errors name their option."""

    params: list[Any]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The parser keeps the last value only; the order that it reports has every occurrence.
        given = self.make_parser(ctx).parse_args(args=list(args))[2]  # type: ignore[attr-defined]
        for one, times in Counter(given).items():
            single = one.param_type_name == "option" and not one.multiple
            if single and times > 1 and not any(other.is_eager for other in given):  # --help
                ctx.fail(
                    f"Option '{max(one.opts, key=len)}' was given {times} times. Give it once."
                )
        found: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        return found

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


class _Command(_OurCommand, TyperCommand):
    pass


class _Group(_OurCommand, TyperGroup):
    pass


class CommandGroup(typer.Typer):
    """Commands under one name; their errors name the option that they are about.

    A parameter of a command that is a dataclass stands for options: one for each of its fields.
    """

    def __init__(self, help: str, **settings: Any) -> None:
        super().__init__(help=help, cls=_Group, no_args_is_help=True, **settings)

    def command(self, name: str | None = None, **settings: Any) -> Callable[[Any], Any]:
        add = super().command(name, cls=_Command, **settings)

        def added(function: Callable[..., None]) -> Callable[..., None]:
            add(_SingleOptions(function))
            return function

        return added

    def names_only(self) -> CommandGroup:
        """The same without the commands' options, which cost time and a list does not show."""
        listed = copy.copy(self)
        listed.registered_commands = [copy.copy(one) for one in self.registered_commands]
        for one in listed.registered_commands:
            one.help, one.callback = inspect.getdoc(one.callback), lambda: None
        listed.registered_groups = [copy.copy(one) for one in self.registered_groups]
        for group in listed.registered_groups:
            group.typer_instance = copy.copy(group.typer_instance)
            group.typer_instance.registered_commands = []  # type: ignore[union-attr]
        return listed


class _SingleOptions:
    """A function whose dataclasses are options, found out when they are needed."""

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.function = function

    @functools.cached_property
    def groups(self) -> dict[str, Any]:
        found = inspect.signature(self.function, eval_str=True).parameters
        return {name: one.annotation for name, one in found.items() if is_dataclass(one.annotation)}

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        single: list[tuple[str, Any, Any]] = []
        for name, one in inspect.signature(self.function, eval_str=True).parameters.items():
            if kind := self.groups.get(name):
                hints = get_type_hints(kind, include_extras=True)
                single += [(one.name, hints[one.name], one.default) for one in fields(kind)]
            else:
                single.append((name, one.annotation, one.default))
        return signature_of(single)

    def __call__(self, **options: Any) -> None:
        for name, group in self.groups.items():
            options[name] = group(**{one.name: options.pop(one.name) for one in fields(group)})
        self.function(**options)


def signature_of(options: Iterable[tuple[str, Any, Any]]) -> inspect.Signature:
    """A signature for typer, from the names, types and defaults of options."""
    empty = inspect.Parameter.empty
    parameters = []
    for name, kind, value in options:
        default = empty if value is MISSING else value
        only = inspect.Parameter.KEYWORD_ONLY  # in any order, with or without a default
        parameters.append(inspect.Parameter(name, only, default=default, annotation=kind))
    return inspect.Signature(parameters)
