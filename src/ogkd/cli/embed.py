"""`ogkd embed`: what the encoders see, as a safetensors file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.errors import ConfigError, DataError
from ogkd.files import write_atomically
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone

_ADVICE = "Mend or remove them, or run again with --skip-bad to leave them out."


def embed(
    images: Annotated[
        list[Path] | None, typer.Argument(help="Image files or folders, searched at any depth.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="The .safetensors file to write.")],
    backbone: Annotated[
        str, typer.Option("--backbone", "-b", help="A known name, a folder or a hub id.")
    ] = "builtin",
    texts: Annotated[
        Path | None, typer.Option(help="A text file: each line is encoded instead of images.")
    ] = None,
    patches: Annotated[bool, typer.Option("--patches", help="Write patch features too.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave unreadable files out instead of stopping.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images encoded at once.")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
) -> None:
    """Write image features (or text features) of a frozen backbone.

    Tensors are float32 and L2-normalised: `globals` [N,d] and, with --patches, `patches`
    [N,P,d]; the file list stands as JSON in the metadata key `files`. With --texts the tensor
    is `texts` [N,d], one row for each line.
    """
    if bool(images) == bool(texts):
        raise ConfigError("Give either images (files or folders) or --texts FILE, not both.")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    from ogkd.backbones import load_backbone

    if texts:
        lines = _read_lines(texts)
        _embed_texts(load_backbone(backbone, device=device), lines, out)
        return
    from ogkd.images import find_images

    paths = find_images(images or [])
    model = load_backbone(backbone, device=device)
    _embed_images(model, paths, out, patches=patches, skip_bad=skip_bad, batch_size=batch_size)


def _embed_images(
    backbone: Backbone,
    paths: list[Path],
    out: Path,
    *,
    patches: bool,
    skip_bad: bool,
    batch_size: int,
) -> None:
    import torch

    from ogkd.features.extract import encode_files, unreadable, unreadable_error
    from ogkd.features.stream import SafetensorsStream

    globals_, files, bad = [], [], []
    names = [path.as_posix() for path in paths]
    began = time.perf_counter()
    with (
        write_atomically(out) as aside,
        SafetensorsStream(
            aside.open("wb"), "patches", header_room=len(json.dumps(json.dumps(names)))
        ) as stream,
        progress_bar("Encoding images", len(paths)) as bar,
    ):
        for batch in encode_files(backbone, paths, patches=patches, batch_size=batch_size):
            bad += batch.bad
            if bad and not skip_bad:
                # One bad file stops the work: look for all the others before saying so.
                rest = paths[len(files) + len(batch.paths) + len(batch.bad) :]
                raise unreadable_error([*bad, *unreadable(rest)], _ADVICE)
            if batch.features is not None:
                files += [path.as_posix() for path in batch.paths]
                globals_.append(batch.features.globals.cpu())
                if batch.features.patches is not None:
                    stream.append(batch.features.patches)
            bar.advance(len(batch.paths) + len(batch.bad))
            bar.describe(f"{len(files) / (time.perf_counter() - began):.1f} images/s")
        if not files:
            raise unreadable_error(bad, "No file could be read.")
        metadata = {**_origin(backbone), "files": json.dumps(files)}
        stream.finish({"globals": torch.cat(globals_)}, metadata)
    seconds = time.perf_counter() - began
    if bad:
        typer.echo(f"Left out: {unreadable_error(bad, '')}", err=True)
    typer.echo(
        f"{len(files)} images in {seconds:.1f} s ({len(files) / seconds:.1f} images/s) -> {out}"
    )


def _embed_texts(backbone: Backbone, lines: list[str], out: Path) -> None:
    from safetensors.torch import save_file

    with write_atomically(out) as aside:
        features = backbone.encode_texts(lines)
        metadata = {**_origin(backbone), "lines": json.dumps(lines, ensure_ascii=False)}
        save_file({"texts": features}, aside, metadata)
    typer.echo(f"{len(lines)} texts -> {out}")


def _origin(backbone: Backbone) -> dict[str, str]:
    return {"backbone": backbone.name, "digest": backbone.digest}


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Give a text file.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text. Save it as UTF-8 and run again.") from error
    if not lines:
        raise DataError(f"{path} is empty. Write one text on each line.")
    return lines
