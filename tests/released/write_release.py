"""Write what a release writes: small models, calibrations, a studio project, benchmark results.

    python tests/released/write_release.py tests/released/VERSION

Folders of earlier releases are never written again: `test_old_files.py` reads all of them.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import ogkd
from ogkd.bench.runs import RunsFolder
from ogkd.cli import main
from ogkd.data.phantoms import write_films
from ogkd.serve.studio.project import ClassInfo, Project

COMMANDS = """
phantoms us-breast --train 4 --val 16 --test 1 --size 128 --seed 3 -o img
phantoms us-breast --volumes 5 --train 2 --val 1 --test 1 --share 0.5 --size 128 --seed 3 -o vol
fit img -b builtin -o models/fused
calibrate models/fused img
fit img -b builtin -m ogkd --shots 2 --set train.epochs=2 -o models/ogkd
fit img -b builtin -m gda --shots 4 -o models/gda
fit films/films.csv -b builtin -o models/findings
calibrate models/findings films/films.csv --sensitivity 0.7
fit vol -b builtin --slices N=2 -o models/cases
bench run grid.toml --workers 0 -o runs
"""
GRID = """
name = "small"
data = "phantoms"
backbone = "builtin"
datasets = ["us-breast"]
shots = [2]
seeds = [1]
methods = ["zero-shot", "gda"]

[phantoms]
train = 2
val = 1
test = 2
"""
# Which images each model answers, of those that are kept.
IMAGES = {"fused": "img", "ogkd": "img", "gda": "img", "findings": "films", "cases": "vol"}


def answers(folder: Path) -> dict[str, Any]:
    """What this version answers with the files of a folder that `write` has written."""
    models = {}
    for name, images in IMAGES.items():
        model = ogkd.load(folder / "models" / name)
        files = sorted(path for path in (folder / images).iterdir() if path.is_file())
        models[name] = [
            {
                "image": file.name,
                "probabilities": [round(float(p), 6) for p in decision.probabilities],
                "set": decision.set and list(decision.set),
                "prediction": decision.prediction,
            }
            for file, decision in zip(files, model.decide(files), strict=True)
        ]
    project = Project.open(folder / "studio")
    runs = RunsFolder(folder / "runs").runs()
    return {
        "models": models,
        "studio": {"classes": list(project.class_names), "labels": project.labels},
        "runs": {str(run.spec): run.metric("accuracy") for run in runs},
    }


def write(out: Path) -> None:
    """Everything, by the commands of this version; only what is small is kept."""
    out = out.resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["OGKD_CACHE"] = str(Path(folder) / "cache")
        Path("grid.toml").write_text(GRID, encoding="utf-8")
        sizes = {"train": 12, "val": 40, "test": 4}
        write_films(Path("films"), splits=sizes, seed=3, size=128, missing=0.1)
        for line in COMMANDS.strip().splitlines():
            _run(line)
        _label(Path("studio"))
        for name in ("models", "runs", "studio"):
            shutil.copytree(name, out / name, ignore=shutil.ignore_patterns(".*"))
        for name in set(IMAGES.values()):
            (out / name).mkdir()
            for file in sorted(path for path in Path(name, "test").rglob("*") if path.is_file()):
                shutil.copy(file, out / name / f"{file.parent.name}-{file.name}")
    text = json.dumps(answers(out), indent=1)
    (out / "answers.json").write_text(text + "\n", encoding="utf-8")


def _run(line: str) -> None:
    sys.argv = ["ogkd", *shlex.split(line)]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise


def _label(folder: Path) -> None:
    project = Project.open(folder)
    classes = [ClassInfo(name="normal", normal=True), ClassInfo(name="mass", texts=("a mass",))]
    project.set_facts(classes=classes)
    project.mark("../img/a.png", "label", "normal", by="one")
    project.mark("../img/b.png", "label", "mass", by="two")
    project.mark("../img/c.png", "unsure")
    project.mark("../img/a.png", "label", "mass", by="one")
    project.write_table()


if __name__ == "__main__":
    write(Path(sys.argv[1]))
