"""`ogkd bench`: grids of runs, resumable, with the paper's tables and figures."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.options import print_facts, say
from ogkd.errors import ConfigError

if TYPE_CHECKING:
    from ogkd.bench.grid import Grid
    from ogkd.bench.runs import Plan, RunsFolder, RunSpec
    from ogkd.bench.worker import Job, Notify

app = CommandGroup("Reproduce the paper, or compare methods on your own data.")

_MOST = 1000  # numbers of an option

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
        str, Argument(help="A TOML file, a name from `ogkd bench list`, or a set such as phantoms.")
    ]
    data: Annotated[
        str | None, Option(help="A folder of datasets ({train,val,test}/class), or phantoms.")
    ] = None
    datasets: NamesOption = None
    methods: NamesOption = None
    rows: Annotated[
        str | None, Option(help="Other rows of a grid that has them: rivals or towers.")
    ] = None
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
        Option("--set", metavar="KEY=VALUE", help="A setting, such as train.epochs=2. Repeatable."),
    ] = None
    test_on: Annotated[
        str | None, Option(help="Test on this dataset instead; its classes must be known by name.")
    ] = None

    def read(self) -> list[Grid]:
        """The grids of the name, with the fields that options replace."""
        from ogkd.bench.grid import grid_names, read_grid

        changes = {
            "data": self.data,
            "backbone": self.backbone,
            "prompts": self.prompts,
            "datasets": self.datasets and opt.split_list(self.datasets),
            "only": self.methods and opt.split_list(self.methods),
            "shots": _numbers("shots", self.shots),
            "seeds": _numbers("seeds", self.seeds),
            "over": opt.read_settings(self.settings or ()) or None,
            "test_on": self.test_on,
        }
        return [read_grid(name, changes, row_set=self.rows) for name in grid_names(self.grid)]


def _numbers(name: str, text: str | None) -> list[int] | None:
    """Read `1,2,4` or `1-8`."""
    if text is None:
        return None
    try:
        ends = [[int(end) for end in part.split("-")] for part in opt.split_list(text)]
    except ValueError:
        ends = []
    if sum(max(0, part[-1] - part[0] + 1) for part in ends) > _MOST:
        raise ConfigError(f"'{text}' are more than {_MOST:,} numbers.", argument=name)
    numbers = [number for part in ends for number in range(part[0], part[-1] + 1)]
    if not numbers:
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
    out: Annotated[Path, Option("--out", "-o", help="The folder for the runs.")],
    workers: Annotated[
        int, Option(min=0, max=1024, help="Processes; more commands on one folder join in.")
    ] = 1,
    dry_run: Annotated[
        bool, Option("--dry-run", help="List the runs that are missing and count them.")
    ] = False,
    device: opt.DeviceOption = "auto",
    engine: opt.EngineOption = "torch",
) -> None:
    """Run what is missing. Stop at any time; the same command resumes."""
    from ogkd.bench.grid import expand
    from ogkd.bench.runner import prepare
    from ogkd.bench.runs import RunsFolder
    from ogkd.bench.worker import Job, watched

    folder, grids = RunsFolder(out), grid.read()
    specs: dict[str, RunSpec] = {}
    for each, (plan, sources) in ((each, expand(each)) for each in grids):
        missing = [spec for spec in plan.specs.values() if not folder.has(spec)]
        specs |= plan.specs
        if dry_run:
            for spec in missing:
                typer.echo(f"{spec.hash}  {spec}")
        else:
            for note in prepare(folder, plan, sources):
                say(f"Note: {note}")
            missing = [spec for spec in plan.specs.values() if not folder.has(spec)]
        done = len(plan.specs) - len(missing)
        line = f"{plan.title}: {len(plan.specs)} runs, {done} of them done already."
        (typer.echo if dry_run else say)(line)
        if dry_run or not missing:
            continue
        job = Job(
            out=out, plan=plan, sources=sources, backbone=each.backbone,
            device=device, engine=engine,
        )  # fmt: skip
        with watched(folder, plan) as notify:
            _work(job, notify, workers)
    if dry_run:
        return
    _print_end(folder, plan, specs)


def _work(job: Job, notify: Notify, workers: int) -> None:
    """Run a job here or in processes, until it is done or stopped."""
    from ogkd.bench.worker import run_processes, work

    try:
        if workers == 0:
            work(job, notify)
        else:
            run_processes(job, workers, notify)
    except KeyboardInterrupt:
        say("Stopped. Run the same command again to resume.")
        sys.exit(130)


def _print_end(folder: RunsFolder, plan: Plan, wanted: Mapping[str, RunSpec]) -> None:
    """What is finished, and what failed: then the exit code is 1."""
    failed = [why for name, why in folder.failures().items() if name in wanted]
    finished = sum(map(folder.has, wanted.values()))
    say(f"{finished} of {len(wanted)} runs are finished in {folder.root}.")
    for failure in failed[:10]:
        say(f"  failed: {failure.spec}: {failure}")
    if failed:
        say(f"{len(failed)} failed; their errors are in {folder.root}/failed.")
        sys.exit(1)
    named = f" --plan {plan.name}" if len(folder.plans()) > 1 else ""
    say(f"Next: ogkd bench table {folder.root}{named}")


@app.command()
def table(
    runs: RunsArgument,
    plan: PlanOption = None,
    metric: Annotated[str, Option(help="accuracy, macro_f1, aurc, ece, ...")] = "accuracy",
    format: Annotated[
        Literal["markdown", "runs"],
        Option(help="Output format; runs: every finished run of the folder, as CSV."),
    ] = "markdown",
) -> None:
    """Print the paper's table from finished runs; best bold, second underlined."""
    _require_pandas()
    from ogkd.bench.tables import make_table
    from ogkd.bench.tidy import collect, csv_of

    if format == "runs":
        typer.echo(csv_of(collect(_open(runs))), nl=False)
    else:
        typer.echo(make_table(*_chosen(runs, plan), metric=metric))


@app.command()
def figure(
    runs: RunsArgument,
    names: Annotated[
        list[str] | None, Argument(help="Which figures (default: all possible).")
    ] = None,
    plan: PlanOption = None,
    out: Annotated[Path, Option("--out", "-o", help="Folder for SVG and PNG.")] = Path("figures"),
) -> None:
    """Draw the paper's figures from finished runs, as SVG and PNG."""
    _require_pandas()
    from ogkd.bench.figures import make_figures

    for path in make_figures(*_chosen(runs, plan), out, names=names or None):
        typer.echo(path)


@app.command()
def compare(
    runs: RunsArgument,
    methods: Annotated[
        list[str] | None,
        Argument(help="Two row labels to compare (default: compare with published numbers)."),
    ] = None,
    plan: PlanOption = None,
) -> None:
    """Compare with published numbers, or two methods by a paired bootstrap."""
    _require_pandas()
    from ogkd.bench.compare import differences_markdown, published_markdown

    if len(methods or ()) not in (0, 2):
        raise ConfigError("Give two labels or none.", argument="methods")
    both = _chosen(runs, plan)
    typer.echo(differences_markdown(*both, *methods) if methods else published_markdown(*both))


def _require_pandas() -> None:
    if importlib.util.find_spec("pandas") is None:
        raise ConfigError('Tables and figures need pandas: pip install "ogkd[bench]".')


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
        known = ", ".join(plans)
        raise ConfigError(f"Choose a grid of {runs} with --plan: {known}.", argument="plan")
    return folder, plans[name]
