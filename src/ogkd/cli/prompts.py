"""`ogkd prompts`: banks of texts for classes: list, show, check, new, generate, import."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ogkd.cli.prompts_check import check, print_table
from ogkd.errors import ConfigError, DataError, Interrupted

if TYPE_CHECKING:
    from ogkd.prompts.check import Finding

app = typer.Typer(help="Texts for classes: list, show, check, new, generate, import.")

_JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
_OutOption = Annotated[Path, typer.Option("--out", "-o", help="The bank's JSON file to write.")]
_ClassesOption = Annotated[
    list[str] | None, typer.Option("--classes", "-c", help="A class name. May be repeated.")
]
_DataOption = Annotated[
    Path | None, typer.Option("--data", help="Take the class names from this dataset.")
]
_ModalityOption = Annotated[
    str, typer.Option("--modality", "-m", help="xray, ct, mri, ultrasound, histology, ...")
]
_OrganOption = Annotated[str | None, typer.Option("--organ", help="Such as breast or lungs.")]


@app.callback(invoke_without_command=False)
def _root() -> None:
    """Texts for classes: list, show, check, new, generate, import."""


@app.command("list")
def list_banks(as_json: _JsonOption = False) -> None:
    """Show the banks that come with the package."""
    from ogkd.prompts.bank import read_bank, shipped_banks

    rows: list[dict[str, Any]] = []
    for name, path in shipped_banks().items():
        bank = read_bank(path)
        counts = {key: len(texts) for key, texts in bank.items()}
        rows.append({"name": name, "prompts": sum(counts.values()), "classes": counts})
    if as_json:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    cells = [[row["name"], row["prompts"], ", ".join(map(str, row["classes"]))] for row in rows]
    print_table(("bank", "prompts", "classes"), cells)
    typer.echo(
        "More: `ogkd prompts show NAME`. Use one: `ogkd fit DATA --prompts NAME --out MODEL`."
    )


@app.command("show")
def show(
    bank: Annotated[Path, typer.Argument(help="A shipped bank's name or a JSON file.")],
    class_name: Annotated[str | None, typer.Argument(help="Only this class.")] = None,
    as_json: _JsonOption = False,
) -> None:
    """Print the texts of a bank, or of one of its classes."""
    from ogkd.prompts.bank import read_bank
    from ogkd.prompts.convert import keep_classes

    found = read_bank(bank)
    if class_name is not None:
        found = keep_classes(found, [class_name])
    if as_json:
        typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
        return
    for name, texts in found.items():
        typer.secho(f"{name} ({len(texts)})", bold=True)
        for text in texts:
            typer.echo(f"  {text}")


app.command("check")(check)


@app.command("new")
def new(
    *,
    classes: _ClassesOption = None,
    data: _DataOption = None,
    modality: _ModalityOption = "any",
    organ: _OrganOption = None,
    out: _OutOption,
) -> None:
    """Make a bank from templates for the modality: a start that you can edit."""
    from ogkd.files import write_json
    from ogkd.prompts.templates import modality_bank

    _refuse_existing(out)
    bank = modality_bank(_class_names(classes, data), modality=modality, organ=organ)
    write_json(out, bank)
    each = len(next(iter(bank.values())))
    typer.echo(f"{len(bank)} classes with {each} texts each -> {out}")
    typer.echo(f"Next: edit the texts, then `ogkd prompts check {out}`, then --prompts {out}.")


@app.command("generate")
def generate(
    *,
    classes: _ClassesOption = None,
    data: _DataOption = None,
    modality: _ModalityOption = "any",
    organ: _OrganOption = None,
    out: _OutOption,
    model: Annotated[str, typer.Option(help="The endpoint's name of the language model.")],
    url: Annotated[
        str | None,
        typer.Option(help="Base URL, such as http://localhost:11434/v1 (or OGKD_LLM_URL)."),
    ] = None,
    key_env: Annotated[
        str, typer.Option(help="The environment variable that holds the key, if one is needed.")
    ] = "OGKD_LLM_KEY",
    count: Annotated[int, typer.Option(min=1, help="Texts for each class.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="Most questions for one class.")] = 8,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one answer.")] = 120.0,
    attempts: Annotated[int, typer.Option(min=1, help="Tries of one question.")] = 5,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be sent; send nothing.")
    ] = False,
) -> None:
    """Let a language model write a bank, through any OpenAI-compatible endpoint.

    Only class names, modality, organ and texts are sent, never images. Run
    the same command again to go on where it stopped, or to add classes.
    """
    from ogkd.prompts.chat import Chat, Endpoint
    from ogkd.prompts.generate import Order, messages_for
    from ogkd.prompts.templates import find_modality

    names = _class_names(classes, data)
    order = Order(tuple(names), count, find_modality(modality).title, organ, rounds)
    address = url or os.environ.get("OGKD_LLM_URL")
    if not address:
        raise ConfigError(
            "Give the endpoint's base URL with --url or OGKD_LLM_URL, such as "
            "http://localhost:11434/v1 for Ollama on this machine."
        )
    key = os.environ.get(key_env, "").strip() or None
    endpoint = Endpoint(address, model, key, timeout, attempts)
    bank = _bank_so_far(out)
    if dry_run:
        typer.echo(f"POST {endpoint.address}  (model {model}, key {'set' if key else 'not set'})")
        for name in names:
            messages = messages_for(order, name, bank.get(name, []))
            typer.echo(json.dumps(messages, indent=2, ensure_ascii=False))
        return
    _generate(order, Chat(endpoint), bank, out)


@app.command("import")
def import_prompts(
    source: Annotated[Path, typer.Argument(help="JSON, CSV, TSV, .py, or a folder of .txt.")],
    *,
    out: _OutOption,
    classes: Annotated[
        list[str] | None, typer.Option("--classes", "-c", help="Keep only this. May be repeated.")
    ] = None,
) -> None:
    """Turn prompts in another format into a bank.

    Read are: JSON of class -> texts (CuPL and kin) or a list of records;
    CSV/TSV with columns class and text; Python source with a dictionary
    (it is not run); a folder with one .txt per class, a text on each line.
    """
    from ogkd.files import write_json
    from ogkd.prompts.check import check_bank
    from ogkd.prompts.convert import import_bank, keep_classes

    _refuse_existing(out)
    bank = import_bank(source)
    if classes:
        bank = keep_classes(bank, classes)
    write_json(out, bank)
    texts = sum(map(len, bank.values()))
    typer.echo(f"{len(bank)} classes with {texts} texts -> {out}")
    if findings := check_bank(bank)[1]:
        typer.echo(f"{_tally(findings)}: see them with `ogkd prompts check {out}`.", err=True)


def _class_names(classes: Sequence[str] | None, data: Path | None) -> list[str]:
    from ogkd.prompts.templates import require_classes

    if bool(classes) == (data is not None):
        raise ConfigError("Give the classes either with --classes NAME ... or with --data DATASET.")
    if data is not None:
        from ogkd.datasets.read import read_manifest

        return list(read_manifest(data).class_names)
    return require_classes(classes or [])


def _refuse_existing(out: Path) -> None:
    if out.exists():
        raise ConfigError(
            f"--out {out} exists and is left alone. Choose another name or remove it."
        )


def _bank_so_far(out: Path) -> dict[str, list[str]]:
    from ogkd.prompts.bank import read_bank

    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    return read_bank(out) if out.exists() else {}


def _generate(order: Any, chat: Any, bank: dict[str, list[str]], out: Path) -> None:
    from ogkd.files import write_json
    from ogkd.progress import progress_bar
    from ogkd.prompts.bank import fold
    from ogkd.prompts.generate import generate as generate_bank

    have = {fold(name): len(texts) for name, texts in bank.items()}
    missing = sum(max(0, order.count - have.get(fold(name), 0)) for name in order.class_names)
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
            f"Stopped. What has arrived is in {out}: run the same command again to go on."
        ) from None
    folded = {fold(name): len(texts) for name, texts in found.items()}
    short = {
        name: folded.get(fold(name), 0)
        for name in order.class_names
        if folded.get(fold(name), 0) < order.count
    }
    if short:
        listed = ", ".join(f"{name} ({number} of {order.count})" for name, number in short.items())
        raise DataError(
            f"The model gave too few usable texts for: {listed}. What there is is kept in {out}; "
            "run the same command again to ask for more, or take another --model."
        )
    write_json(out, found)
    typer.echo(f"{len(order.class_names)} classes with {order.count} texts each -> {out}")
    typer.echo(f"Next: read them, then `ogkd prompts check {out}`.")


def _tally(findings: Sequence[Finding]) -> str:
    errors = sum(found.severity == "error" for found in findings)
    return f"{errors} error(s) and {len(findings) - errors} warning(s) in the texts"
