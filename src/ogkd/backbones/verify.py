"""Check a backbone: its hashes, that it loads, published outputs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import Record
from ogkd.backbones.hub import EXAMPLES, present, published_outputs, read_source
from ogkd.backbones.loading import load_backbone, resolve
from ogkd.errors import OgkdError
from ogkd.files import sha256_file
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels

TOLERANCE = 0.01  # of a probability; image libraries round differently, a wrong loader is far off


class Check(NamedTuple):
    """One line of the report; `fix` says what to do about a failure or a skipped check."""

    status: str  # "PASS", "WARN", "SKIP" or "FAIL"
    subject: str
    result: str
    fix: str = ""


def verify(name: str | Path) -> Iterator[Check]:
    """Check a backbone that is on this machine; nothing is fetched."""
    source = resolve(name)
    record = source if isinstance(source, Record) and source.hub_id else None
    fix = f"delete {record.folder}, then `ogkd backbones fetch {record.name}`" if record else ""
    try:
        if record is not None:
            if present(record) is None:
                yield Check("FAIL", "Files", f"{record.name} is not on this machine", fix)
                return
            yield from _check_files(record, fix)
        backbone = load_backbone(name)
    except OgkdError as error:
        yield Check("FAIL", "Loading", str(error), fix)
        return
    yield Check("PASS", "Loading", f"digest {backbone.digest}")
    if record is not None and record.examples:
        yield _check_published(backbone, record.folder / EXAMPLES, fix)


def _check_files(record: Record, fix: str) -> Iterator[Check]:
    source = read_source(record.folder) or {}
    original = source["original"]
    known = {name: facts["sha256"] for name, facts in source["files"].items()}
    digests = {name: sha256_file(record.folder / name) for name in known}
    if record.sha256 is not None and original["file"] == record.weights:
        known[record.weights], digests[record.weights] = record.sha256, original["sha256"]
    for name, digest in digests.items():
        if digest == known[name]:
            yield Check("PASS", name, f"sha256 {digest}")
        else:
            yield Check("FAIL", name, f"sha256 {digest}, not {known[name]}", fix)


def _check_published(backbone: Backbone, folder: Path, fix: str) -> Check:
    """Compare published zero-shot probabilities with computed ones."""
    subject, reference = "Published outputs", published_outputs()
    labels = [reference["template"] + label for label in reference["labels"]]
    names = list(reference["probabilities"])
    if not all((folder / name).is_file() for name in names):
        return Check("SKIP", subject, f"the images are not in {folder}", fix)
    expected = torch.tensor([reference["probabilities"][name] for name in names])  # [N, C]
    pixels = to_pixels([read_image(folder / name) for name in names], backbone.preprocessing)
    features = backbone.encode_images(pixels, patches=False).globals.cpu()
    logits = backbone.logit_scale * features @ backbone.encode_texts(labels).T
    difference = float((logits.softmax(dim=-1) - expected).abs().max())
    text = f"largest difference {difference:.2e}, allowed {TOLERANCE}, for {reference['source']}"
    return Check("PASS" if difference <= TOLERANCE else "FAIL", subject, text)
