"""`ogkd fit`, `start` and `methods`: making a model, and with what."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.commands import signature_of
from ogkd.cli.options import print_facts, print_table
from ogkd.errors import ConfigError, pluralize
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from ogkd.methods import Method

# Where `ogkd fit` differs from the fields of the request; it has all others as they are.
_OPTIONS: dict[str, Any] = {
    "data": opt.DataArgument,
    "backbone": opt.BackboneOption,
    "method": Annotated[str, Option("--method", "-m", help=opt.HELP["method"])],
    "settings": Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help=f"{opt.HELP['settings']} Repeatable."),
    ],
    "class_names": opt.ClassesOption,
    "findings": opt.FindingsOption,
    "columns": opt.ColumnsOption,
    "out": opt.ModelOut,
}


def fit(**options: Any) -> None:
    """Learn a classifier from labelled images. Run the same command again to resume."""
    from ogkd.fitting.choose import NoRealBackbone
    from ogkd.fitting.pipeline import fit_or_find

    options["settings"] = opt.read_settings(options["settings"] or [])
    for names in ("class_names", "findings"):
        options[names] = opt.read_classes(options[names])
    options["columns"] = opt.read_columns(options["columns"])
    began = time.perf_counter()
    request = FitRequest(**options)
    try:
        fitted, is_old = fit_or_find(request)
    except NoRealBackbone:
        if not fetch_now():
            raise
        fitted, is_old = fit_or_find(request)
    card = fitted.card
    seconds = time.perf_counter() - began
    counts = zip(card.class_names, card.support_counts, strict=True)
    images = pluralize(card.images, "image")
    if request.grouping.joins_images:
        images = f"{pluralize(fitted.card.learned_cases, request.grouping.unit)} of {images}"
    each = ", ".join(f"{name} {count}" for name, count in counts)
    when = "before; --restart fits again" if is_old else f"in {seconds:.1f} s"
    typer.echo(f"Fitted {card.method} on {images} ({each}) {when}.")
    _print_next(options["out"])


def fetch_now() -> bool:
    """Ask on a terminal whether to fetch the best backbone; never download without an answer."""
    from ogkd.backbones.catalog import catalog
    from ogkd.backbones.hub import fetch
    from ogkd.fitting.choose import BEST

    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    record = catalog()[BEST]
    question = (
        "These images need a real backbone, and none is on this machine. "
        f"Fetch {BEST} now ({(record.size or 0) / 1e9:.1f} GB)?"
    )
    if not typer.confirm(question, default=False, err=True):
        return False
    fetch(record)
    return True


def _fit_options(names: Sequence[str]) -> Iterator[tuple[str, Any, Any]]:
    """The name, type and default of fields of the request, as options."""
    hints = get_type_hints(FitRequest)
    for field in fields(FitRequest):
        default = MISSING if field.name == "out" else field.default
        if field.name in names:
            kind = _OPTIONS.get(field.name) or _option(field.name, hints[field.name])
            yield field.name, kind, default


def _option(name: str, kind: Any) -> Any:
    """A field as an option: of all that Python accepts, repeated paths or texts, or one path."""
    text, kinds = opt.HELP[name], get_args(kind)
    for several, repeated in ((Sequence[str | Path], list[Path]), (Sequence[str], list[str])):
        if several in kinds:
            kind, text = repeated | None, f"{text} Repeatable."
            break
    else:
        kind = Path | None if Path in kinds else kind
    # With its name, so that a switch has no opposite.
    return Annotated[kind, Option(f"--{name.replace('_', '-')}", help=text)]


_ALL = [field.name for field in fields(FitRequest)]
fit.__signature__ = signature_of(_fit_options(_ALL))  # type: ignore[attr-defined]


def start(data: Path, out: Path | None, yes: bool, restart: bool, **options: Any) -> None:
    """From a folder of images to a tested model and a report, in one command.

    Checks the images, leaves out what cannot be used, divides the rest into
    parts to learn from, calibrate and test on, fits, calibrates, evaluates, and
    writes a report. The data is not changed and nothing is overwritten. Run the
    same command again to resume.
    """
    if not yes and not sys.stdin.isatty():
        raise ConfigError(
            "`ogkd start` asks before it leaves images out, and there is no terminal to ask on. "
            "Add --yes to accept the defaults."
        )
    from ogkd.start import Start

    def confirm(notes: list[str], question: str) -> bool:
        return typer.confirm("\n".join([*(f"  {note}" for note in notes), question]), default=True)

    options["columns"] = opt.read_columns(options["columns"])
    asks: Any = {} if yes else {"confirm": confirm, "fetch": fetch_now}
    for line in Start(data, out, options, **asks, restart=restart).run():
        typer.echo(line)


_USED = ("data", "backbone", "method", "prompts", "normal", "columns", "slice", "cases", "slices")
_RESULTS = Option("--out", "-o", help="The folder for results (default: DATA-ogkd).")
_RESTART = Option("--restart", help="Remove the results of an earlier start, and begin again.")
_YES = Option("--yes", "-y", help="Ask nothing: accept the defaults.")
start.__signature__ = signature_of(  # type: ignore[attr-defined]
    [
        *_fit_options(_USED),
        ("out", Annotated[Path | None, _RESULTS], None),
        ("yes", Annotated[bool, _YES], False),
        ("restart", Annotated[bool, _RESTART], False),
    ]
)


def _print_next(out: Path) -> None:
    typer.echo(f"Model: {out}")
    typer.echo(f"Next:  ogkd predict {out} IMAGES...")


def methods(
    name: Annotated[
        str | None, Argument(help="Show the settings and presets of this method.")
    ] = None,
    preset: Annotated[
        str | None, Option(help="With NAME: the settings of this preset, not the defaults.")
    ] = None,
) -> None:
    """List the methods with their cost and needs, or explain the settings of one."""
    from ogkd.methods import METHODS, flatten, make_method, not_built, presets, setting_help

    if name is None:
        if preset is not None:
            raise ConfigError("It needs the NAME of a method.", argument="preset")
        for known in sorted(METHODS):
            _print_method(METHODS[known])
        typer.echo("\nNamed in the literature, and not built:")
        print_facts({f"  {method}": reason for method, reason in not_built().items()})
        typer.echo("\nSettings and presets of a method: ogkd methods NAME")
        return
    config = make_method(name, preset=preset).config
    _print_method(METHODS[name])
    if settings := dict(flatten(config.model_dump(mode="json"))):
        which = f"of {preset}" if preset else "without a preset"
        typer.echo(f"\nSettings {which} (change one with --set NAME=VALUE):")
        rows = [
            (key, json.dumps(x), setting_help(type(config), key)) for key, x in settings.items()
        ]
        print_table(("setting", "value", "meaning"), rows)
    if names := sorted(presets(name)):
        typer.echo("\n  ".join(["\nPresets (--preset NAME):", *names]))


def _print_method(method: type[Method]) -> None:
    plugin = ogkd.plugins.name_of(method)
    typer.echo(f"{method.name}: {method.summary}" + (f" [plugin {plugin}]" if plugin else ""))
    needs = {
        "labelled images": method.needs_images,
        "patches": method.needs_patches,
        "training": method.needs_training,
        "validation images if there are any": method.uses_validation,
    }
    words = ", ".join(what for what, needed in needs.items() if needed) or "nothing"
    typer.echo(f"  {method.cost}; needs {words}; {method.citation}")
