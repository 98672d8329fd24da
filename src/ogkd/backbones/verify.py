"""Check a backbone: its hashes, that it loads, unit features, published outputs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import Record
from ogkd.backbones.hub import examples_folder, present, read_source
from ogkd.backbones.loading import load_backbone, resolve
from ogkd.errors import OgkdError
from ogkd.files import sha256_file
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels

TOLERANCE = 0.01  # of a probability; image libraries round differently, a wrong loader is far off


@dataclass(frozen=True)
class Check:
    """One line of the report; `fix` says what to do about a failure or a skipped check."""

    status: Literal["PASS", "FAIL", "SKIP"]
    what: str
    found: str
    fix: str = ""


def published_outputs() -> dict[str, Any]:
    """BiomedCLIP's probabilities for nine images and nine labels, as Microsoft published them."""
    path = Path(__file__).with_name("reference_outputs.json")
    outputs: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return outputs


def verify(name: str | Path) -> Iterator[Check]:
    """Check a backbone that is on this machine; nothing is fetched."""
    source = resolve(name)
    record = source if isinstance(source, Record) and source.hub_id else None
    if record is not None:
        checks = list(_check_files(record))
        yield from checks
        if any(check.status == "FAIL" for check in checks):
            return
    try:
        backbone = load_backbone(name)
    except OgkdError as error:
        yield Check("FAIL", "Loading", str(error))
        return
    yield Check("PASS", "Loading", f"digest {backbone.digest}")
    yield _check_features(backbone)
    if record is not None and record.examples:
        yield _check_published(backbone, examples_folder(record), record)


def _check_files(record: Record) -> Iterator[Check]:
    try:
        folder = present(record)
    except OgkdError as error:
        yield Check("FAIL", "Files", str(error))
        return
    if folder is None:
        fix = f"run `ogkd backbones fetch {record.name}`"
        yield Check("FAIL", "Files", f"{record.name} is not on this machine", fix)
        return
    source = read_source(folder) or {}
    again = f"delete {folder} and run `ogkd backbones fetch {record.name}`"
    for name, facts in source["files"].items():
        digest = sha256_file(folder / name)
        if digest == facts["sha256"]:
            yield Check("PASS", name, f"sha256 {digest}")
        else:
            words = f"sha256 {digest}, but it was {facts['sha256']} when fetched"
            yield Check("FAIL", name, words, again)
    file, sha256 = source["original"]["file"], source["original"]["sha256"]
    if record.sha256 is None or file != record.weights:
        yield Check("SKIP", file, "the catalogue has no sha256 for it")
    elif sha256 == record.sha256:
        yield Check("PASS", file, "fetched with the sha256 in the catalogue")
    else:
        words = f"fetched with sha256 {sha256}, the catalogue says {record.sha256}"
        yield Check("FAIL", file, words, again)


def _check_features(backbone: Backbone) -> Check:
    """Encode a fixed image and two texts: features must be finite and of length one."""
    size = backbone.preprocessing.size
    pixels = torch.linspace(-2.0, 2.0, 3 * size * size).view(1, 3, size, size)
    features = backbone.encode_images(pixels)
    texts = backbone.encode_texts(["a photo of a scan.", "normal"])
    parts = [features.globals, texts] + ([] if features.patches is None else [features.patches])
    off = max(float((part.norm(dim=-1) - 1).abs().max()) for part in parts)
    rows, columns = backbone.patch_grid
    words = f"{backbone.embed_dim} numbers, {rows} x {columns} patches, length off by {off:.1e}"
    if off <= 1e-4:  # also false for NaN
        return Check("PASS", "Unit features", words)
    return Check("FAIL", "Unit features", words, "the weights are not those of a working model")


def _check_published(backbone: Backbone, folder: Path, record: Record) -> Check:
    reference = published_outputs()
    missing = [name for name in reference["probabilities"] if not (folder / name).is_file()]
    if missing:
        return Check(
            "SKIP",
            "Published outputs",
            f"the images are not in {folder} ({len(missing)} missing, such as {missing[0]})",
            f"run `ogkd backbones fetch {record.name}`, which fetches them, too",
        )
    difference = compare_outputs(backbone, folder, reference)
    words = f"largest difference {difference:.2e} over nine images and nine labels"
    if difference <= TOLERANCE:
        return Check("PASS", "Published outputs", words)
    fix = f"they were made with {reference['source']} Another revision of the weights may differ"
    return Check("FAIL", "Published outputs", f"{words}, allowed {TOLERANCE}", fix)


def compare_outputs(backbone: Backbone, folder: Path, reference: dict[str, Any]) -> float:
    """The largest difference between published and computed zero-shot probabilities."""
    labels = [reference["template"] + label for label in reference["labels"]]
    names = list(reference["probabilities"])
    expected = torch.tensor([reference["probabilities"][name] for name in names])  # [N, C]
    images = [read_image(folder / name) for name in names]
    pixels = to_pixels(images, backbone.preprocessing)
    features = backbone.encode_images(pixels, patches=False).globals.cpu()
    logits = backbone.logit_scale * features @ backbone.encode_texts(labels).T
    return float((logits.softmax(dim=-1) - expected).abs().max())
