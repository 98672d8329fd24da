"""`ogkd bench`: grids of runs, resumable, with the paper's tables and figures."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from ogkd.cli.options import (
    AddressOption,
    CommandGroup,
    CpusOption,
    DeviceOption,
    GpusOption,
    RayOption,
    refuse_ray_options,
    say,
    split_list,
)
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ogkd.bench.progress import Progress
    from ogkd.bench.runner import RunGroup
    from ogkd.bench.runs import Plan, RunsFolder, RunSpec
    from ogkd.bench.sources import Source
    from ogkd.bench.worker import Job

app = CommandGroup("Reproduce the paper, or compare methods on your own data.")

GridArgument = Annotated[
    str,
    typer.Argument(
        help="A grid: a TOML file, a name from `ogkd bench list`, or a set such as phantoms."
    ),
]
RunsArgument = Annotated[Path, typer.Argument(help="A folder written by `bench run --out`.")]
PlanOption = Annotated[
    str | None, typer.Option("--plan", help="Which grid of the folder, if it has several.")
]
DataOption = Annotated[
    str | None, typer.Option(help="A folder of datasets ({train,val,test}/class), or phantoms.")
]
NamesOption = Annotated[str | None, typer.Option(help="Only these, separated by commas.")]
NumbersOption = Annotated[str | None, typer.Option(help="Instead of the grid's: 1,4,16 or 1-8.")]
BackboneChoice = Annotated[
    str | None, typer.Option("--backbone", "-b", help="Use this backbone instead of the grid's.")
]


def _changes(
    data: str | None,
    datasets: str | None,
    methods: str | None,
    shots: str | None,
    seeds: str | None,
    backbone: str | None,
) -> dict[str, Any]:
    """Return the fields of the grid that options replace."""
    return {
        "data": data,
        "datasets": None if datasets is None else split_list(datasets),
        "only": None if methods is None else split_list(methods),
        "shots": _numbers("--shots", shots),
        "seeds": _numbers("--seeds", seeds),
        "backbone": backbone,
    }


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Read `1,2,4` or `1-8`."""
    if text is None:
        return None
    parts = split_list(text)
    found: list[int] = []
    for part in parts:
        first, dash, last = part.partition("-")
        with contextlib.suppress(ValueError):
            found += range(int(first), int(last if dash else first) + 1)
    if len(found) < max(1, len(parts)):
        raise ConfigError(f"{option} takes numbers such as 1,4,16 or 1-8, not '{text}'.")
    return found


def _expand(grid: str, changes: dict[str, Any]) -> list[tuple[Plan, dict[str, Source], str]]:
    """Return the plan of each grid of a name, with its datasets and backbone."""
    from ogkd.bench.grid import expand, grid_names, read_grid

    grids = [read_grid(name, changes) for name in grid_names(grid)]
    return [(*expand(found), found.backbone) for found in grids]


@app.command("list")
def list_grids() -> None:
    """List the grids that come with ogkd."""
    from ogkd.bench.grid import protocols

    found = protocols()
    width = max(map(len, found))
    for name, title in found.items():
        typer.echo(f"{name:{width}}  {title}")


@app.command()
def plan(
    grid: GridArgument,
    *,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder with finished runs.")
    ] = None,
    data: DataOption = None,
    datasets: NamesOption = None,
    methods: NamesOption = None,
    shots: NumbersOption = None,
    seeds: NumbersOption = None,
    backbone: BackboneChoice = None,
    show: Annotated[bool, typer.Option("--show", help="Print one line per run.")] = False,
) -> None:
    """Show how many runs a grid has, how many are done, and an estimate of the time left."""
    from ogkd.bench.progress import duration, estimate
    from ogkd.bench.runs import RunsFolder

    plans = _expand(grid, _changes(data, datasets, methods, shots, seeds, backbone))
    folder = RunsFolder(out) if out is not None else None
    finished = folder.readable_runs() if folder is not None else []
    how = "from finished runs" if finished else "a rough guess until some runs are finished"
    everything: dict[str, RunSpec] = {}
    for chosen, sources, _ in plans:
        specs = {cell.spec.hash: cell.spec for cell in chosen.cells}
        missing = [spec for spec in specs.values() if folder is None or not folder.has(spec)]
        everything |= {spec.hash: spec for spec in missing}
        if show:
            for spec in specs.values():
                done = folder is not None and folder.has(spec)
                typer.echo(f"{'done   ' if done else 'missing'} {spec.hash}  {spec}")
        passes = _passes(list(specs.values()), missing)
        together = [spec for group in passes for spec in group.specs]
        typer.echo(f"{chosen.title}: {len(specs)} runs on {len(sources)} dataset(s)")
        typer.echo(f"  done      {len(specs) - len(missing)}")
        typer.echo(f"  missing   {len(missing)}, trained in {len(passes)} passes")
        typer.echo(f"  about     {duration(estimate(together, finished))} on one worker ({how})")
    if len(plans) > 1:
        typer.echo(
            f"Total: {len(everything)} different runs are missing, "
            f"about {duration(estimate(list(everything.values()), finished))}"
        )


def _passes(specs: list[RunSpec], missing: list[RunSpec]) -> list[RunGroup]:
    """Return the groups to train: all that have a missing run."""
    from ogkd.bench.runner import group_runs

    wanted = {spec.hash for spec in missing}
    return [group for group in group_runs(specs) if wanted & {spec.hash for spec in group.specs}]


@app.command()
def run(
    grid: GridArgument,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder for the runs.")],
    workers: Annotated[
        int | None,
        typer.Option(
            min=0, help="Processes (default: 1; with --ray: as many as fit); 0: this process."
        ),
    ] = None,
    ray: RayOption = False,
    address: AddressOption = None,
    cpus_per_worker: CpusOption = 1.0,
    gpus_per_worker: GpusOption = 0.0,
    data: DataOption = None,
    datasets: NamesOption = None,
    methods: NamesOption = None,
    shots: NumbersOption = None,
    seeds: NumbersOption = None,
    backbone: BackboneChoice = None,
    device: DeviceOption = "auto",
) -> None:
    """Run what is missing. Stop at any time; the same command resumes."""
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.workers import make_job, run_here, run_processes

    if not ray:
        refuse_ray_options(address, cpus_per_worker, gpus_per_worker)
    folder = RunsFolder(out)

    def do(job: Job, progress: Progress) -> None:
        if ray:
            from ogkd.bench.ray_workers import run_ray
            from ogkd.features.ray_encode import RayWorkers

            run_ray(
                folder,
                job,
                progress,
                RayWorkers(address, workers or None, cpus_per_worker, gpus_per_worker),
            )
        elif workers == 0:
            run_here(folder, job, progress)
        else:
            run_processes(folder, job, progress, workers=workers or 1)

    changes = _changes(data, datasets, methods, shots, seeds, backbone)
    plans = _expand(grid, changes)
    for chosen, sources, place in plans:
        job = make_job(chosen, sources, place, device=device)
        _run_plan(folder, chosen, sources, job, do, workers=workers or 1)
    _close(folder, [chosen for chosen, _, _ in plans])


def _run_plan(
    folder: RunsFolder,
    chosen: Plan,
    sources: dict[str, Source],
    job: Job,
    do: Callable[[Job, Progress], None],
    *,
    workers: int,
) -> None:
    """Run what is missing of one plan, with a live table of progress."""
    from ogkd.bench.progress import Progress, estimate
    from ogkd.bench.workers import prepare

    for note in prepare(folder, chosen, sources):
        say(f"Note: {note}")
    specs = {cell.spec.hash: cell.spec for cell in chosen.cells}
    missing = [spec for spec in specs.values() if not folder.has(spec)]
    seconds = estimate(missing, folder.readable_runs())
    done = len(specs) - len(missing)
    say(f"{chosen.title}: {len(specs)} runs, {done} of them done already.")
    if not missing:
        return
    with Progress(total=len(specs), done=done, seconds=seconds, workers=workers) as progress:
        try:
            do(job, progress)
        except KeyboardInterrupt:
            say("Stopped. Run the same command again to resume.")
            sys.exit(130)


def _close(folder: RunsFolder, plans: list[Plan]) -> None:
    """Print a summary; the exit code is 1 if runs failed."""
    from ogkd.bench.worker import one_line

    specs = {cell.spec.hash: cell.spec for plan in plans for cell in plan.cells}
    failed = [spec for spec in specs.values() if folder.failure_of(spec).is_file()]
    finished = sum(folder.has(spec) for spec in specs.values())
    say(f"{finished} of {len(specs)} runs are finished in {folder.root}.")
    if failed:
        reasons = {spec.hash: reason for spec, reason in folder.failures()}
        for spec in failed[:10]:
            say(f"  failed: {spec}: {one_line(reasons.get(spec.hash, ''))}")
        say(f"{len(failed)} failed; their errors are in {folder.root}/failed.")
        sys.exit(1)
    choice = f" --plan {plans[0].name}" if len(folder.plans()) > 1 else ""
    say(f"Next: ogkd bench table {folder.root}{choice}")


@app.command()
def status(runs: RunsArgument) -> None:
    """Show what is done, missing and failed in a folder of runs."""
    from ogkd.bench.worker import one_line

    folder = _open(runs)
    for name, found in folder.plans().items():
        specs = {cell.spec.hash: cell.spec for cell in found.cells}
        done = sum(folder.has(spec) for spec in specs.values())
        failed = sum(folder.failure_of(spec).is_file() for spec in specs.values())
        missing = len(specs) - done - failed
        typer.echo(f"{name}: {done} done, {missing} missing, {failed} failed of {len(specs)}")
    for spec, reason in folder.failures():
        typer.echo(f"failed: {spec}\n  {one_line(reason)}")


@app.command()
def collect(runs: RunsArgument) -> None:
    """Write all finished runs to RUNS/results.csv and results.json."""
    from ogkd.bench.tidy import collect as collect_runs

    rows = collect_runs(_open(runs))
    typer.echo(f"{len(rows)} rows: {runs / 'results.csv'}, {runs / 'results.json'}")


@app.command()
def table(
    runs: RunsArgument,
    *,
    plan: PlanOption = None,
    metric: Annotated[str, typer.Option(help="accuracy, macro_f1, aurc, ece, ...")] = "accuracy",
    format: Annotated[
        Literal["markdown", "latex", "csv"], typer.Option(help="Output format.")
    ] = "markdown",
    every_dataset: Annotated[
        bool,
        typer.Option("--datasets/--average", help="Also a table per dataset, or only the average."),
    ] = True,
) -> None:
    """Print the paper's table from finished runs; best bold, second underlined."""
    from ogkd.bench.tables import make_table

    folder = _open(runs)
    chosen = _plan(folder, plan)
    text = make_table(folder, chosen, metric=metric, format=format, per_dataset=every_dataset)
    typer.echo(text)


@app.command()
def figure(
    runs: RunsArgument,
    names: Annotated[
        list[str] | None, typer.Argument(help="Which figures (default: all possible).")
    ] = None,
    *,
    plan: PlanOption = None,
    pair: Annotated[
        tuple[str, str] | None, typer.Option(help="Labels of the two methods to compare.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for SVG and PNG.")] = Path(
        "figures"
    ),
) -> None:
    """Draw the paper's figures from finished runs, as SVG and PNG."""
    from ogkd.bench.figures import make_figures

    folder = _open(runs)
    chosen = _plan(folder, plan)
    for path in make_figures(folder, chosen, out, names=names or None, pair=pair):
        typer.echo(path)


@app.command()
def compare(
    runs: RunsArgument,
    methods: Annotated[
        list[str] | None,
        typer.Argument(help="Two row labels to compare (default: compare with published numbers)."),
    ] = None,
    *,
    plan: PlanOption = None,
    part: Annotated[
        str | None, typer.Option(help="For two methods: test, base, novel or hm.")
    ] = None,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV (for published numbers).")
    ] = False,
) -> None:
    """Compare with published numbers, or two methods by a paired bootstrap."""
    from ogkd.bench.compare import compare_with_published, comparison_csv, comparison_markdown
    from ogkd.bench.stats import compare_labels, differences_markdown

    folder = _open(runs)
    chosen = _plan(folder, plan)
    if methods and len(methods) != 2:
        raise ConfigError(f"Give two labels to compare, or none, but not {len(methods)}.")
    if methods:
        first, second = methods
        found = compare_labels(folder, chosen, first, second, part=part)
        typer.echo(differences_markdown(found, first, second))
        return
    rows = compare_with_published(folder, chosen)
    typer.echo(comparison_csv(rows) if as_csv else comparison_markdown(rows))


def _open(runs: Path) -> RunsFolder:
    from ogkd.bench.runs import RunsFolder

    if not (runs / "plans").is_dir():
        raise ConfigError(f"{runs} is not a folder of runs. Give one that `bench run --out` wrote.")
    return RunsFolder(runs)


def _plan(folder: RunsFolder, name: str | None) -> Plan:
    plans = folder.plans()
    if name is None and len(plans) == 1:
        return next(iter(plans.values()))
    if name not in plans:
        problem = (
            f"There is no grid '{name}' in {folder.root}" if name else "There are several grids"
        )
        raise ConfigError(f"{problem}. Choose one with --plan: {', '.join(plans)}.")
    return plans[name]
