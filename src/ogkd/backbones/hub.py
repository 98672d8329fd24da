"""Fetch backbones from the hub into the cache, whole, checked and converted once; and verify them.

The cache has a folder `<cache>/backbones/NAME` in the model's own format, with its weights as
safetensors and a source.json that says where each file came from and what it hashes to.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, GatedRepoError, RepositoryNotFoundError

from ogkd.backbones._folder import (
    FORMAT_HELP,
    FORMATS,
    PLAIN_WEIGHTS,
    detect_format,
    peek,
    read_weights,
    save_weights,
)
from ogkd.backbones.base import Backbone
from ogkd.backbones.catalog import Record, catalog
from ogkd.backbones.loading import load_backbone, resolve
from ogkd.download import HUB, download, hub_offline, mirrored
from ogkd.errors import BackboneError, OgkdError
from ogkd.files import (
    exclusive_lock,
    folder_atomically,
    read_json,
    sha256_file,
    storage_errors,
    write_json,
)
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels

EXAMPLES = "examples"  # folder of the example images that come with a model
_SOURCE = "source.json"
TOLERANCE = 0.01  # of a probability; image libraries round differently, a wrong loader is far off
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("vocab.txt", "vocab.json", "merges.txt"),
)
_SMALL = ("config.json", "preprocessor_config.json", "processor_config.json", *_TOKENIZER)
# In this order: the first is a kind of the second.
_REFUSALS = {
    GatedRepoError: "is gated: accept its terms on its page, then log in with `hf auth login`",
    RepositoryNotFoundError: "is not on the hub, or private: then log in with `hf auth login`",
}


def published_outputs() -> dict[str, Any]:
    """BiomedCLIP's probabilities for nine images and nine labels, as Microsoft published them."""
    outputs: dict[str, Any] = read_json(Path(__file__).with_name("reference_outputs.json"))
    return outputs


def hub_files(
    hub_id: str, *names: str, revision: str = "main", dataset: bool = False
) -> dict[str, Path]:
    """Those of a repository's files that there are; without a network, those in the hub's cache."""
    files = {}
    for name in names:
        try:
            with storage_errors(Path(constants.HF_HUB_CACHE)):
                path = hf_hub_download(
                    hub_id,
                    name,
                    revision=revision,
                    repo_type="dataset" if dataset else "model",
                    cache_dir=constants.HF_HUB_CACHE,
                    endpoint=mirrored(HUB),
                    # Read here, not at import: a program may set it after it has started.
                    local_files_only=hub_offline() or constants.HF_HUB_OFFLINE,
                )
        except EntryNotFoundError:  # absent, or the hub is not reached
            continue
        except OgkdError:
            raise
        except Exception as error:  # from HTTP, the file transfer or the operating system
            reasons = (text for kind, text in _REFUSALS.items() if isinstance(error, kind))
            reason = next(reasons, f"cannot be fetched now ({error})")
            page = f"{mirrored(HUB)}/{'datasets/' if dataset else ''}{hub_id}"
            raise BackboneError(f"{hub_id} {reason}: {page}", argument="backbone") from error
        files[name] = Path(path)
    return files


def read_source(folder: Path) -> dict[str, Any] | None:
    """Read source.json of a fetched folder; None if there is no valid one."""
    path = folder / _SOURCE
    return peek(path) if peek(path, "files") and peek(path, "weights", "file") else None


def present(record: Record) -> Path | None:
    """The folder of a fetched backbone; None if it is absent, an error if it is damaged."""
    folder = record.folder
    source = read_source(folder)
    if source is None:
        return None
    for name, facts in source["files"].items():
        path = folder / name
        if not path.is_file() or path.stat().st_size != facts["size"]:
            raise BackboneError(
                f"{path} is missing or incomplete. Delete the folder and fetch the backbone again: "
                f"`ogkd backbones fetch {record.name}`."
            )
    return folder


def present_backbones() -> list[str]:
    """Names in the catalogue whose weights are on this machine, except the built-in model."""
    return [name for name, record in catalog().items() if read_source(record.folder)]


def fetch(record: Record) -> Path:
    """Fetch a backbone, check it, convert it to safetensors, and return its folder."""
    record.require_loadable()
    if record.hub_id is None:
        why = record.obtain or "is part of a package: there is nothing to fetch."
        raise BackboneError(f"{record.name} {why}", argument="backbone")
    with exclusive_lock(record.folder):
        if folder := present(record):
            return folder
        revision, dataset = record.revision or "main", record.dataset
        get = partial(hub_files, record.hub_id, revision=revision, dataset=dataset)
        markers = get(*{kind.marker: None for kind in FORMATS.values()})
        kind = record.format
        if kind is None and markers:
            kind = detect_format(next(iter(markers.values())).parent, complete=False)
        marker = FORMATS[kind].marker if kind in FORMATS else ""
        if kind is None or (marker and marker not in markers and not record.model_cfg):
            raise _lacking(record, FORMAT_HELP)
        files = get(*_SMALL)
        if kind == "open_clip":
            files = _open_clip_files(files, markers.get(marker))
        if record.texts:
            files = hub_files(record.texts, *_TOKENIZER) | files
        weights = _weight_files(record, kind, get)
        _check_digest(record, weights[0])
        images = published_outputs()["probabilities"] if record.examples else ()
        examples = get(*(f"{record.examples}/{name}" for name in images))
        _keep(record, kind, files, weights, examples)
    return record.folder


def _weight_files(record: Record, kind: str, get: Callable[..., dict[str, Path]]) -> list[Path]:
    """The weight file, and those that a record has beside it."""
    usual = FORMATS[kind].weights if kind in FORMATS else PLAIN_WEIGHTS
    names = (record.weights,) if record.weights else usual
    weights = [path for name in names for path in get(name).values()][:1]
    weights += get(*record.also).values()
    if len(weights) != 1 + len(record.also):
        raise _lacking(record, f"weight file {' or '.join(names)}")
    return weights


def _open_clip_files(files: dict[str, Path], marker: Path | None) -> dict[str, Path]:
    """The configuration, and BERT's from the repositories that it names; not a CLIPModel's."""
    if peek(files.get("config.json", Path()), "model_type") in FORMATS["transformers"].values:
        del files["config.json"]
    if marker is None:
        return files
    files = {marker.name: marker, **files}
    return files | _text_files(marker, files)


def _lacking(record: Record, what: str) -> BackboneError:
    gate = ""
    if record.gated:
        gate = f" It is gated: accept its terms at {mirrored(HUB)}/{record.hub_id} and log in."
    return BackboneError(
        f"{record.name} cannot be fetched: {record.hub_id} has no {what}, or the hub is not "
        f"reached.{gate} Without a network, run `ogkd backbones fetch {record.name}` on another "
        f"machine and copy its folder to {record.folder}, or use the built-in model.",
        argument="backbone",
    )


def _text_files(marker: Path, have: Iterable[str]) -> dict[str, Path]:
    """BERT's configuration and tokenizer from the repositories that open_clip's file names."""
    files: dict[str, Path] = {}
    for key, enough, names in (
        ("hf_model_name", {"config.json"}, ("config.json",)),
        ("hf_tokenizer_name", {"tokenizer.json", "vocab.txt"}, _TOKENIZER),
    ):
        hub_id = str(peek(marker, "model_cfg", "text_cfg", key) or "")
        if hub_id.count("/") == 1 and not enough & set(have):
            files |= hub_files(hub_id, *names)
    return files


def _check_digest(record: Record, path: Path) -> None:
    """Delete a weight file in the hub's cache that has a wrong hash."""
    digest, blob = sha256_file(path), path.resolve()  # whose name is the hash that the hub reports
    announced = blob.name if re.fullmatch("[0-9a-f]{64}", blob.name) else digest
    expected = record.sha256 or announced
    if digest != expected:
        for stored in (blob, path):
            stored.unlink(missing_ok=True)
        raise BackboneError(
            f"{path.name} of {record.hub_id} was deleted: its sha256 is {digest}, not {expected}."
        )


def _keep(
    record: Record,
    kind: str,
    files: dict[str, Path],
    weights: list[Path],
    examples: dict[str, Path],
) -> None:
    """Write the backbone's folder in the cache."""
    with folder_atomically(record.folder) as aside:
        for name, file in files.items():
            shutil.copyfile(file, aside / name)
        if record.model_cfg and not (aside / FORMATS["open_clip"].marker).exists():
            write_json(aside / FORMATS["open_clip"].marker, {"model_cfg": record.model_cfg})
        if record.tokenizer:
            download(mirrored(record.tokenizer), aside / "tokenizer.json")
        # By the format's name, unless it has none or there are several.
        usual = FORMATS[kind].weights[:1] if kind in FORMATS and len(weights) == 1 else ()
        stored = [aside / name for name in usual or (f"{p.stem}.safetensors" for p in weights)]
        for path, target in zip(weights, stored, strict=True):
            _keep_weights(path, target)
        facts = {
            path.name: {"size": path.stat().st_size, "sha256": sha256_file(path)}
            for path in sorted(aside.iterdir())
        }
        source = {
            "schema": 1,
            "name": record.name,
            "format": kind,
            "hub_id": record.hub_id,
            "revision": weights[0].parent.name,
            "licence": record.licence,
            "original": {"file": weights[0].name, "sha256": sha256_file(weights[0])},
            "weights": {"file": stored[0].name, **facts[stored[0].name]},
            "files": facts,
        }
        write_json(aside / _SOURCE, source)
        for file in examples.values():
            (aside / EXAMPLES).mkdir(exist_ok=True)
            shutil.copyfile(file, aside / EXAMPLES / file.name)


def _keep_weights(path: Path, target: Path) -> None:
    """Link a file in safetensors; convert another, read without running code."""
    if path.suffix == ".safetensors":
        try:
            os.link(path.resolve(), target)  # the same bytes, if the file system allows it
        except OSError:
            shutil.copyfile(path, target)
        return
    save_weights(read_weights(path).tensors, target)


# Verifying


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
