"""`ogkd bench`: grids of runs, resumable, with the paper's tables and figures."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from ogkd.cli import options as opt
from ogkd.cli.output import print_facts, say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.bench.progress import Progress
    from ogkd.bench.runs import Plan, RunsFolder, RunSpec
    from ogkd.bench.sources import Source
    from ogkd.bench.worker import Job

app = opt.CommandGroup("Reproduce the paper, or compare methods on your own data.")

RunsArgument = Annotated[Path, Argument(help="A folder written by `bench run --out`.")]
PlanOption = Annotated[
    str | None, Option("--plan", help="Which grid of the folder, if it has several.")
]
NamesOption = Annotated[str | None, Option(help="Only these, separated by commas.")]
NumbersOption = Annotated[str | None, Option(help="Instead of the grid's: 1,4,16 or 1-8.")]


@dataclass(frozen=True)
class GridOptions:
    """A grid, and what to replace in it."""

    grid: Annotated[
        str,
        Argument(
            help="A grid: a TOML file, a name from `ogkd bench list`, or a set such as phantoms."
        ),
    ]
    data: Annotated[
        str | None, Option(help="A folder of datasets ({train,val,test}/class), or phantoms.")
    ] = None
    datasets: NamesOption = None
    methods: NamesOption = None
    shots: NumbersOption = None
    seeds: NumbersOption = None
    backbone: Annotated[
        str | None, Option("--backbone", "-b", help="Use this backbone instead of the grid's.")
    ] = None

    def expand(self) -> list[tuple[Plan, dict[str, Source], str]]:
        """Return the plan of each grid of the name, with its datasets and backbone."""
        from ogkd.bench.grid import expand, grid_names, read_grid

        changes = {
            "data": self.data,
            "datasets": None if self.datasets is None else opt.split_list(self.datasets),
            "only": None if self.methods is None else opt.split_list(self.methods),
            "shots": _numbers("--shots", self.shots),
            "seeds": _numbers("--seeds", self.seeds),
            "backbone": self.backbone,
        }
        grids = [read_grid(name, changes) for name in grid_names(self.grid)]
        return [(*expand(found), found.backbone) for found in grids]


@dataclass(frozen=True)
class WorkerOptions(opt.RayOptions):
    """Where the runs are done."""

    without_ray = ("workers",)

    workers: Annotated[
        int | None,
        Option(min=0, help="Processes (default: 1; with --ray: as many as fit); 0: this process."),
    ] = None

    def run(self, folder: RunsFolder, job: Job, progress: Progress) -> None:
        from ogkd.bench.ray_workers import run_ray
        from ogkd.bench.workers import run_here, run_processes

        if (cluster := self.cluster()) is not None:
            run_ray(folder, job, progress, cluster)
        elif self.workers == 0:
            run_here(folder, job, progress)
        else:
            run_processes(folder, job, progress, workers=self.workers or 1)


def _numbers(option: str, text: str | None) -> list[int] | None:
    """Read `1,2,4` or `1-8`."""
    if text is None:
        return None
    parts = opt.split_list(text)
    found: list[int] = []
    for part in parts:
        first, dash, last = part.partition("-")
        with contextlib.suppress(ValueError):
            found += range(int(first), int(last if dash else first) + 1)
    if len(found) < max(1, len(parts)):
        raise ConfigError(f"{option} takes numbers such as 1,4,16 or 1-8, not '{text}'.")
    return found


@app.command("list")
def list_grids() -> None:
    """List the grids that come with ogkd."""
    from ogkd.bench.grid import protocols

    print_facts(protocols())


def _specs(plans: Iterable[Plan]) -> dict[str, RunSpec]:
    return {cell.spec.hash: cell.spec for plan in plans for cell in plan.cells}


@app.command()
def plan(
    grid: GridOptions,
    out: Annotated[Path | None, Option("--out", "-o", help="A folder with finished runs.")] = None,
    show: Annotated[bool, Option("--show", help="Print one line per run.")] = False,
) -> None:
    """Show how many runs a grid has, how many are done, and an estimate of the time left."""
    from ogkd.bench.progress import duration, estimate
    from ogkd.bench.runner import group_runs
    from ogkd.bench.runs import RunsFolder

    plans = grid.expand()
    folder = RunsFolder(out) if out is not None else None
    finished = folder.readable_runs() if folder is not None else []
    how = "from finished runs" if finished else "a rough guess until some runs are finished"
    everything: dict[str, RunSpec] = {}
    for chosen, sources, _ in plans:
        specs = _specs([chosen])
        missing = {
            key: spec for key, spec in specs.items() if folder is None or not folder.has(spec)
        }
        everything |= missing
        if show:
            for key, spec in specs.items():
                typer.echo(f"{'missing' if key in missing else 'done   '} {key}  {spec}")
        # Whole groups are trained: all that have a missing run.
        groups = [group.specs for group in group_runs(list(specs.values()))]
        passes = [group for group in groups if any(spec.hash in missing for spec in group)]
        seconds = estimate([spec for group in passes for spec in group], finished)
        typer.echo(f"{chosen.title}: {len(specs)} runs on {len(sources)} dataset(s)")
        typer.echo(f"  done      {len(specs) - len(missing)}")
        typer.echo(f"  missing   {len(missing)}, trained in {len(passes)} passes")
        typer.echo(f"  about     {duration(seconds)} on one worker ({how})")
    if len(plans) > 1:
        typer.echo(
            f"Total: {len(everything)} different runs are missing, "
            f"about {duration(estimate(list(everything.values()), finished))}"
        )


@app.command()
def run(
    grid: GridOptions,
    out: Annotated[Path, Option("--out", "-o", help="The folder for the runs.")],
    workers: WorkerOptions,
    device: opt.DeviceOption = "auto",
) -> None:
    """Run what is missing. Stop at any time; the same command resumes."""
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.workers import make_job

    workers.cluster()  # refuses what cannot work
    folder = RunsFolder(out)
    plans = grid.expand()
    for chosen, sources, place in plans:
        job = make_job(chosen, sources, place, device=device)
        _run_plan(folder, chosen, sources, job, workers)
    _close(folder, [chosen for chosen, _, _ in plans])


def _run_plan(
    folder: RunsFolder, chosen: Plan, sources: dict[str, Source], job: Job, workers: WorkerOptions
) -> None:
    """Run what is missing of one plan, with a live table of progress."""
    from ogkd.bench.progress import Progress, estimate
    from ogkd.bench.workers import prepare

    for note in prepare(folder, chosen, sources):
        say(f"Note: {note}")
    specs = _specs([chosen])
    missing = [spec for spec in specs.values() if not folder.has(spec)]
    seconds = estimate(missing, folder.readable_runs())
    done, count = len(specs) - len(missing), workers.workers or 1
    say(f"{chosen.title}: {len(specs)} runs, {done} of them done already.")
    if not missing:
        return
    with Progress(total=len(specs), done=done, seconds=seconds, workers=count) as progress:
        try:
            workers.run(folder, job, progress)
        except KeyboardInterrupt:
            say("Stopped. Run the same command again to resume.")
            sys.exit(130)


def _close(folder: RunsFolder, plans: list[Plan]) -> None:
    """Print a summary; the exit code is 1 if runs failed."""
    from ogkd.bench.worker import one_line

    specs = _specs(plans)
    finished = sum(folder.has(spec) for spec in specs.values())
    say(f"{finished} of {len(specs)} runs are finished in {folder.root}.")
    failed = [spec for spec in specs.values() if folder.failure_of(spec).is_file()]
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
        specs = _specs([found]).values()
        done = sum(folder.has(spec) for spec in specs)
        failed = sum(folder.failure_of(spec).is_file() for spec in specs)
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
    plan: PlanOption = None,
    metric: Annotated[str, Option(help="accuracy, macro_f1, aurc, ece, ...")] = "accuracy",
    format: Annotated[
        Literal["markdown", "latex", "csv"], Option(help="Output format.")
    ] = "markdown",
    every_dataset: Annotated[
        bool, Option("--datasets/--average", help="Also a table per dataset, or only the average.")
    ] = True,
) -> None:
    """Print the paper's table from finished runs; best bold, second underlined."""
    from ogkd.bench.tables import make_table

    found = make_table(
        *_chosen(runs, plan), metric=metric, format=format, per_dataset=every_dataset
    )
    typer.echo(found)


@app.command()
def figure(
    runs: RunsArgument,
    names: Annotated[
        list[str] | None, Argument(help="Which figures (default: all possible).")
    ] = None,
    plan: PlanOption = None,
    pair: Annotated[
        tuple[str, str] | None, Option(help="Labels of the two methods to compare.")
    ] = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for SVG and PNG.")] = Path("figures"),
) -> None:
    """Draw the paper's figures from finished runs, as SVG and PNG."""
    from ogkd.bench.figures import make_figures

    for path in make_figures(*_chosen(runs, plan), out, names=names or None, pair=pair):
        typer.echo(path)


@app.command()
def compare(
    runs: RunsArgument,
    methods: Annotated[
        list[str] | None,
        Argument(help="Two row labels to compare (default: compare with published numbers)."),
    ] = None,
    plan: PlanOption = None,
    part: Annotated[str | None, Option(help="For two methods: test, base, novel or hm.")] = None,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV (for published numbers).")] = False,
) -> None:
    """Compare with published numbers, or two methods by a paired bootstrap."""
    from ogkd.bench.compare import compare_with_published, comparison_csv, comparison_markdown
    from ogkd.bench.stats import compare_labels, differences_markdown

    folder, chosen = _chosen(runs, plan)
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


def _chosen(runs: Path, name: str | None) -> tuple[RunsFolder, Plan]:
    """Open a folder of runs; its plan is the one of a name, or the only one."""
    folder = _open(runs)
    plans = folder.plans()
    if name is None and len(plans) == 1:
        (name,) = plans
    if name not in plans:
        problem = f"There is no grid '{name}' in {runs}" if name else "There are several grids"
        raise ConfigError(f"{problem}. Choose one with --plan: {', '.join(plans)}.")
    return folder, plans[name]
