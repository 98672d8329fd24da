"""`ogkd prompts`: banks of texts that describe classes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
    from ogkd.backbones import Backbone
    from ogkd.datasets.case import Dataset
    from ogkd.prompts.generate import Ask, Order

app = CommandGroup("Banks of texts for classes: show, check, new, fetch.")

_COLOURS = {"error": "red", "warning": "yellow"}
_SHIPPED = 50  # prompts per class of the banks that come with the package, and of generated ones


@app.command("show")
def show(
    bank: Annotated[
        Path | None,
        Argument(help="A JSON file or the name of a bank (default: list the banks there are)."),
    ] = None,
    class_name: Annotated[str | None, Argument(help="Show only this class.")] = None,
    as_json: opt.JsonOption = False,
) -> None:
    """List the banks that there are, or print the texts of one, or of one class."""
    if bank is None:
        _list_banks(as_json)
        return
    texts_by_class = read_bank(bank)
    if class_name is not None:
        texts_by_class = keep_classes(texts_by_class, [class_name])
    if as_json:
        print_json(texts_by_class)
        return
    for name, texts in texts_by_class.items():
        typer.secho(f"{name} ({len(texts)})", bold=True)
        for text in texts:
            typer.echo(f"  {text}")


def _list_banks(as_json: bool) -> None:
    """The banks that come with the package, and the released one if it was fetched."""
    rows: list[dict[str, Any]] = []
    released = {RELEASED: released_path()} if released_path().is_file() else {}
    for name, path in (shipped_banks() | released).items():
        counts = {key: len(texts) for key, texts in read_bank(path).items()}
        rows.append({"name": name, "prompts": sum(counts.values()), "classes": counts})
    if as_json:
        print_json(rows)
        return
    cells = [[row["name"], row["prompts"], ", ".join(map(str, row["classes"]))] for row in rows]
    print_table(("bank", "prompts", "classes"), cells)
    typer.echo(
        "More: `ogkd prompts show NAME`. Use one: `ogkd fit DATA --prompts NAME --out MODEL`."
    )


@app.command("check")
def check(
    banks: Annotated[
        list[Path] | None, Argument(help="JSON files or names (default: all shipped banks).")
    ] = None,
    strict: Annotated[bool, Option("--strict", help="Warnings count as errors.")] = False,
    backbone: Annotated[
        str | None,
        Option("--backbone", "-b", help="Also check how this model tells the texts apart."),
    ] = None,
    data: Annotated[
        Path | None,
        Option(help="Also measure zero-shot accuracy on these images, never on test ones."),
    ] = None,
    device: opt.DeviceOption = "auto",
    as_json: opt.JsonOption = False,
) -> None:
    """Look for duplicates, wrong lengths, patterns, missing class names. Exit code 1 on errors."""
    paths = banks or [Path(name) for name in shipped_banks()]
    if data is not None and (backbone is None or len(paths) > 1):
        raise ConfigError("--data needs --backbone, to measure accuracy with, and a single bank.")
    model = None if backbone is None else ogkd.load_backbone(backbone, device=device)
    images = None if data is None else ogkd.read_dataset(data)
    reports = [_check(path, model, images, strict=strict) for path in paths]
    if as_json:
        print_json(reports)
    else:
        for report in reports:
            _print_check(report)
    if not all(report["passed"] for report in reports):
        raise typer.Exit(1)


def _check(
    path: Path, model: Backbone | None, images: Dataset | None, *, strict: bool
) -> dict[str, Any]:
    bank = read_bank(path)
    is_shipped = path.name == str(path) and str(path) in shipped_banks()
    rows, findings = check_bank(bank, count=_SHIPPED if is_shipped else None)
    report: dict[str, Any] = {"bank": str(path), "classes": [asdict(row) for row in rows]}
    if model is not None:
        from ogkd.datasets import task as tasks
        from ogkd.evaluation.prompts import score_prompts, zero_shot_accuracy

        scores, by_model = score_prompts(model, bank)
        findings = [*findings, *by_model]
        report |= {"backbone": model.name, "prompts": [asdict(score) for score in scores]}
        if images is not None:
            tasks.require_classes(images.task, "Judging prompts by images")
            report["zero_shot"] = zero_shot_accuracy(model, bank, images)
    bad = {"error", "warning"} if strict else {"error"}
    report["findings"] = [asdict(finding) for finding in findings]
    report["passed"] = not any(finding.severity in bad for finding in findings)
    return report


def _print_check(report: dict[str, Any]) -> None:
    findings = report["findings"]
    cells = []
    for row in report["classes"]:
        of_class = [one for one in findings if one["class_name"] == row["class_name"]]
        numbers = [sum(one["severity"] == kind for one in of_class) for kind in _COLOURS]
        span = f"{row['shortest']}-{row['longest']} ({row['mean']:.1f})"
        cells.append([row["class_name"], row["prompts"], span, f"{row['mentions']:.0%}", *numbers])
    print_table((report["bank"], "prompts", "words (mean)", "mention", "errors", "warnings"), cells)
    for finding in findings:
        typer.secho(f"{finding['severity']:8}", fg=_COLOURS[finding["severity"]], nl=False)
        typer.echo(f"{finding['class_name']}: {finding['message']} [{finding['rule']}]")
        for text in finding["texts"][:5]:
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
def new(
    classes: Annotated[
        list[str] | None,
        Option("--classes", "-c", help="Class names, separated by commas. Repeatable."),
    ] = None,
    data: Annotated[Path | None, Option(help="Use the class names of this dataset.")] = None,
    modality: Annotated[
        str, Option("--modality", "-m", help="xray, ct, mri, ultrasound, histology, ...")
    ] = "any",
    organ: Annotated[str | None, Option(help="For example breast or lungs.")] = None,
    source: Annotated[
        Path | None,
        Option("--from", help="Convert texts from JSON, CSV, TSV, .py, or a folder of .txt."),
    ] = None,
    model: Annotated[
        str | None, Option(help="Have this language model write the texts; see --url.")
    ] = None,
    url: Annotated[
        str | None,
        Option(help="Its base URL, such as http://localhost:11434/v1 (or OGKD_LLM_URL)."),
    ] = None,
    count: Annotated[
        int, Option(min=1, max=1000, help="Texts per class that the language model writes.")
    ] = _SHIPPED,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show what the model would be sent; send nothing.")
    ] = False,
    *,
    out: Annotated[Path, Option("--out", "-o", help="The JSON file to write.")],
) -> None:
    """Write a bank: from templates, a language model, or texts in another format.

    Templates for a modality are a start to edit. With --model, an endpoint
    with OpenAI's API writes the texts; only class names, modality, organ and
    texts are sent, never images, and its key is taken from OGKD_LLM_KEY. Run
    the same command again to resume, or to add classes. With --from, texts
    are converted: JSON of class -> texts (as in CuPL) or a list of records;
    CSV or TSV with columns class and text; Python source with a dictionary
    (it is not run); a folder with one .txt per class, one text per line.
    """
    opt.refuse_folders(out=out)
    names = _class_names(classes, data, required=source is None)
    if model is not None:
        from ogkd.prompts.generate import Order

        if source is not None:
            raise ConfigError("Give either --from or --model, not both.")
        order = Order(tuple(names), count, find_modality(modality).title, organ)
        _generate(order, model, url, out, dry_run=dry_run)
        return
    if url or dry_run:
        raise ConfigError("--url and --dry-run need --model, the name of a language model.")
    if out.exists():
        raise ConfigError(f"--out {out} already exists. Choose another name or remove it.")
    if source is None:
        bank = modality_bank(names, modality=modality, organ=organ)
    else:
        bank = import_bank(source)
        bank = keep_classes(bank, names) if names else bank
    write_json(out, bank)
    typer.echo(f"{len(bank)} classes with {sum(map(len, bank.values()))} texts -> {out}")
    if findings := check_bank(bank)[1]:
        errors = sum(finding.severity == "error" for finding in findings)
        say(f"{errors} error(s) and {len(findings) - errors} warning(s) in the texts.")
    typer.echo(f"Next: edit the texts, then `ogkd prompts check {out}`, then --prompts {out}.")


def _class_names(classes: list[str] | None, data: Path | None, *, required: bool) -> list[str]:
    if (classes and data is not None) or (required and not classes and data is None):
        raise ConfigError("Give the classes either with --classes or with --data.")
    if data is not None:
        return list(ogkd.read_dataset(data).names)
    if not classes:
        return []
    return require_classes([name for names in classes for name in names.split(",")])


def _generate(order: Order, model: str, url: str | None, out: Path, *, dry_run: bool) -> None:
    from ogkd.prompts.generate import chat, messages_for

    url = url or os.environ.get("OGKD_LLM_URL")
    if not url:
        raise ConfigError(
            "Give the endpoint's base URL with --url or OGKD_LLM_URL, such as "
            "http://localhost:11434/v1 for Ollama on this machine."
        )
    key = os.environ.get("OGKD_LLM_KEY", "").strip() or None
    ask = chat(url, model, key=key)
    bank = read_bank(out) if out.exists() else {}
    if dry_run:
        typer.echo(f"To {url}  (model {model}, key {'set' if key else 'not set'})")
        for name in order.class_names:
            print_json(messages_for(order, name, bank.get(name, [])))
        return
    counts = _counts(order, _ask_for_texts(order, ask, bank, out))
    short = {name: number for name, number in counts.items() if number < order.count}
    if short:
        listed = ", ".join(f"{name} ({number} of {order.count})" for name, number in short.items())
        raise DataError(
            f"The model gave too few usable texts for: {listed}. Those received are in {out}; run "
            "the same command again to ask for more, or choose another --model."
        )
    typer.echo(f"{len(order.class_names)} classes with {order.count} texts each -> {out}")
    typer.echo(f"Next: read them, then `ogkd prompts check {out}`.")


def _ask_for_texts(
    order: Order, ask: Ask, bank: dict[str, list[str]], out: Path
) -> dict[str, list[str]]:
    from ogkd.progress import progress_bar
    from ogkd.prompts.generate import generate

    missing = sum(max(0, order.count - number) for number in _counts(order, bank).values())
    try:
        with progress_bar("Asking for prompts", missing) as bar:

            def progress(name: str, added: int) -> None:
                bar.advance(added)
                bar.describe(name)

            bank = generate(
                order,
                ask,
                bank=bank,
                save=lambda texts: write_json(out, texts),
                progress=progress,
            )
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped. The texts so far are in {out}: run the same command again to resume."
        ) from None
    write_json(out, bank)
    return bank


def _counts(order: Order, bank: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """How many texts a bank has for each class of an order."""
    have = {fold(name): len(texts) for name, texts in bank.items()}
    return {name: have.get(fold(name), 0) for name in order.class_names}


@app.command("fetch")
def fetch(
    source: Annotated[
        str,
        Argument(help="released: the bank behind the published numbers; or a copy of its file."),
    ],
) -> None:
    """Get the bank that the published numbers were computed with, for --prompts released.

    One Python file of a public repository at a pinned commit. It is read, never run.
    """
    if source == RELEASED:
        say(f"{pin().path} of {pin().repository} at {pin().commit[:12]}, licence {pin().licence}")
        bank = fetch_released()
    else:
        bank = import_released(Path(source))
    typer.echo(
        f"{len(bank)} classes with {sum(map(len, bank.values()))} texts -> {released_path()}"
    )
    typer.echo(f"sha256 of the texts: {bank_digest(bank)}")
    typer.echo("Use it: --prompts released, in `ogkd fit` and `ogkd bench run`.")
