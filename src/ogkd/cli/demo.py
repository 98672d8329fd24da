"""`ogkd demo`: all steps from images to a report, offline, on phantoms."""

from __future__ import annotations

import csv
import shutil
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

import ogkd
from ogkd.cli import options as opt
from ogkd.cli.output import print_table, write_csv
from ogkd.errors import ConfigError
from ogkd.files import write_json, write_text
from ogkd.fitting.request import FitRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ogkd.data.case import Dataset
    from ogkd.evaluation import LabelledPredictions
    from ogkd.model.classifier import Classifier

_OUT, _DATASETS = Path("demo-output"), "cxr,endoscopy"
_UNTRAINED = {
    "zero-shot": "the name of each class, no labelled image",
    "zero-shot-ensemble": "a dozen descriptions of each class, no labelled image",
}
_TRAINED = {
    "fused": "the descriptions and {shots} labelled images per class, in closed form",
    "ogkd": "a prompt learned from {shots} labelled images per class, guided by the descriptions",
}
_METHODS = (*_UNTRAINED, *_TRAINED)
_SEED = 1
_SHOTS = 16
_FEW = 4  # labels per class, where the other training images have none
_VAL = 30  # images per class to calibrate on
_TEST = 50  # images per class
_SHOWN = 6  # predictions
_OURS = ("images", "models", "prompts", "report.html", "results.csv", "results.json")
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
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    few: list[str] = []
    for name in names:
        results, hits = _one_dataset(name, backbone, out, first=name == names[0])
        rows += results
        notes += _notes(name, hits)
        few.append(_few_labels(name, backbone, out))
    write_json(out / "results.json", rows)
    with write_csv(out / "results.csv") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    _print(rows)
    if notes:
        typer.echo("\n" + "\n".join(notes))
    typer.echo(f"\n{_FEW} labels per class are enough to start with (test accuracy of fused):")
    typer.echo("\n".join(few))
    fewest = min(row["test_images"] for row in rows)
    margin = 100 * 1.96 * (0.25 / fewest) ** 0.5  # of a share near one half
    typer.echo(f"Each is measured on {fewest} images: ± {margin:.0f} points are chance.")
    model, images = out / "models" / names[0], out / "images" / names[0] / "test"
    typer.echo(
        f"""
Done in {time.perf_counter() - began:.0f} s. Everything is in {out}:
  results.csv, results.json   the table above
  images/                     the phantoms, as ordinary image folders
  models/                     the fitted models
Phantoms are drawings: these numbers mean nothing for patients.
Next: ogkd predict {model} {images}
Open the report in a browser: {out / "report.html"}"""
    )


def _one_dataset(
    name: str, backbone: Any, out: Path, *, first: bool
) -> tuple[list[dict[str, Any]], dict[str, NDArray[Any]]]:
    """The rows of a dataset, and for each method which test images it gets right."""
    from ogkd.data.phantoms import phantom, write_folder
    from ogkd.evaluation import predict_labelled, summary_metrics

    record = phantom(name)
    folder = out / "images" / name
    typer.echo(f"{record.title}: {', '.join(record.class_names)}")
    splits = {"train": _SHOTS, **({"val": _VAL} if first else {}), "test": _TEST}
    write_folder(name, folder, splits=splits, seed=_SEED)
    bank = dict(zip(record.class_names, record.descriptions, strict=True))
    write_json(out / "prompts" / f"{name}.json", {key: list(texts) for key, texts in bank.items()})
    dataset = ogkd.read_dataset(folder)
    rows, hits = [], {}
    for method in _METHODS:
        began = time.perf_counter()
        folder_out = out / "models" / name if method == FitRequest.method else None
        model = ogkd.fit(
            dataset,
            backbone=backbone,
            method=method,
            shots=_SHOTS,
            seed=_SEED,
            prompts=bank,
            out=folder_out,
        )
        seconds = time.perf_counter() - began
        judged = predict_labelled(model, dataset)
        probabilities = judged.probabilities()
        result = summary_metrics(judged.labels, probabilities)
        hits[method] = probabilities.argmax(1) == judged.labels
        rows.append(
            {
                "dataset": name,
                "classes": len(record.class_names),
                "method": method,
                "shots": _SHOTS if method in _TRAINED else 0,
                "accuracy": round(100 * result["accuracy"], 2),
                "macro_f1": round(100 * result["macro_f1"], 2),
                "test_images": len(judged.labels),
                "fit_seconds": round(seconds, 1),
            }
        )
        typer.echo(f"  {method:20} accuracy {rows[-1]['accuracy']:6.2f} %  ({seconds:.1f} s)")
        if first and folder_out is not None:
            _report(model, dataset, judged, out, folder_out)
    return rows, hits


def _few_labels(name: str, backbone: Any, out: Path) -> str:
    """What unlabelled images give, and labels of chosen images instead of random ones."""
    import numpy as np

    from ogkd.data.case import images_of
    from ogkd.data.phantoms import phantom
    from ogkd.evaluation import predict_labelled, summary_metrics
    from ogkd.features.store import FeatureStore
    from ogkd.serve.studio.queue import UNLABELLED, next_images

    record, folder = phantom(name), out / "images" / name
    dataset = ogkd.read_dataset(folder)
    bank = dict(zip(record.class_names, record.descriptions, strict=True))

    def accuracy(data: Dataset, **options: Any) -> str:
        fit = {"backbone": backbone, "method": FitRequest.method, "seed": _SEED, "prompts": bank}
        judged = predict_labelled(ogkd.fit(data, **fit, **options), dataset)
        share = summary_metrics(judged.labels, judged.probabilities())["accuracy"]
        return f"{100 * share:.1f} %"

    train = dataset.part("train")
    features = FeatureStore(backbone).get(images_of(train)).globals[:, 0].numpy()
    classes = len(record.class_names)
    open_rows = np.full(len(train), UNLABELLED)
    rows = next_images(features, open_rows, classes=classes, n=_FEW * classes)
    asked = [train[row] for row in rows]
    line = f"  {name}: random images {accuracy(dataset, shots=_FEW)}"
    line += ", with the other training images unlabelled "
    line += accuracy(dataset, shots=_FEW, unlabelled=folder / "train")
    if {case.target for case in asked} == set(range(classes)):
        line += f", images chosen to be labelled {accuracy(dataset.with_cases(asked))}"
    return line


def _notes(name: str, hits: Mapping[str, NDArray[Any]]) -> Iterator[str]:
    """One sentence for each trained method below the best untrained one: is it chance, or why."""
    best = max(_UNTRAINED, key=lambda method: hits[method].mean())
    for method in _TRAINED:
        change = 100.0 * (hits[best].astype(float) - hits[method])
        lost, images = change.mean(), len(change)
        if lost <= 0:
            continue
        margin = 1.96 * change.std() / images**0.5  # of the difference, both on the same images
        start = f"{name}: {method} is {lost:.1f} points below {best}"
        if lost <= margin:
            yield f"{start}, which may be chance ({images} test images: ± {margin:.1f} points)."
        else:
            yield (
                f"{start}, more than chance explains (± {margin:.1f} points): the descriptions, "
                f"written for these drawings, tell more than {_SHOTS} images per class."
            )


def _report(
    model: Classifier, dataset: Dataset, judged: LabelledPredictions, out: Path, folder: Path
) -> None:
    """Calibrate the model, write its report, and print some predictions.

    The sets of the predictions contain the true class nine times in ten.
    """
    import numpy as np

    from ogkd.audit import audit_data
    from ogkd.features.store import FeatureStore, stored_batches
    from ogkd.model.calibration import CALIBRATION
    from ogkd.model.decide import Decider
    from ogkd.report import write_report

    model.calibration = ogkd.calibrate(model, dataset)
    model.calibration.write(folder / CALIBRATION)
    typer.echo(f"  calibrated on {model.calibration.cases} other images")
    write_report(
        out / "report.html",
        model,
        dataset,
        judged,
        command=f"ogkd demo --out {out}",
        audit=audit_data(dataset, root=out / "images" / folder.name),
    )
    chosen = np.linspace(0, len(judged.labels) - 1, _SHOWN).round().astype(int)
    store = FeatureStore(model.backbone)
    cases = [judged.cases[number] for number in chosen]
    rows = []
    for decision in Decider(model).decide(cases, partial(stored_batches, store, deep=model.deep)):
        sure, names = f"{100 * (decision.probability or 0):.0f} %", ", ".join(decision.set or ())
        rows.append([judged.task.text(decision.case.target), decision.prediction, sure, names])
    print_table(("true class", "prediction", "probability", "set (90 %)"), rows)


def _print(rows: list[dict[str, Any]]) -> None:
    cells = []
    for name in dict.fromkeys(row["dataset"] for row in rows):
        results = [row for row in rows if row["dataset"] == name]
        shares = [100 / results[0]["classes"], *(row["accuracy"] for row in results)]
        cells.append([name, *(f"{share:.1f}" for share in shares)])
    numbers = ("chance", *_METHODS)
    typer.echo(f"\nTest accuracy on phantoms ({_SHOTS} shots)")
    print_table(("dataset", *numbers), cells, numbers=numbers)
    typer.echo("\nWhat each method uses:")
    for method, words in (_UNTRAINED | _TRAINED).items():
        typer.echo(f"  {method:18}  {words.format(shots=_SHOTS)}")


def _clear(out: Path) -> None:
    """Empty the folder for a new demo, but remove only what a demo has written."""
    if out.exists():
        names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
        if names and (_MARK not in names or not names <= {_MARK, *_OURS}):
            raise ConfigError(
                f"{out} exists and was not written by a demo. Choose another folder.",
                argument="out",
            )
        for name in names - {_MARK}:
            path = out / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    text = "Written by `ogkd demo`, which replaces the content of this folder.\n"
    write_text(out / _MARK, text, ours=True)
