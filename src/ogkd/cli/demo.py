"""`ogkd phantoms` and `ogkd demo`: images drawn by a program, and all steps on them, offline."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

import ogkd
from ogkd.cli.options import print_facts, print_table
from ogkd.errors import ConfigError
from ogkd.files import write_text

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone
    from ogkd.data.case import Dataset
    from ogkd.evaluation import LabelledPredictions
    from ogkd.model.classifier import Classifier

_OUT, _DATASETS = Path("demo-output"), ("cxr", "endoscopy")
_METHODS = {
    "zero-shot-ensemble": "a dozen descriptions of each class, no labelled image",
    "fused": "the descriptions and {shots} labelled images per class, in closed form",
    "ogkd": "a prompt learned from {shots} labelled images per class, guided by the descriptions",
}
_KEPT = "fused"  # the method whose models are kept and reported
_SEED, _SHOTS = 1, 16
_VAL, _TEST = 30, 50  # images per class, to calibrate and to test on
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
    """Make phantom images, adapt the built-in backbone, calibrate the model and write a report.

    The table of results has every dataset; the report is about the first one.
    """
    began = time.perf_counter()
    backbone = ogkd.load_backbone("builtin")
    _clear(out)
    first = _DATASETS[0]
    rows = [[name, *_accuracies(name, backbone, out, report=name == first)] for name in _DATASETS]
    numbers = ("chance", *_METHODS)
    typer.echo(f"\nTest accuracy on phantoms ({_SHOTS} shots)")
    print_table(("dataset", *numbers), rows, numbers=numbers)
    typer.echo("\nWhat each method uses:")
    for method, words in _METHODS.items():
        typer.echo(f"  {method:18}  {words.format(shots=_SHOTS)}")
    typer.echo(
        f"""
Done in {time.perf_counter() - began:.0f} s. Everything is in {out}:
  images/   the phantoms, as ordinary image folders
  models/   the fitted models ({_KEPT})
Phantoms are drawings: these numbers mean nothing for patients.
Next: ogkd predict {out / "models" / first} {out / "images" / first / "test"}
Open the report in a browser: {out / "report.html"}"""
    )


def _accuracies(name: str, backbone: Backbone, out: Path, *, report: bool) -> list[str]:
    """Test accuracies in per cent: of guessing, and of each method."""
    from ogkd.data.phantoms import phantom, write_folder
    from ogkd.evaluation import predict_labelled, summary_metrics

    record, folder = phantom(name), out / "images" / name
    typer.echo(f"{record.title}: {', '.join(record.class_names)}")
    splits = {"train": _SHOTS, "val": _VAL if report else 0, "test": _TEST}
    dataset = ogkd.read_dataset(write_folder(name, folder, splits=splits, seed=_SEED))
    shares = [1 / len(record.class_names)]
    for method in _METHODS:
        began = time.perf_counter()
        model = ogkd.fit(
            dataset,
            backbone=backbone,
            method=method,
            shots=_SHOTS,
            seed=_SEED,
            prompts=dict(zip(record.class_names, record.descriptions, strict=True)),
            out=out / "models" / name if method == _KEPT else None,
        )
        seconds = time.perf_counter() - began
        judged = predict_labelled(model, dataset)
        shares.append(summary_metrics(judged.labels, judged.probabilities())["accuracy"])
        typer.echo(f"  {method:20} accuracy {100 * shares[-1]:6.2f} %  ({seconds:.1f} s)")
        if report and method == _KEPT:
            _report(name, model, dataset, judged, out)
    return [f"{100 * share:.1f}" for share in shares]


def _report(
    name: str, model: Classifier, dataset: Dataset, judged: LabelledPredictions, out: Path
) -> None:
    """Calibrate the model of the first dataset and write its report."""
    from ogkd.audit import audit_data
    from ogkd.model.calibration import CALIBRATION

    model.calibration = ogkd.calibrate(model, dataset)
    model.calibration.write(out / "models" / name / CALIBRATION)
    typer.echo(f"  calibrated on {model.calibration.cases} other images")
    audit = audit_data(dataset, root=out / "images" / name)
    page = out / "report.html"
    ogkd.report(model, dataset, page, predictions=judged, audit=audit)


def _clear(out: Path) -> None:
    """Remove what an earlier demo wrote; refuse a folder with anything else."""
    if out.exists() and not (out / _MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(
            f"{out} exists and was not written by a demo. Choose another folder.", argument="out"
        )
    for folder in ("images", "models"):
        shutil.rmtree(out / folder, ignore_errors=True)
    (out / "report.html").unlink(missing_ok=True)
    text = "Written by `ogkd demo`, which replaces images, models and the report in this folder.\n"
    write_text(out / _MARK, text, ours=True)
