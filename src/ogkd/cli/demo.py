"""`ogkd phantoms` and `ogkd demo`: images drawn by a program, and all steps on them, offline."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli.options import print_facts
from ogkd.errors import ConfigError
from ogkd.files import write_text

_OUT, _DATASET, _SEED = Path("demo-output"), "cxr", 1
_SPLITS = {"train": 16, "val": 30, "test": 50}  # images per class
_METHODS = {
    "zero-shot-ensemble": "a dozen descriptions of each class, no labelled image",
    "fused": "the descriptions and 16 labelled images per class, in closed form",
    "ogkd": "a prompt learned from 16 labelled images per class, guided by the descriptions",
}
_KEPT = "fused"  # the method whose model is kept and reported
_MARK = ".ogkd-demo"


def phantoms(
    name: Annotated[str | None, Argument(help="A phantom dataset; without it, a list.")] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="The folder to write.")] = None,
    train: Annotated[int, Option(min=0, max=100_000, help="Training images per class.")] = 32,
    val: Annotated[int, Option(min=0, max=100_000, help="Validation images per class.")] = 8,
    test: Annotated[int, Option(min=0, max=100_000, help="Test images per class.")] = 50,
    seed: Annotated[int, Option(min=0, help="Random seed of the images.")] = 1,
    size: Annotated[int, Option(min=128, max=1024, help="Side of an image in pixels.")] = 160,
    missing: Annotated[
        float, Option(help="chest-findings: share of answers that the table leaves empty.")
    ] = 0.0,
    volumes: Annotated[
        int | None,
        Option(metavar="SLICES", min=3, max=512, help="Write volumes (NIfTI) of so many slices."),
    ] = None,
    share: Annotated[
        float, Option(min=0.0, max=1.0, help="Share of a volume's slices with the finding.")
    ] = 0.1,
) -> None:
    """Write a phantom dataset as {train,val,test}/class folders of PNG files, or list them.

    chest-findings has several findings in an image: folders without classes and
    a table films.csv with a column for each finding; the numbers are then of
    images in all. With --volumes, the folders have volumes, and slices.csv says
    what each slice shows. Phantoms are drawings that imitate a modality. They show
    no patient and have no clinical meaning.
    """
    from ogkd.data import phantoms as drawn

    if name is None:
        facts = {
            key: f"{dataset.title}: {', '.join(dataset.class_names)}"
            for key, dataset in drawn.PHANTOMS.items()
        }
        several = f"Chest films with several findings: {', '.join(drawn.FINDINGS)}"
        print_facts(facts | {drawn.CHEST_FINDINGS: several})
        return
    if out is None:
        raise ConfigError("The folder to write is missing.", argument="out")
    splits = {"train": train, "val": val, "test": test}
    if name == drawn.CHEST_FINDINGS:
        out = drawn.write_films(out, splits=splits, seed=seed, size=size, missing=missing)
        typer.echo(f"{sum(splits.values())} images of {len(drawn.FINDINGS)} findings -> {out}")
        return
    classes = len(drawn.phantom(name).class_names)
    if volumes is None:
        drawn.write_folder(name, out, splits=splits, seed=seed, size=size)
    else:
        options = {"slices": volumes, "share": share, "size": size}
        drawn.write_volumes(name, out, splits=splits, seed=seed, **options)
    what = "images" if volumes is None else "volumes"
    typer.echo(f"{sum(splits.values()) * classes} {what} of {classes} classes -> {out}")


def demo(
    out: Annotated[Path, Option("--out", "-o", help="The folder for the results.")] = _OUT,
) -> None:
    """Make phantom images, adapt the built-in backbone, calibrate the model and write a report."""
    from ogkd.audit import audit_data
    from ogkd.data.phantoms import phantom, write_folder
    from ogkd.evaluation import predict_labelled, summary_metrics
    from ogkd.model.classifier import write_calibration

    began = time.perf_counter()
    backbone = ogkd.load_backbone("builtin")
    _clear(out)
    images, model, page = out / "images", out / "model", out / "report.html"
    record = phantom(_DATASET)
    typer.echo(f"{record.title}: {', '.join(record.class_names)}")
    dataset = ogkd.read_dataset(write_folder(_DATASET, images, splits=_SPLITS, seed=_SEED))
    for method, words in _METHODS.items():
        classifier = ogkd.fit(
            dataset,
            backbone=backbone,
            method=method,
            shots=_SPLITS["train"],
            seed=_SEED,
            prompts=dict(zip(record.class_names, record.descriptions, strict=True)),
            out=model if method == _KEPT else None,
        )
        judged = predict_labelled(classifier, dataset)
        accuracy = summary_metrics(judged.labels, judged.probabilities())["accuracy"]
        typer.echo(f"  {method:18}  accuracy {100 * accuracy:5.1f} %: {words}")
        if method == _KEPT:
            classifier.calibration = ogkd.calibrate(classifier, dataset)
            write_calibration(model, classifier.card, classifier.calibration)
            audit = audit_data(dataset, root=images)
            ogkd.report(classifier, dataset, page, predictions=judged, audit=audit)
    typer.echo(
        f"""Guessing is right for {100 / len(record.class_names):.1f} %.

Done in {time.perf_counter() - began:.0f} s. Everything is in {out}:
  images/   the phantoms, as ordinary image folders
  model/    the fitted model ({_KEPT}), calibrated
Phantoms are drawings: these numbers mean nothing for patients.
Next: ogkd predict {model} {images / "test"}
Open the report in a browser: {page}"""
    )


def _clear(out: Path) -> None:
    """Remove what an earlier demo wrote; refuse a folder with anything else."""
    if out.exists() and not (out / _MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"{out} exists and was not written by a demo.", argument="out")
    for folder in ("images", "model"):
        shutil.rmtree(out / folder, ignore_errors=True)
    (out / "report.html").unlink(missing_ok=True)
    text = "Written by `ogkd demo`, which replaces images, model and report in this folder.\n"
    write_text(out / _MARK, text, ours=True)
