"""Commands and groups of them: no input is overwritten, and an error names its option."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from ogkd.errors import ConfigError, OgkdError, StorageError
from ogkd.files import resolved

# The library's name of an argument -> the command line's, if they differ.
_OTHER_NAMES = {"class_names": "classes", "show_names": "names", "out": "onnx"}


def with_option(message: str, argument: str, params: Sequence[Any]) -> str | None:
    """Add the option of a library argument to a message; None if there is no such option.

    `params` are those of a command. A message that names the option already stays as it is.
    """
    by_name = {param.name: param for param in params}
    param = by_name.get(argument) or by_name.get(_OTHER_NAMES.get(argument, ""))
    if param is None:
        return None
    kind = param.param_type_name
    shown = str(param.name).upper() if kind == "argument" else max(param.opts, key=len)
    if re.search(rf"(?<![\w-]){re.escape(shown)}(?![\w-])", message):
        return message
    stop = "." if message.endswith(".") else ""
    return f"{message.removesuffix('.')} ({kind} {shown}){stop}"


def _check_outputs(params: Sequence[Any], values: Mapping[str, Any]) -> None:
    """Refuse an option that names the same file as an argument: a result would replace an input."""
    files: dict[str, dict[Path, str]] = {"argument": {}, "option": {}}
    for param in params:
        value = values.get(param.name)
        for path in value if isinstance(value, list | tuple) else [value]:
            if isinstance(path, Path) and path.is_file():
                files[param.param_type_name][resolved(path)] = param.name
    for path in files["argument"].keys() & files["option"].keys():
        name = files["option"][path]
        raise ConfigError(f"{path} is an input, so it is not overwritten.", argument=name)


class _OurCommand:
    """A command or group whose errors name the option that they are about."""

    params: list[Any]

    def invoke(self, ctx: Any) -> Any:
        try:
            _check_outputs(self.params, ctx.params)
            return super().invoke(ctx)  # type: ignore[misc]  # the other base class has it
        except OgkdError as error:
            # A message about writing names the path, which need not be that of an option.
            argument = None if isinstance(error, StorageError) else error.argument
            if named := argument and with_option(str(error), argument, self.params):
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


class _SingleOptions:
    """A function whose dataclasses are options, found out when they are needed."""

    def __init__(self, function: Callable[..., None]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.groups: dict[str, Any] = {}  # parameters that are dataclasses

    @functools.cached_property
    def __signature__(self) -> inspect.Signature:
        single: list[tuple[str, Any, Any]] = []
        for name, parameter in inspect.signature(self.function, eval_str=True).parameters.items():
            kind = parameter.annotation
            if is_dataclass(kind):
                self.groups[name] = kind
                hints = get_type_hints(kind, include_extras=True)
                single += [(field.name, hints[field.name], field.default) for field in fields(kind)]
            else:
                single.append((name, kind, parameter.default))
        return signature_of(single)

    def __call__(self, **options: Any) -> None:
        for name, kind in self.groups.items():
            options[name] = kind(**{field.name: options.pop(field.name) for field in fields(kind)})
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
