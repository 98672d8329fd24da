"""`ogkd doctor`: is this machine ready? One line each, with the fix."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Annotated

import typer

_COLOURS = {"PASS": "green", "WARN": "yellow", "FAIL": "red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of lines.")] = False,
) -> None:
    """Check versions, device, memory, disk, cache, hub, backbones, bf16 and extras.

    The exit code is 2 where anything fails; a warning does not change it.
    """
    from ogkd.doctor import examine

    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            typer.secho(f"{finding.status:5}", fg=_COLOURS[finding.status], nl=False)
            typer.echo(f"{finding.what}: {finding.found}")
            if finding.fix:
                typer.echo(f"      fix: {finding.fix}")
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    if any(finding.status == "FAIL" for finding in findings):
        sys.exit(2)
