"""`ogkd fit`, `ogkd import-checkpoint` and `ogkd methods`: making a model, and with what."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from ogkd.cli.options import (
    BackboneOption,
    ClassesOption,
    DataArgument,
    DeviceOption,
    EngineOption,
    JsonOption,
    ModelOut,
    OnErrorOption,
    RootOption,
    SliceOption,
    read_classes,
    read_settings,
    say,
    split_list,
)
from ogkd.errors import ConfigError


def fit(
    data: DataArgument,
    *,
    out: ModelOut,
    backbone: BackboneOption = "builtin",
    method: Annotated[
        str,
        typer.Option(
            "--method", "-m", help="ogkd, fused, gda, zero-shot, ... (see `ogkd methods`)."
        ),
    ] = "ogkd",
    shots: Annotated[
        int | None, typer.Option(help="Images per class to learn from (default: all).")
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, help="Seed for the choice of images and training.")
    ] = 1,
    preset: Annotated[
        str | None, typer.Option(help="Settings: auto (the default), paper/few-shot/btmri, ...")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change one setting: train.epochs=50. May be repeated."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="JSON of class name -> texts, or a bank's name (default: templates)."),
    ] = None,
    normal: Annotated[
        list[str] | None,
        typer.Option(help="A class without findings (default: recognised by name). Repeatable."),
    ] = None,
    sampling: Annotated[
        Literal["released", "nested"],
        typer.Option(help="How shots are drawn; nested: 2 shots include the image of 1 shot."),
    ] = "released",
    root: RootOption = None,
    classes: ClassesOption = None,
    slice: SliceOption = None,
    on_error: OnErrorOption = "stop",
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard an interrupted fit into the same folder.")
    ] = False,
    device: DeviceOption = "auto",
    engine: EngineOption = "torch",
) -> None:
    """Learn a classifier from labelled images. Run the same command again to resume."""
    from ogkd.fitting.pipeline import fit_request
    from ogkd.fitting.request import FitRequest

    request = FitRequest(
        data,
        backbone=backbone,
        method=method,
        shots=shots,
        seed=seed,
        preset=preset,
        settings=read_settings(settings or []),
        prompts=prompts,
        normal=normal,
        sampling=sampling,
        root=root,
        class_names=read_classes(classes),
        slice=slice,
        on_error=on_error,
        say=say,
        out=out,
        restart=restart,
        device=device,
        engine=engine,
    )
    began = time.perf_counter()
    model = fit_request(request)
    seconds = time.perf_counter() - began
    card = model.card
    images = ", ".join(
        f"{name} {count}" for name, count in zip(card.class_names, card.support_counts, strict=True)
    )
    typer.echo(
        f"Fitted {method} on {sum(card.support_counts)} images ({images}) in {seconds:.1f} s."
    )
    _print_next(out)


def import_checkpoint(
    file: Annotated[Path, typer.Argument(help="A file such as model.pth.tar-100.")],
    *,
    classes: Annotated[
        str | None, typer.Option(help="Class names in label order, separated by commas.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Instead of --classes: a benchmark that has them (btmri).")
    ] = None,
    out: ModelOut,
    backbone: BackboneOption = "biomedclip",
    device: DeviceOption = "auto",
) -> None:
    """Turn a released BiomedCoOp or OGKD checkpoint into a model folder; no code in it is run."""
    from ogkd.datasets.catalog import benchmark
    from ogkd.fitting.importing import import_context
    from ogkd.model.classifier import place_for_model

    if (classes is None) == (dataset is None):
        raise ConfigError(
            "Give the classes of the checkpoint, either as --dataset btmri or as --classes with "
            "their names in label order."
        )
    names = split_list(classes or "") if dataset is None else benchmark(dataset).class_names
    place_for_model(out)
    import_context(file, names, backbone=backbone, device=device).save(out)
    _print_next(out)


def _print_next(out: Path) -> None:
    typer.echo(f"Model: {out}")
    typer.echo(f"Next:  ogkd predict {out} IMAGES...")


def methods(
    name: Annotated[
        str | None, typer.Argument(help="Show the settings and presets of this method.")
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """List the methods with their cost and needs, or show one with its settings and presets."""
    from ogkd.methods import METHODS, make_method

    if name is not None:
        make_method(name)  # refuses an unknown name with a hint
        one = _method_facts(name) | _method_settings(name)
        lines, found = _method_lines(one), json.dumps(one, indent=2)
    else:
        known = [_method_facts(known) for known in sorted(METHODS)]
        lines, found = _method_list(known), json.dumps(known, indent=2)
    for line in [found] if as_json else lines:
        typer.echo(line)


def _method_facts(name: str) -> dict[str, Any]:
    from ogkd import plugins
    from ogkd.methods import METHODS

    method = METHODS[name]
    needs = {
        "labelled images": method.needs_images,
        "patches": method.needs_patches,
        "training": method.needs_training,
        "validation images if there are any": method.uses_validation,
    }
    return {
        "name": name,
        "summary": method.summary,
        "cost": method.cost,
        "needs": [what for what, needed in needs.items() if needed],
        "citation": method.citation,
        "plugin": plugins.name_of(method),
    }


def _method_settings(name: str) -> dict[str, Any]:
    from ogkd.methods import METHODS, presets

    settings = METHODS[name].Config().model_dump(mode="json")
    return {"settings": settings, "presets": sorted(presets(name))}


def _method_list(found: list[dict[str, Any]]) -> Iterator[str]:
    width = max(len(entry["name"]) for entry in found)
    for entry in found:
        needs = ", ".join(entry["needs"]) or "nothing"
        source = f" [plugin {entry['plugin']}]" if entry["plugin"] else ""
        yield f"{entry['name']:{width}}  {entry['summary']}{source}"
        yield f"{'':{width}}  {entry['cost']}; needs {needs}; {entry['citation']}"
    yield "\nSettings and presets of a method: ogkd methods NAME"


def _method_lines(entry: dict[str, Any]) -> Iterator[str]:
    yield f"{entry['name']}: {entry['summary']}"
    yield f"Cost: {entry['cost']}. Needs: {', '.join(entry['needs']) or 'nothing'}."
    yield f"From: {entry['citation']}"
    if entry["plugin"]:
        yield f"Plugin: {entry['plugin']}"
    yield "Settings (change one with --set NAME=VALUE):"
    for key, value in _flat(entry["settings"]):
        yield f"  {key} = {json.dumps(value)}"
    if entry["presets"]:
        yield "Presets (--preset NAME):"
        yield "  " + "\n  ".join(entry["presets"])


def _flat(settings: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
