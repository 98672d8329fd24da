"""`ogkd bench tune`: choose settings on validation images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from ogkd.cli import options as opt
from ogkd.cli.bench import GridOptions, WorkerOptions, run_plan
from ogkd.cli.output import say
from ogkd.errors import ConfigError


def tune(
    grid: GridOptions,
    out: Annotated[Path, Option("--out", "-o", help="The folder for the runs.")],
    save: Annotated[Path, Option(help="The file for the settings (TOML).")],
    workers: WorkerOptions,
    trials: Annotated[int, Option(min=2, max=1000, help="Settings to try per method.")] = 16,
    seed: Annotated[int, Option(min=0, help="Draws the settings.")] = 1,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Search methods' numbers on validation images; test images stay unseen.

    Give --methods, and use what was found with `ogkd bench run GRID --tuned FILE`.
    """
    from ogkd.bench.grid import expand, grid_names, read_grid
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.tune import best_settings, tuning_grid, write_tuned
    from ogkd.bench.workers import make_job

    if grid.methods is None:
        raise ConfigError("Name the methods to tune: --methods ogkd,biomedcoop.")
    workers.cluster()  # refuses what cannot work
    (name, *others) = grid_names(grid.grid)
    if others:
        raise ConfigError(f"Tune one grid at a time, such as {name}.")
    names = opt.split_list(grid.methods)
    asked = read_grid(name, grid.changes() | {"only": None})
    found = tuning_grid(asked, names, trials=trials, seed=seed)
    plan, sources = expand(found)
    folder = RunsFolder(out, on_skip=say)
    job = make_job(plan, sources, found.backbone, device=device, engine=engine)
    run_plan(folder, plan, sources, job, workers)
    made = f"Written by `ogkd bench tune {grid.grid} --methods {','.join(names)}`."
    write_tuned(save, best_settings(folder, plan), made=made)
    typer.echo(f"Settings of {len(names)} method(s) on {len(sources)} dataset(s) -> {save}")
    typer.echo(f"Next: ogkd bench run {grid.grid} --tuned {save} --out RUNS")
