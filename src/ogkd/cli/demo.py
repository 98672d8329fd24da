"""`ogkd demo`: all steps from images to a report, offline, on phantoms."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.options import print_table
from ogkd.errors import ConfigError
from ogkd.files import write_text

if TYPE_CHECKING:
    from ogkd.backbones.base import Backbone
    from ogkd.data.case import Dataset
    from ogkd.evaluation import LabelledPredictions
    from ogkd.model.classifier import Classifier

_OUT, _DATASETS = Path("demo-output"), "cxr,endoscopy"
_METHODS = {
    "zero-shot-ensemble": "a dozen descriptions of each class, no labelled image",
    "fused": "the descriptions and {shots} labelled images per class, in closed form",
    "ogkd": "a prompt learned from {shots} labelled images per class, guided by the descriptions",
}
_KEPT = "fused"  # the method whose models are kept and reported
_SEED, _SHOTS = 1, 16
_VAL, _TEST = 30, 50  # images per class, to calibrate and to test on
_MARK = ".ogkd-demo"


def demo(
    out: Annotated[Path, Option("--out", "-o", help="The folder for the results.")] = _OUT,
    datasets: Annotated[str, Option(help="Phantom datasets, separated by commas.")] = _DATASETS,
) -> None:
    """Make phantom images, adapt the built-in backbone, calibrate the model and write a report.

    The table of results has every dataset; the report is about the first one.
    """
    from ogkd.data.phantoms import phantom

    names = [phantom(name).name for name in dict.fromkeys(opt.split_list(datasets))]
    if not names:
        raise ConfigError("Give at least one phantom dataset, such as cxr.", argument="datasets")
    began = time.perf_counter()
    backbone = ogkd.load_backbone("builtin")
    _clear(out)
    rows = [[name, *_accuracies(name, backbone, out, report=name == names[0])] for name in names]
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
Next: ogkd predict {out / "models" / names[0]} {out / "images" / names[0] / "test"}
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
