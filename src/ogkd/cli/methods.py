"""`ogkd methods`: what can be fitted, what it costs and what it needs."""

from __future__ import annotations

import json as json_format
from typing import Annotated, Any

import typer


def methods(
    name: Annotated[
        str | None, typer.Argument(help="One method: its settings and presets.")
    ] = None,
    *,
    json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """List the methods, or show one of them with its settings and presets."""
    from ogkd.methods import METHODS, make_method

    if name is not None:
        make_method(name)  # refuses an unknown name with a hint
        return _show(_describe(name, with_settings=True), json=json)
    found = [_describe(known) for known in sorted(METHODS)]
    if json:
        typer.echo(json_format.dumps(found, indent=2))
        return None
    width = max(len(entry["name"]) for entry in found)
    for entry in found:
        needs = ", ".join(entry["needs"]) or "nothing"
        source = f" [plugin {entry['plugin']}]" if entry["plugin"] else ""
        typer.echo(f"{entry['name']:{width}}  {entry['summary']}{source}")
        typer.echo(f"{'':{width}}  {entry['cost']}; needs {needs}; {entry['citation']}")
    typer.echo("\nSettings and presets of one: ogkd methods NAME")
    return None


def _describe(name: str, *, with_settings: bool = False) -> dict[str, Any]:
    from ogkd import plugins
    from ogkd.methods import METHODS, presets

    method = METHODS[name]
    needs = {
        "labelled images": method.needs_images,
        "patches": method.needs_patches,
        "training": method.needs_training,
        "validation images if there are any": method.uses_validation,
    }
    entry: dict[str, Any] = {
        "name": name,
        "summary": method.summary,
        "cost": method.cost,
        "needs": [what for what, needed in needs.items() if needed],
        "citation": method.citation,
        "plugin": plugins.name_of(method),
    }
    if with_settings:
        entry["settings"] = method.Config().model_dump(mode="json")
        entry["presets"] = sorted(presets(name))
    return entry


def _show(entry: dict[str, Any], *, json: bool) -> None:
    if json:
        typer.echo(json_format.dumps(entry, indent=2))
        return
    typer.echo(f"{entry['name']}: {entry['summary']}")
    typer.echo(f"Cost: {entry['cost']}. Needs: {', '.join(entry['needs']) or 'nothing'}.")
    typer.echo(f"From: {entry['citation']}")
    if entry["plugin"]:
        typer.echo(f"Plugin: {entry['plugin']}")
    typer.echo("Settings (change one with --set NAME=VALUE):")
    for key, value in _flat(entry["settings"]):
        typer.echo(f"  {key} = {json_format.dumps(value)}")
    if entry["presets"]:
        typer.echo("Presets (--preset NAME):")
        typer.echo("  " + "\n  ".join(entry["presets"]))


def _flat(settings: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            rows += _flat(value, f"{prefix}{key}.")
        else:
            rows.append((f"{prefix}{key}", value))
    return rows
