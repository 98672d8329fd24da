"""`ogkd prompts check`: what reading a bank, and a backbone, tell of its texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ogkd.errors import ConfigError

_COLOURS = {"error": "red", "warning": "yellow"}
_SHIPPED = 50  # prompts of each class of the banks that come with the package


def check(
    banks: Annotated[
        list[Path] | None, typer.Argument(help="Shipped banks' names or JSON files.")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All banks of the package.")] = False,
    count: Annotated[
        int | None, typer.Option(min=1, help="Prompts that every class must have.")
    ] = None,
    words: Annotated[tuple[int, int], typer.Option(help="Fewest and most words.")] = (8, 40),
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    backbone: Annotated[
        str | None, typer.Option("--backbone", "-b", help="Also look through this model.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Also measure zero-shot accuracy on these images.")
    ] = None,
    split: Annotated[
        list[str] | None,
        typer.Option(help="Part of the data to judge (default: train and val, never test)."),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Look for duplicates, wrong lengths, patterns, missing mentions. Exit code 1 on errors."""
    from ogkd.prompts.bank import shipped_banks

    shipped = shipped_banks()
    paths = [*(banks or []), *(map(Path, shipped) if every else ())]
    if not paths:
        raise ConfigError(f"Name a bank, such as {next(iter(shipped))}, or give --all.")
    if data is not None and (backbone is None or len(paths) > 1):
        raise ConfigError("--data needs one bank and --backbone: accuracy is a matter of a model.")
    if words[0] > words[1]:
        raise ConfigError(f"--words takes the fewest first, but got {words[0]} {words[1]}.")
    model = None
    if backbone is not None:
        from ogkd.backbones import load_backbone

        model = load_backbone(backbone, device=device)
    reports = []
    for path in paths:
        wanted = count or (_SHIPPED if path.name == str(path) and str(path) in shipped else None)
        reports.append(_report(path, wanted, words, model, data, split))
    bad = {"error", "warning"} if strict else {"error"}
    for report in reports:
        report["passed"] = not any(found["severity"] in bad for found in report["findings"])
    if as_json:
        typer.echo(json.dumps(reports, indent=2, ensure_ascii=False))
    else:
        for report in reports:
            _print_report(report)
    if not all(report["passed"] for report in reports):
        raise typer.Exit(1)


def _report(
    path: Path,
    count: int | None,
    words: tuple[int, int],
    model: Any,
    data: Path | None,
    split: Sequence[str] | None,
) -> dict[str, Any]:
    from ogkd.prompts.bank import read_bank
    from ogkd.prompts.check import check_bank

    bank = read_bank(path)
    rows, findings = check_bank(bank, count=count, shortest=words[0], longest=words[1])
    report: dict[str, Any] = {"bank": str(path), "classes": [asdict(row) for row in rows]}
    if model is not None:
        from ogkd.evaluation.prompts import score_prompts

        scores, more = score_prompts(model, bank)
        findings = [*findings, *more]
        report |= {"backbone": model.name, "prompts": [asdict(score) for score in scores]}
    if data is not None:
        from ogkd.datasets.read import read_manifest
        from ogkd.evaluation.prompts import zero_shot_accuracy

        splits = tuple(split or ("train", "val"))
        report["zero_shot"] = zero_shot_accuracy(model, bank, read_manifest(data), splits=splits)
    report["findings"] = [asdict(finding) for finding in findings]
    return report


def _print_report(report: dict[str, Any]) -> None:
    findings = report["findings"]
    cells = []
    for row in report["classes"]:
        own = [found for found in findings if found["class_name"] == row["class_name"]]
        numbers = [sum(found["severity"] == kind for found in own) for kind in _COLOURS]
        span = f"{row['shortest']}-{row['longest']} ({row['mean']:.1f})"
        cells.append([row["class_name"], row["prompts"], span, f"{row['mentions']:.0%}", *numbers])
    print_table((report["bank"], "prompts", "words (mean)", "mention", "errors", "warnings"), cells)
    for found in findings:
        typer.secho(f"{found['severity']:8}", fg=_COLOURS[found["severity"]], nl=False)
        typer.echo(f"{found['class_name']}: {found['message']} [{found['rule']}]")
        for text in found["texts"][:5]:
            typer.echo(f"        {text!r}")
    if "zero_shot" in report:
        result = report["zero_shot"]
        shares = ", ".join(
            f"{how} {100 * value:.1f} %" for how, value in result["accuracy"].items()
        )
        kept = f"{100 * result['kept']:.0f} % of the texts kept"
        typer.echo(f"zero-shot on {result['images']} images: {shares} ({kept})")
    typer.echo(f"{report['bank']}: {'passed' if report['passed'] else 'FAILED'}")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A plain table on standard output."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*map(str, row))
    Console().print(table)
