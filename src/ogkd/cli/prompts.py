"""`ogkd prompts`: banks of texts that describe classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.commands import CommandGroup
from ogkd.cli.output import print_json, print_table, say
from ogkd.errors import ConfigError, DataError, Interrupted
from ogkd.files import write_json
from ogkd.prompts.bank import bank_digest, fold, read_bank, shipped_banks
from ogkd.prompts.check import check_bank
from ogkd.prompts.convert import import_bank, keep_classes
from ogkd.prompts.released import RELEASED, fetch_released, import_released, pin, released_path
from ogkd.prompts.templates import find_modality, modality_bank, require_classes

if TYPE_CHECKING:
    from ogkd.prompts.chat import Chat
    from ogkd.prompts.generate import Order

app = CommandGroup("Banks of texts for classes: list, show, check, new, generate, import, fetch.")

_COLOURS = {"error": "red", "warning": "yellow"}
_SHIPPED = 50  # prompts per class of the banks that come with the package
_WORDS = (8, 40)
_OutOption = Annotated[Path, Option("--out", "-o", help="The JSON file to write.")]


@dataclass(frozen=True)
class SubjectOptions:
    """What a new bank is about."""

    classes: Annotated[
        list[str] | None,
        Option("--classes", "-c", help="Class names, separated by commas. Repeatable."),
    ] = None
    data: Annotated[Path | None, Option("--data", help="Use the class names of this dataset.")] = (
        None
    )
    modality: Annotated[
        str, Option("--modality", "-m", help="xray, ct, mri, ultrasound, histology, ...")
    ] = "any"
    organ: Annotated[str | None, Option(help="For example breast or lungs.")] = None

    def class_names(self) -> list[str]:
        if bool(self.classes) == (self.data is not None):
            raise ConfigError("Give the classes either with --classes or with --data.")
        if self.data is not None:
            return list(ogkd.read_manifest(self.data).class_names)
        return require_classes([one for said in self.classes or [] for one in said.split(",")])


@app.command("list")
def list_banks(as_json: opt.JsonOption = False) -> None:
    """Show the banks that come with the package, and the released one if it was fetched."""
    rows: list[dict[str, Any]] = []
    released = {RELEASED: released_path()} if released_path().is_file() else {}
    for name, path in (shipped_banks() | released).items():
        bank = read_bank(path)
        counts = {key: len(texts) for key, texts in bank.items()}
        rows.append({"name": name, "prompts": sum(counts.values()), "classes": counts})
    if as_json:
        print_json(rows)
        return
    cells = [[row["name"], row["prompts"], ", ".join(map(str, row["classes"]))] for row in rows]
    print_table(("bank", "prompts", "classes"), cells)
    typer.echo(
        "More: `ogkd prompts show NAME`. Use one: `ogkd fit DATA --prompts NAME --out MODEL`."
    )


@app.command("show")
def show(
    bank: Annotated[Path, Argument(help="The name of a shipped bank, or a JSON file.")],
    class_name: Annotated[str | None, Argument(help="Show only this class.")] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """Print the texts of a bank or of one class."""
    found = read_bank(bank)
    if class_name is not None:
        found = keep_classes(found, [class_name])
    if as_json:
        print_json(found)
        return
    for name, texts in found.items():
        typer.secho(f"{name} ({len(texts)})", bold=True)
        for text in texts:
            typer.echo(f"  {text}")


@app.command("check")
def check(
    banks: Annotated[
        list[Path] | None, Argument(help="Names of shipped banks, or JSON files.")
    ] = None,
    every: Annotated[bool, Option("--all", help="Check all shipped banks.")] = False,
    count: Annotated[int | None, Option(min=1, help="Require this many prompts per class.")] = None,
    words: Annotated[tuple[int, int], Option(help="Fewest and most words per prompt.")] = _WORDS,
    strict: Annotated[bool, Option("--strict", help="Warnings count as errors.")] = False,
    backbone: Annotated[
        str | None,
        Option("--backbone", "-b", help="Also check how this model tells the texts apart."),
    ] = None,
    data: Annotated[
        Path | None, Option(help="Also measure zero-shot accuracy on these images.")
    ] = None,
    split: Annotated[
        list[str] | None, Option(help="Split to measure on (default: train and val, never test).")
    ] = None,
    device: opt.DeviceOption = "auto",
    as_json: opt.JsonOption = False,
) -> None:
    """Look for duplicates, wrong lengths, patterns, missing class names. Exit code 1 on errors."""
    shipped = shipped_banks()
    paths = [*(banks or []), *(map(Path, shipped) if every else ())]
    if not paths:
        raise ConfigError(f"Name a bank, such as {next(iter(shipped))}, or give --all.")
    if data is not None and (backbone is None or len(paths) > 1):
        raise ConfigError("--data needs --backbone, to measure accuracy with, and a single bank.")
    if words[0] > words[1]:
        raise ConfigError(f"--words takes the smaller number first, but got {words[0]} {words[1]}.")
    model = None if backbone is None else ogkd.load_backbone(backbone, device=device)
    reports: list[dict[str, Any]] = []
    for path in paths:
        bank = read_bank(path)
        wanted = count or (_SHIPPED if path.name == str(path) and str(path) in shipped else None)
        rows, findings = check_bank(bank, count=wanted, shortest=words[0], longest=words[1])
        report: dict[str, Any] = {"bank": str(path), "classes": [asdict(row) for row in rows]}
        if model is not None:
            from ogkd.evaluation.prompts import score_prompts, zero_shot_accuracy

            scores, more = score_prompts(model, bank)
            findings = [*findings, *more]
            report |= {"backbone": model.name, "prompts": [asdict(score) for score in scores]}
            if data is not None:
                images, splits = ogkd.read_manifest(data), tuple(split or ("train", "val"))
                images.require_classes("Judging prompts by images")
                report["zero_shot"] = zero_shot_accuracy(model, bank, images, splits=splits)
        bad = {"error", "warning"} if strict else {"error"}
        report["findings"] = [asdict(finding) for finding in findings]
        report["passed"] = not any(finding.severity in bad for finding in findings)
        reports.append(report)
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            _print_check(report)
    if not all(report["passed"] for report in reports):
        raise typer.Exit(1)


def _print_check(report: dict[str, Any]) -> None:
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


@app.command("new")
def new(subject: SubjectOptions, *, out: _OutOption) -> None:
    """Write a bank from templates for a modality, as a start to edit."""
    _refuse_existing(out)
    names = subject.class_names()
    bank = modality_bank(names, modality=subject.modality, organ=subject.organ)
    write_json(out, bank)
    each = len(next(iter(bank.values())))
    typer.echo(f"{len(bank)} classes with {each} texts each -> {out}")
    typer.echo(f"Next: edit the texts, then `ogkd prompts check {out}`, then --prompts {out}.")


@app.command("generate")
def generate(
    subject: SubjectOptions,
    out: _OutOption,
    model: Annotated[str, Option(help="The name of the language model at the endpoint.")],
    url: Annotated[
        str | None, Option(help="Base URL, such as http://localhost:11434/v1 (or OGKD_LLM_URL).")
    ] = None,
    key_env: Annotated[
        str, Option(help="The environment variable with the API key, if one is needed.")
    ] = "OGKD_LLM_KEY",
    count: Annotated[int, Option(min=1, max=1000, help="Texts per class.")] = 50,
    rounds: Annotated[
        int, Option(min=1, max=1000, help="At most this many requests per class.")
    ] = 8,
    timeout: Annotated[
        float, Option(min=0.1, max=86_400, help="Seconds to wait for an answer.")
    ] = 120.0,
    attempts: Annotated[int, Option(min=1, max=100, help="Attempts per request.")] = 5,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what would be sent; send nothing.")
    ] = False,
) -> None:
    """Have a language model write a bank, through any OpenAI-compatible endpoint.

    Only class names, modality, organ and texts are sent, never images. Run
    the same command again to resume, or to add classes.
    """
    from ogkd.prompts.chat import Chat, Endpoint
    from ogkd.prompts.generate import Order, messages_for

    names = subject.class_names()
    title = find_modality(subject.modality).title
    order = Order(tuple(names), count, title, subject.organ, rounds)
    address = url or os.environ.get("OGKD_LLM_URL")
    if not address:
        raise ConfigError(
            "Give the endpoint's base URL with --url or OGKD_LLM_URL, such as "
            "http://localhost:11434/v1 for Ollama on this machine."
        )
    if not key_env.isprintable():
        raise ConfigError(f"{key_env!r} is not the name of an environment variable (--key-env).")
    key = os.environ.get(key_env, "").strip() or None
    endpoint = Endpoint(address, model, key, timeout, attempts)
    opt.refuse_folders(out=out)
    bank = read_bank(out) if out.exists() else {}
    if dry_run:
        typer.echo(f"POST {endpoint.address}  (model {model}, key {'set' if key else 'not set'})")
        for name in names:
            print_json(messages_for(order, name, bank.get(name, [])))
        return
    _generate(order, Chat(endpoint), bank, out)


@app.command("import")
def import_prompts(
    source: Annotated[Path, Argument(help="JSON, CSV, TSV, .py, or a folder of .txt.")],
    out: Annotated[
        Path | None,
        Option(
            "--out",
            "-o",
            help="The JSON file to write (default: SOURCE is the released bank's file, and is "
            "stored as `released`).",
        ),
    ] = None,
    classes: Annotated[
        list[str] | None, Option("--classes", "-c", help="Keep only this class. May be repeated.")
    ] = None,
    drop_doubles: Annotated[
        bool, Option("--drop-doubles", help="Keep one of several equal texts of a class.")
    ] = False,
) -> None:
    """Convert prompts from another format into a bank.

    Formats: JSON of class -> texts (as in CuPL) or a list of records; CSV or
    TSV with columns class and text; Python source with a dictionary (it is
    not run); a folder with one .txt per class, one text per line.
    """
    if out is None:
        if classes or drop_doubles:
            raise ConfigError("--classes and --drop-doubles need --out: the file to write.")
        _print_released(import_released(source))
        return
    _refuse_existing(out)
    bank = import_bank(source, drop_doubles=drop_doubles)
    if classes:
        bank = keep_classes(bank, classes)
    write_json(out, bank)
    texts = sum(map(len, bank.values()))
    typer.echo(f"{len(bank)} classes with {texts} texts -> {out}")
    if findings := check_bank(bank)[1]:
        errors = sum(found.severity == "error" for found in findings)
        tally = f"{errors} error(s) and {len(findings) - errors} warning(s)"
        say(f"{tally} in the texts: see them with `ogkd prompts check {out}`.")


@app.command("fetch")
def fetch(
    name: Annotated[str, Argument(help="released: the bank behind the published numbers.")],
) -> None:
    """Download the bank that the published numbers were computed with.

    One Python file of a public repository at a pinned commit. It is read, never run.
    """
    if name != RELEASED:
        raise ConfigError(f"There is no bank '{name}' to fetch, only '{RELEASED}'.")
    say(f"{pin().path} of {pin().repository} at {pin().commit[:12]}, licence {pin().licence}")
    _print_released(fetch_released())


def _print_released(bank: Mapping[str, Sequence[str]]) -> None:
    texts = sum(map(len, bank.values()))
    typer.echo(f"{len(bank)} classes with {texts} texts -> {released_path()}")
    typer.echo(f"sha256 of the texts: {bank_digest(bank)}")
    typer.echo("Use it: --prompts released, in `ogkd fit` and `ogkd bench run`.")


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(f"--out {out} already exists. Choose another name or remove it.")


def _generate(order: Order, chat: Chat, bank: dict[str, list[str]], out: Path) -> None:
    from ogkd.progress import progress_bar
    from ogkd.prompts.generate import generate as generate_bank

    missing = sum(max(0, order.count - number) for number in _counts(order, bank).values())
    try:
        with progress_bar("Asking for prompts", missing) as bar:

            def progress(name: str, added: int) -> None:
                bar.advance(added)
                bar.describe(name)

            found = generate_bank(
                order,
                chat.ask,
                bank=bank,
                save=lambda texts: write_json(out, texts),
                progress=progress,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped. The texts so far are in {out}: run the same command again to resume."
        ) from None
    counts = _counts(order, found)
    short = {name: number for name, number in counts.items() if number < order.count}
    if short:
        listed = ", ".join(f"{name} ({number} of {order.count})" for name, number in short.items())
        raise DataError(
            f"The model gave too few usable texts for: {listed}. Those received are in {out}; run "
            "the same command again to ask for more, or choose another --model."
        )
    write_json(out, found)
    typer.echo(f"{len(order.class_names)} classes with {order.count} texts each -> {out}")
    typer.echo(f"Next: read them, then `ogkd prompts check {out}`.")


def _counts(order: Order, bank: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many texts a bank has for each class of an order."""
    have = {fold(name): len(texts) for name, texts in bank.items()}
    return {name: have.get(fold(name), 0) for name in order.class_names}
