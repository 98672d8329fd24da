"""`ogkd data`: benchmark datasets and your own data."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.options import print_facts, print_json, print_table, say
from ogkd.data.names import SPLITS
from ogkd.errors import ConfigError, Interrupted, pluralize
from ogkd.files import write_json

if TYPE_CHECKING:
    from ogkd.audit import Audit
    from ogkd.audit.result import Severity
    from ogkd.data.catalog import Benchmark

app = CommandGroup("Benchmark datasets and your own data: list, download, check, split.")

_SHOWN = 5  # files listed under a finding; the JSON has all
_COLOURS: dict[Severity, str] = {"error": "red", "warning": "yellow", "note": "blue"}


@app.command("list")
def list_benchmarks(
    name: Annotated[
        str | None, Argument(help="A benchmark, such as btmri, to show all that is known about it.")
    ] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Show the benchmark datasets and whether they are on this machine."""
    from ogkd.data.catalog import benchmark, benchmarks

    records = benchmarks().values() if name is None else [benchmark(name)]
    rows = [_facts(record) for record in records]
    if as_json:
        print_json(rows if name is None else rows[0])
    elif name is not None:
        print_facts({key.replace("_", " "): _in_words(value) for key, value in rows[0].items()})
    else:
        columns, numbers = ("name", "here", "modality", "organ"), ("classes", *SPLITS)
        cells = [
            [row["name"], _in_words(row["present"]), row["modality"], row["organ"]]
            + [f"{count:,}" for count in (len(row["class_names"]), *row["counts"].values())]
            for row in rows
        ]
        print_table((*columns, *numbers), cells, numbers=numbers)
        typer.echo("More: `ogkd data list NAME`. Download: `ogkd data download NAME`.")


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {number:,}" for key, number in value.items())
    if isinstance(value, list):
        return ", ".join(value)
    return {True: "yes", False: "no", None: ""}.get(value, str(value))


@app.command("download")
def download(
    names: Annotated[list[str], Argument(help="Benchmarks such as btmri, or all.")],
) -> None:
    """Download benchmarks and check them. Run the same command again to resume."""
    from ogkd.data.catalog import benchmark, benchmarks
    from ogkd.data.fetch import download_benchmark, locate_benchmark

    known = benchmarks() if names == ["all"] else names
    for record in dict.fromkeys([benchmark(name) for name in known]):
        if present := locate_benchmark(record):
            typer.echo(f"{record.name} is already present: {present}")
            continue
        say(f"{record.name}: licence: {record.licence}")
        try:
            path = download_benchmark(record)
        except KeyboardInterrupt as error:
            raise Interrupted(
                "Stopped. What has been downloaded is kept: run the same command again to resume."
            ) from error
        typer.echo(f"{record.name} -> {path}")
        typer.echo(f"Next:  ogkd fit {record.name} --shots 16 --out my-model")


def _facts(record: Benchmark) -> dict[str, Any]:
    from ogkd.data.fetch import locate_benchmark

    path = locate_benchmark(record)
    return {
        **record.model_dump(mode="json"),
        "base_classes": list(record.base_classes),
        "novel_classes": list(record.novel_classes),
        "present": path is not None,
        "path": str(path) if path else None,
    }


@app.command("check")
def check(
    data: opt.DataArgument,
    as_json: Annotated[
        Path | None, opt.output_file("--json", help="Write all findings to this file.")
    ] = None,
    html: Annotated[
        Path | None, opt.output_file("--html", help="Write a page with thumbnails to this file.")
    ] = None,
    backbone: Annotated[
        str | None,
        Option(
            "--backbone",
            "-b",
            help="Also look for suspicious labels, with this model (auto: as `fit` chooses).",
        ),
    ] = None,
    columns: opt.ColumnsOption = None,
    slice: opt.SliceOption = None,
    cases: opt.CasesOption = None,
) -> None:
    """Count classes, read every file, and look for duplicates, shared patients and wrong labels.

    Exit code 0: at most warnings; 1: errors in the data; 2: the check could not run.
    """
    from ogkd.audit.check import check_data, read_images
    from ogkd.audit.labels import require_cleanlab
    from ogkd.data.grouping import Grouping
    from ogkd.fitting.choose import choose_backbone, warning_about
    from ogkd.images import decode_once
    from ogkd.report import write_data_check

    if backbone is not None:
        require_cleanlab()
    grouping = Grouping.parse(cases, slice=slice)
    dataset = read_images(data, grouping, columns=opt.read_columns(columns))
    images = dataset.images
    with decode_once():
        model = None
        if backbone is not None:
            name = choose_backbone(images) if backbone == "auto" else backbone
            model = ogkd.load_backbone(name)
            if warning := warning_about(model, images):
                say(f"WARNING: {warning}")
        audit = check_data(data, dataset, backbone=model)
        if as_json is not None:
            write_json(as_json, audit.as_json())
        if html is not None:
            write_data_check(audit, images=images, out=html)
    _print_audit(audit)
    for file in filter(None, (as_json, html)):
        say(f"-> {file}")
    raise typer.Exit(audit.exit_code)


@app.command("split")
def split(
    data: opt.DataArgument,
    out: Annotated[Path, opt.output_file("--out", "-o", help="The table: .csv or .xlsx.")],
    shares: Annotated[
        str, Option(help="Sizes of train, val and test (or train and test), in any unit.")
    ] = "0.6,0.2,0.2",
    seed: Annotated[int, Option(min=0, help="Decides which image goes where.")] = 1,
    left_out: Annotated[
        Path | None,
        opt.output_file(
            "--left-out", help="Write a table of the images left out, with the reasons."
        ),
    ] = None,
    findings: opt.FindingsOption = None,
    columns: opt.ColumnsOption = None,
    slice: opt.SliceOption = None,
    cases: opt.CasesOption = None,
) -> None:
    """Divide a dataset into parts to learn from, calibrate and test on; writes a table.

    Each class, or each finding, is divided in the same proportions. Images of one
    patient or case stay together, and so do copies; unreadable files, repeated
    images and images with several labels are left out. Existing splits are kept,
    and a missing one is taken from train.
    """
    from ogkd.audit.check import check_data, read_images
    from ogkd.audit.divide import divide_checked, left_out_rows
    from ogkd.data.grouping import Grouping
    from ogkd.data.tables import table_rows, write_table

    wanted = _read_shares(shares)
    dataset = read_images(
        data,
        Grouping.parse(cases),
        findings=opt.read_classes(findings),
        columns=opt.read_columns(columns),
    )
    audit = check_data(data, Grouping.parse(slice=slice).apply(dataset))
    division = divide_checked(dataset, audit, shares=wanted, seed=seed)
    write_table(out, table_rows(division.dataset, out.parent))
    if left_out is not None:
        write_table(left_out, left_out_rows(division, left_out.parent))
    sizes = Counter(case.split for case in division.dataset.cases)
    _print_counts(dataset.task.noun, division.counts(), sizes)
    for line in division.notes():
        say(_plain(line))
    typer.echo(f"-> {out}")
    typer.echo(f"Next:  ogkd fit {shlex.quote(str(out))} --out my-model")


def _read_shares(text: str) -> dict[str, float]:
    try:
        sizes = [float(part) for part in opt.split_list(text)]
        names = {2: ("train", "test"), 3: SPLITS}[len(sizes)]
        if min(sizes) > 0 and sum(sizes) < math.inf:  # written so that a NaN fails
            return {name: size / sum(sizes) for name, size in zip(names, sizes, strict=True)}
    except (ValueError, KeyError):
        pass
    raise ConfigError(
        f"shares must be two or three numbers above 0, but are '{text}'.", argument="shares"
    )


def _print_counts(
    noun: str, counts: Mapping[str, Mapping[str, int]], sizes: Mapping[str, int]
) -> None:
    """A table of the images of each class in each part, and of all."""
    names = next(iter(counts.values()))
    rows = [[_plain(name), *(part[name] for part in counts.values())] for name in names]
    rows.append(["all", *(sizes[part] for part in counts)])
    parts = [part or "images" for part in counts]
    print_table((noun, *parts), rows, numbers=parts)


def _print_audit(audit: Audit) -> None:
    facts = audit.facts
    sizes_of = Counter(record.split for record in audit.records)
    _print_counts("class", facts.counts, sizes_of)
    sizes = shorten(", ".join(facts.sizes), 40, placeholder=" ...") or "none"
    typer.echo(f"{facts.gray} grey and {facts.colour} colour images; sizes: {sizes}")
    for finding in audit.findings:
        colour = _COLOURS[finding.severity]
        typer.secho(f"\n{finding.severity.upper()}", fg=colour, bold=True, nl=False)
        typer.echo(f" {_plain(finding.what)}")
        for case in finding.where[:_SHOWN]:
            more = " = ..." if len(case.files) > _SHOWN else ""
            note = f"  ({case.note})" if case.note else ""
            typer.echo(f"  {_plain(' = '.join(case.files[:_SHOWN]) + more + note)}")
        if len(finding.where) > _SHOWN:
            typer.echo(f"  ... and {len(finding.where) - _SHOWN} more (--json lists all)")
        typer.echo(f"  -> {_plain(finding.next)}")
    numbers = [pluralize(audit.count(kind), kind) for kind in _COLOURS]
    typer.echo(f"\n{pluralize(len(audit.records), 'image')}: {', '.join(numbers)}")


def _plain(words: str) -> str:
    """Escape line breaks and terminal control codes, which a file name may contain."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words)
