"""`ogkd bench plan`: how many runs, and how long they take here."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from ogkd.cli import options as opt
from ogkd.cli.bench import GridOptions
from ogkd.cli.output import say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.bench.probe import Probe
    from ogkd.bench.runs import RunSpec


def plan(
    grid: GridOptions,
    out: Annotated[Path | None, Option("--out", "-o", help="A folder with finished runs.")] = None,
    show: Annotated[bool, Option("--show", help="Print one line per run.")] = False,
    probe: Annotated[
        bool,
        Option(help="Measure a few steps of methods that have no finished run, or only guess."),
    ] = True,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Show how many runs a grid has, how many are done, and an estimate of the time left."""
    from ogkd.bench.probe import probe_of
    from ogkd.bench.progress import Pace, duration, estimate
    from ogkd.bench.runner import group_runs
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.sources import require_banks

    plans = grid.expand()
    folder = RunsFolder(out) if out is not None else None
    finished = folder.readable_runs() if folder is not None else []
    everything: dict[str, RunSpec] = {}
    measured: dict[str, float] = {}
    pace = Pace(finished, measured)
    probes: dict[str, Probe | None] = {}
    for chosen, sources, place in plans:
        specs = chosen.specs
        missing = {
            key: spec
            for key, spec in specs.items()
            if folder is None or not folder.has(spec) or folder.damage(spec)
        }
        everything |= missing
        if show:
            for key, spec in specs.items():
                typer.echo(f"{'missing' if key in missing else 'done   '} {key}  {spec}")
        # Whole groups are trained: all that have a missing run.
        passes = [
            group
            for group in group_runs(list(specs.values()))
            if any(spec.hash in missing for spec in group.specs)
        ]
        unknown = [group for group in passes if not pace.knows(group.specs[0])]
        names = ", ".join(sorted({group.specs[0].method for group in unknown}))
        how = f"rough: no run of {names} is finished" if unknown else "from finished runs"
        if unknown and probe and place not in probes:
            probes[place] = probe_of(place, device, engine, say)
        if unknown and (measuring := probes.get(place)) is not None:
            phases = measuring.phases(unknown, sources)
            for group in unknown:
                share = phases[group.name].total / len(group.specs)
                measured |= dict.fromkeys((spec.hash for spec in group.specs), share)
            parts = Counter[str]()
            for one in phases.values():
                parts.update(vars(one))
            words = (f"{phase} {duration(seconds)}" for phase, seconds in parts.items())
            how = f"measured on {measuring.where}: {', '.join(words)}"
            how += "; others from finished runs" if len(unknown) < len(passes) else ""
        time = estimate((spec for group in passes for spec in group.specs), pace)
        typer.echo(f"{chosen.title}: {len(specs)} runs on {len(sources)} dataset(s)")
        typer.echo(f"  done      {len(specs) - len(missing)}")
        typer.echo(f"  missing   {len(missing)}, trained in {len(passes)} passes")
        typer.echo(f"  time      {time} on one worker ({how})")
        try:
            require_banks(sources)
        except ConfigError as error:
            say(f"Note: {error}")
    if len(plans) > 1:
        time = estimate(everything.values(), pace)
        typer.echo(f"Total: {len(everything)} different runs are missing, {time}")
