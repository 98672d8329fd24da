"""Features of a frozen backbone as one safetensors file, for use outside of ogkd."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import local_folder
from ogkd.errors import DataError
from ogkd.features.encode import EncodedBatch, SafetensorsStream
from ogkd.features.unreadable import (
    BadFile,
    OnError,
    list_reasons,
    unreadable,
    unreadable_error,
)
from ogkd.files import write_atomically
from ogkd.images import ImageRef
from ogkd.progress import progress_bar


def embed_images(
    backbone: Backbone,
    images: Sequence[ImageRef],
    batches: Iterable[EncodedBatch],
    out: Path,
    *,
    on_error: OnError = "stop",
) -> tuple[int, list[BadFile]]:
    """Write `globals` [N, d] and, if the batches have them, `patches` [N, P, d].

    `batches` are the encoded `images`, in their order, of which only one is in memory at a time.
    Returns how many images were written, and those that were skipped.
    """
    files: list[str] = []
    rows, bad = [], list[BadFile]()
    room = len(json.dumps(_metadata(backbone, files=[image.as_posix() for image in images])))
    with (
        write_atomically(out, suffixes=(".safetensors",)) as aside,
        SafetensorsStream(aside.open("wb"), "patches", header_room=room) as stream,
        progress_bar("Encoding images", len(images)) as bar,
    ):
        for batch in batches:
            bad += batch.bad
            if bad and on_error == "stop":
                # One bad file stops the work: find all the others first, to report them together.
                rest = images[len(files) + len(batch.readable) + len(batch.bad) :]
                raise unreadable_error([*bad, *unreadable(rest)])
            if batch.features is not None:
                files += [image.as_posix() for image in batch.readable]
                rows.append(batch.features.globals.cpu())
                if batch.features.patches is not None:
                    stream.append(batch.features.patches)
            bar.advance(len(batch.readable) + len(batch.bad))
        if not files:
            raise DataError(f"No file could be read:\n{list_reasons(bad)}")
        stream.finish({"globals": torch.cat(rows)}, _metadata(backbone, files=files))
    return len(files), bad


def _metadata(backbone: Backbone, files: Sequence[str]) -> dict[str, str]:
    folder = local_folder(backbone.name)
    name = folder.name if folder else backbone.name
    return {"backbone": name, "digest": backbone.digest, "files": json.dumps(files)}
