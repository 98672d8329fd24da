"""`ogkd bench`: grids of runs, resumable, with the paper's tables and figures."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.output import print_facts, say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.bench.runs import Plan, RunsFolder, RunSpec
    from ogkd.bench.sources import Source
    from ogkd.bench.worker import Job
    from ogkd.bench.workers import Progress

app = CommandGroup("Reproduce the paper, or compare methods on your own data.")

_MOST = 10_000  # numbers of an option

RunsArgument = Annotated[Path, Argument(help="A folder written by `bench run --out`.")]
RunsOption = Annotated[Path, Option("--out", "-o", help="The folder for the runs.")]
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
    prompts: Annotated[
        str | None,
        Option(help="Whose prompts: released, ours, or a folder with DATASET.json files."),
    ] = None
    settings: Annotated[
        list[str] | None,
        Option(
            "--set",
            metavar="KEY=VALUE",
            help="A setting of every method that has it, such as train.epochs=2. Repeatable.",
        ),
    ] = None

    def expand(self, tuned: str | None = None) -> list[tuple[Plan, dict[str, Source], str]]:
        """Return the plan of each grid of the name, with its datasets and backbone."""
        from ogkd.bench.grid import expand, grid_names, read_grid, without_preset

        plans = []
        for name in grid_names(self.grid):
            grid = read_grid(name, self.changes() | {"tuned": tuned})
            plan, sources = expand(grid)
            if names := without_preset(grid, sources):
                say(f"Note: the preset auto is used for: {', '.join(names)} (not the paper's).")
            plans.append((plan, sources, grid.backbone))
        return plans

    def changes(self) -> dict[str, Any]:
        """The fields of the grid that options replace."""
        return {
            "data": self.data,
            "backbone": self.backbone,
            "prompts": self.prompts,
            "datasets": None if self.datasets is None else opt.split_list(self.datasets),
            "only": None if self.methods is None else opt.split_list(self.methods),
            "shots": _numbers("shots", self.shots),
            "seeds": _numbers("seeds", self.seeds),
            "over": opt.read_settings(self.settings) if self.settings else None,
        }


@dataclass(frozen=True)
class WorkerOptions(opt.RayOptions):
    """Where the runs are done."""

    without_ray = ("workers",)

    workers: Annotated[
        int | None,
        Option(
            min=0,
            max=1024,
            help="Processes (default: 1; with --ray: as many as fit); 0: this process.",
        ),
    ] = None

    def run(self, job: Job, progress: Progress) -> None:
        from ogkd.bench.worker import work
        from ogkd.bench.workers import run_processes, run_ray

        if (cluster := self.cluster()) is not None:
            run_ray(job, progress, cluster)
        elif self.workers == 0:
            work(job, progress)
        else:
            run_processes(job, progress, workers=self.workers or 1)


def _numbers(name: str, text: str | None) -> list[int] | None:
    """Read `1,2,4` or `1-8`."""
    if text is None:
        return None
    parts = opt.split_list(text)
    numbers: list[int] = []
    for part in parts:
        first, dash, last = part.partition("-")
        with contextlib.suppress(ValueError):
            span = range(int(first), int(last if dash else first) + 1)
            if span[_MOST:]:
                raise ConfigError(f"{part} are more than {_MOST:,} numbers.", argument=name)
            numbers += span
    if len(numbers) < max(1, len(parts)):
        raise ConfigError(f"Give numbers such as 1,4,16 or 1-8, not '{text}'.", argument=name)
    return numbers


@app.command("list")
def list_grids() -> None:
    """List the grids that come with ogkd."""
    from ogkd.bench.grid import protocols

    print_facts(protocols())


@app.command()
def run(
    grid: GridOptions,
    out: RunsOption,
    workers: WorkerOptions,
    tuned: Annotated[
        str | None, Option(help="Use the settings that `bench tune` wrote to this file.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the runs that are missing and count them.")
    ] = False,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Run what is missing. Stop at any time; the same command resumes."""
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.workers import make_job

    workers.cluster()  # refuses what cannot work
    folder = RunsFolder(out)
    plans = grid.expand(tuned)
    if dry_run:
        for plan, sources, _ in plans:
            _list_missing(folder, plan, sources)
        return
    for plan, sources, backbone in plans:
        job = make_job(folder, plan, sources, backbone, device=device, engine=engine)
        _run_plan(folder, plan, sources, job, workers)
    _summarise(folder, [plan for plan, _, _ in plans])


def _list_missing(folder: RunsFolder, plan: Plan, sources: dict[str, Source]) -> None:
    """Print the runs that are missing, one per line, and how many there are."""
    from ogkd.bench.sources import require_banks

    missing = [spec for spec in plan.specs.values() if not folder.has(spec) or folder.damage(spec)]
    for spec in missing:
        typer.echo(f"{spec.hash}  {spec}")
    done = len(plan.specs) - len(missing)
    count = f"{len(plan.specs)} runs on {len(sources)} dataset(s)"
    typer.echo(f"{plan.title}: {count}, {done} of them done.")
    try:
        require_banks(sources)
    except ConfigError as error:
        say(f"Note: {error}")


def _run_plan(
    folder: RunsFolder, plan: Plan, sources: dict[str, Source], job: Job, workers: WorkerOptions
) -> None:
    """Run what is missing of one plan and show progress."""
    from ogkd.bench.workers import Progress, prepare

    for note in prepare(folder, plan, sources):
        say(f"Note: {note}")
    progress = Progress(folder, plan)
    say(f"{plan.title}: {progress.total} runs, {progress.settled} of them done already.")
    if progress.settled == progress.total:
        return
    with progress:
        try:
            workers.run(job, progress)
        except KeyboardInterrupt:
            say("Stopped. Run the same command again to resume.")
            sys.exit(130)


def _summarise(folder: RunsFolder, plans: list[Plan]) -> None:
    """Print a summary; the exit code is 1 if runs failed."""
    from ogkd.bench.worker import one_line

    specs = {key: spec for plan in plans for key, spec in plan.specs.items()}
    finished = sum(folder.has(spec) for spec in specs.values())
    say(f"{finished} of {len(specs)} runs are finished in {folder.root}.")
    failed = [spec for spec in specs.values() if folder.failure_of(spec).is_file()]
    if failed:
        for spec in failed[:10]:
            say(f"  failed: {spec}: {one_line(folder.reason(spec))}")
        say(f"{len(failed)} failed; their errors are in {folder.root}/failed.")
        sys.exit(1)
    several = len(list((folder.root / "plans").glob("*.json"))) > 1
    choice = f" --plan {plans[0].name}" if several else ""
    say(f"Next: ogkd bench table {folder.root}{choice}")


@app.command()
def tune(
    grid: GridOptions,
    out: RunsOption,
    save: Annotated[Path, Option(help="The file for the settings (TOML).")],
    workers: WorkerOptions,
    trials: Annotated[int, Option(min=2, max=1000, help="Settings to try per method.")] = 16,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Search methods' numbers on validation images; test images stay unseen.

    Give --methods, and use the result with `ogkd bench run GRID --tuned FILE`.
    """
    from ogkd.bench.grid import expand, grid_names, read_grid
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.tune import best_settings, tuning_grid, write_tuned
    from ogkd.bench.workers import make_job

    if grid.methods is None:
        raise ConfigError("Name the methods to tune, such as ogkd.", argument="methods")
    workers.cluster()  # refuses what cannot work
    (name, *others) = grid_names(grid.grid)
    if others:
        raise ConfigError(f"Tune a single grid, such as {name}.", argument="grid")
    methods = opt.split_list(grid.methods)
    trial_grid = tuning_grid(
        read_grid(name, grid.changes() | {"only": None}), methods, trials=trials
    )
    plan, sources = expand(trial_grid)
    folder = RunsFolder(out, on_skip=say)
    job = make_job(folder, plan, sources, trial_grid.backbone, device=device, engine=engine)
    _run_plan(folder, plan, sources, job, workers)
    made_by = f"Written by `ogkd bench tune {grid.grid} --methods {','.join(methods)}`."
    write_tuned(save, best_settings(folder, plan), made_by=made_by)
    typer.echo(f"Settings of {len(methods)} method(s) on {len(sources)} dataset(s) -> {save}")
    typer.echo(f"Next: ogkd bench run {grid.grid} --tuned {save} --out RUNS")


@app.command()
def status(runs: RunsArgument) -> None:
    """Show what is done, missing, failed and damaged in a folder of runs."""
    from ogkd.bench.worker import one_line

    folder = _open(runs)
    damaged: dict[str, tuple[RunSpec, str]] = {}
    for name, plan in folder.plans().items():
        specs = plan.specs
        damage = {key: (spec, folder.damage(spec)) for key, spec in specs.items()}
        damaged |= {key: (spec, problem) for key, (spec, problem) in damage.items() if problem}
        unusable = len(damaged.keys() & specs.keys())
        done = sum(folder.has(spec) and key not in damaged for key, spec in specs.items())
        failed = sum(folder.failure_of(spec).is_file() for spec in specs.values())
        missing = len(specs) - done - failed - unusable
        words = f"{name}: {done} done, {missing} missing, {failed} failed"
        typer.echo(f"{words}{f', {unusable} damaged' if unusable else ''} of {len(specs)}")
    for spec, reason in folder.failures():
        typer.echo(f"failed: {spec}\n  {one_line(reason)}")
    for spec, problem in damaged.values():
        typer.echo(f"damaged: {spec}\n  {problem}")
    if damaged:
        say("Run the grid into this folder again: damaged runs are moved away and computed again.")


@app.command()
def table(
    runs: RunsArgument,
    plan: PlanOption = None,
    metric: Annotated[str, Option(help="accuracy, macro_f1, aurc, ece, ...")] = "accuracy",
    format: Annotated[
        Literal["markdown", "latex", "csv", "runs"],
        Option(help="Output format; runs: every finished run of the folder, as CSV."),
    ] = "markdown",
) -> None:
    """Print the paper's table from finished runs; best bold, second underlined."""
    _require_pandas()
    from ogkd.bench.tables import make_table
    from ogkd.bench.tidy import collect, records_csv

    if format == "runs":
        typer.echo(records_csv(collect(_open(runs))), nl=False)
    else:
        typer.echo(make_table(*_chosen(runs, plan), metric=metric, format=format))


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
    _require_pandas()
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
    as_csv: Annotated[bool, Option("--csv", help="Print CSV (for published numbers).")] = False,
) -> None:
    """Compare with published numbers, or two methods by a paired bootstrap."""
    _require_pandas()
    from ogkd.bench.compare import compare_with_published, comparison_csv, comparison_markdown
    from ogkd.bench.stats import compare_labels, differences_markdown
    from ogkd.bench.tidy import changed_settings

    folder, chosen = _chosen(runs, plan)
    if methods and len(methods) != 2:
        raise ConfigError(f"Give two labels or none, not {len(methods)}.", argument="methods")
    if methods:
        first, second = methods
        differences = compare_labels(folder, chosen, first, second)
        typer.echo(differences_markdown(differences, first, second))
        return
    rows = compare_with_published(folder, chosen)
    text = comparison_markdown(rows, changed_settings(chosen))
    typer.echo(comparison_csv(rows) if as_csv else text)


def _require_pandas() -> None:
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError('Tables and figures need pandas: pip install "ogkd[bench]".')


def _open(runs: Path) -> RunsFolder:
    from ogkd.bench.runs import RunsFolder

    if not (runs / "plans").is_dir():
        raise ConfigError(f"{runs} is not a folder of runs. Give one that `bench run --out` wrote.")
    return RunsFolder(runs, on_skip=say)


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
