"""`ogkd embed`: what the encoders see, as a safetensors file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ogkd.cli.cluster_options import (
    AddressOption,
    ClusterEngineOption,
    CpusOption,
    GpusOption,
    WorkersOption,
    read_crew,
)
from ogkd.cli.options import DeviceOption, EngineOption, SliceOption
from ogkd.errors import ConfigError, DataError
from ogkd.files import write_atomically
from ogkd.progress import progress_bar

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ogkd.backbones.base import Backbone
    from ogkd.features.encode import EncodedBatch
    from ogkd.images import ImageRef

_MOST_HEADER = 99_000_000  # readers of safetensors refuse a header beyond 100 MB
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
    slice: SliceOption = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave unreadable files out instead of stopping.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images encoded at once.")] = 32,
    device: DeviceOption = "auto",
    encoder_engine: EngineOption = "torch",
    engine: ClusterEngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    cpus_per_worker: CpusOption = 1.0,
    gpus_per_worker: GpusOption = 0.0,
) -> None:
    """Write image features (or text features) of a frozen backbone.

    Tensors are float32 and L2-normalised: `globals` [N,d] and, with
    --patches, `patches` [N,P,d]; the files of the rows, sorted, stand as a
    JSON list in the metadata key `files`. With --texts the tensor is `texts`
    [N,d], one row for each line. Very large folders: --engine ray spreads
    the images over the workers of a Ray cluster (docs/cluster.md).
    """
    if bool(images) == bool(texts):
        raise ConfigError("Give either images (files or folders) or --texts FILE, not both.")
    crew = read_crew(engine, address, workers, cpus_per_worker, gpus_per_worker)
    if texts and crew:
        raise ConfigError("Texts are encoded on this machine: leave --engine ray out.")
    if texts and patches:
        raise ConfigError("Texts have no patches: leave --patches out.")
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder. Give the name of a file in it.")
    if out.exists() and out.suffix != ".safetensors":
        raise ConfigError(f"--out {out} exists and is not a .safetensors file. It is left alone.")
    from ogkd.backbones import load_backbone

    if texts:
        lines = _read_lines(texts)
        _embed_texts(load_backbone(backbone, device=device), lines, out)
        return
    from ogkd.features.encode import encode_files
    from ogkd.images import SliceRule, find_images

    rule = None if slice is None else SliceRule.parse(slice)
    paths = sorted(find_images(images or []), key=lambda path: path.as_posix())
    paths = [path.sliced(rule) for path in paths]
    if crew is None:
        model = load_backbone(backbone, device=device, engine=encoder_engine)
        batches = encode_files(model, paths, patches=patches, batch_size=batch_size)
    else:
        from ogkd.features.ray_encode import encode_files_on_ray

        # Here it is only named and checked; the workers encode, with devices of their own.
        model = load_backbone(backbone, device="cpu", engine=encoder_engine)
        batches = encode_files_on_ray(
            model,
            paths,
            place=backbone,
            workers=crew,
            device=device,
            engine=encoder_engine,
            patches=patches,
            batch_size=batch_size,
        )
    _embed_images(model, paths, batches, out, skip_bad=skip_bad)


def _embed_images(
    backbone: Backbone,
    paths: list[ImageRef],
    batches: Iterator[EncodedBatch],
    out: Path,
    *,
    skip_bad: bool,
) -> None:
    import torch

    from ogkd.features.safetensors_stream import SafetensorsStream
    from ogkd.features.unreadable import unreadable, unreadable_error

    files: list[str] = []
    globals_, bad = [], []
    room = len(json.dumps(_metadata(backbone, [path.as_posix() for path in paths])))
    if room > _MOST_HEADER:
        raise ConfigError(f"{len(paths)} names are too long for one file. Embed them in parts.")
    began = time.perf_counter()
    with (
        write_atomically(out) as aside,
        SafetensorsStream(aside.open("wb"), "patches", header_room=room) as stream,
        progress_bar("Encoding images", len(paths)) as bar,
    ):
        for batch in batches:
            bad += batch.bad
            if bad and not skip_bad:
                # One bad file stops the work: look for all the others before saying so.
                rest = paths[len(files) + len(batch.readable) + len(batch.bad) :]
                raise unreadable_error([*bad, *unreadable(rest)], _ADVICE)
            if batch.features is not None:
                files += [path.as_posix() for path in batch.readable]
                globals_.append(batch.features.globals.cpu())
                if batch.features.patches is not None:
                    stream.append(batch.features.patches)
            bar.advance(len(batch.readable) + len(batch.bad))
            bar.describe(f"{len(files) / (time.perf_counter() - began):.1f} images/s")
        if not files:
            raise unreadable_error(bad, "No file could be read.")
        stream.finish({"globals": torch.cat(globals_)}, _metadata(backbone, files))
    seconds = time.perf_counter() - began
    if bad:
        typer.echo(f"Left out: {unreadable_error(bad, '')}", err=True)
    typer.echo(
        f"{len(files)} images in {seconds:.1f} s ({len(files) / seconds:.1f} images/s) -> {out}"
    )


def _metadata(backbone: Backbone, files: list[str]) -> dict[str, str]:
    return {"backbone": backbone.name, "digest": backbone.digest, "files": json.dumps(files)}


def _embed_texts(backbone: Backbone, lines: list[str], out: Path) -> None:
    from safetensors.torch import save

    room = backbone.context_length - backbone.leading_tokens - backbone.trailing_tokens
    cut = sum(len(backbone.pieces(line)) > room for line in lines)
    if cut:
        typer.echo(f"{cut} text(s) longer than {room} tokens are cut to that.", err=True)
    metadata = {"backbone": backbone.name, "digest": backbone.digest, "lines": json.dumps(lines)}
    with write_atomically(out) as aside:
        # Python writes the bytes, so that a full disk is told from other trouble.
        aside.write_bytes(save({"texts": backbone.encode_texts(lines)}, metadata))
    typer.echo(f"{len(lines)} texts -> {out}")


def _read_lines(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Give a text file.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text. Save it as UTF-8 and run again.") from error
    if lines[-1] == "":
        del lines[-1]  # what follows the last line's end is no line
    if not any(line.strip() for line in lines):
        raise DataError(f"{path} is empty. Write one text on each line.")
    return lines
