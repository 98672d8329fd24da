"""One setting of OGKD for everybody: chosen without test images, leaving one dataset out.

Every candidate is one change to `auto`. It is fitted on every other image of each class of a
dataset's training part (OGKD_SHARED) and judged on its validation images and the other half;
test images are not even in the folder that is made for this. For each dataset the candidate
that is best in the mean of all others is taken: what that loses against the dataset's
own best candidate, and against the paper's setting for it, is printed.

    OGKD_SHARED=../shared python benchmarks/auto_preset.py --out runs/auto --shots 4
    OGKD_SHARED=../shared python benchmarks/auto_preset.py --out runs/auto --table --shots 4
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ogkd.bench.grid import Grid, expand
from ogkd.bench.runner import prepare
from ogkd.bench.runs import RunsFolder
from ogkd.bench.worker import Job, work

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BACKBONE = "backbones/dinov2s14-minilm-med"
DROPOUT = "options.text_dropout"
PAPER, AUTO = "paper's own", "auto"

CHANGES: dict[str, dict[str, Any]] = {
    AUTO: {},
    "text dropout": {DROPOUT: True},
    "4 random crops": {"views": 4},
    "lambda_SCCM 0.25": {"lambda_sccm": 0.25},
    "lambda_SCCM 4": {"lambda_sccm": 4.0},
    "lambda_GAD 0.25": {"lambda_gad": 0.25},
    "lambda_GAD 4": {"lambda_gad": 4.0},
    "lambda_LGD 0": {"lambda_lgd": 0.0},
    "lambda_LGD 0.1": {"lambda_lgd": 0.1},
    "lambda_LGD 2": {"lambda_lgd": 2.0},
    "gamma 0": {"gamma": 0.0},
    "gamma 0.7": {"gamma": 0.7},
    "alpha 1": {"alpha": 1.0},
    "alpha 16": {"alpha": 16.0},
    "tau 1": {"tau": 1.0},
    "tau 2.5": {"tau": 2.5},
    "K/P 0.1": {"top_ratio": 0.1},
    "K/P 0.8": {"top_ratio": 0.8},
}


def rows() -> list[dict[str, Any]]:
    """The candidates; to compare with, the paper's setting of each dataset, and BiomedCoOp."""
    found: list[dict[str, Any]] = [
        {"label": label, "method": "ogkd", "preset": "auto", "settings": settings}
        for label, settings in CHANGES.items()
    ]
    for label, settings in ((PAPER, {}), (f"{PAPER}, no text dropout", {DROPOUT: False})):
        found.append({"label": label, "method": "ogkd", "settings": settings})
    found.append({"label": "BiomedCoOp's own", "method": "biomedcoop"})
    found.append({"label": "BiomedCoOp, auto", "method": "biomedcoop", "preset": "auto"})
    return found


def make_grid(data: Path, datasets: list[str], shots: list[int], seeds: list[int]) -> Grid:
    """The grid over a folder without test images."""
    return Grid.model_validate(
        {
            "name": "auto-preset",
            "data": str(data),
            "backbone": str(SHARED / BACKBONE),
            "datasets": datasets,
            "shots": shots,
            "seeds": seeds,
            "preset": "paper/few-shot/{dataset}",
            "settings": {"views": 0, "train.epochs": 50},
            "rows": rows(),
        }
    )


def link_halves(root: Path) -> Path:
    """Datasets as links: train is half of each class's train, test is val and the other half."""
    top = root / "halves"
    for dataset in sorted(path for path in (SHARED / "data").iterdir() if path.is_dir()):
        for folder in sorted(path for path in (dataset / "train").iterdir() if path.is_dir()):
            files = sorted(folder.iterdir())
            parts = {"train": files[0::2], "test": files[1::2]}
            parts["test"] += sorted((dataset / "val" / folder.name).iterdir())
            for part, chosen in parts.items():
                place = top / dataset.name / part / folder.name
                place.mkdir(parents=True)
                for file in chosen:
                    (place / f"{file.parent.parent.name}-{file.name}").symlink_to(file.resolve())
    return top


def table(folder: RunsFolder, shots: int) -> str:
    """Settings by mean accuracy with their difference to `auto`; what leaving one out gives."""
    accuracy: dict[tuple[str, str], list[float]] = {}
    for label, run in folder.finished(folder.plans()["auto-preset"]):
        if run.spec.shots == shots:
            key = (label, run.spec.dataset)
            accuracy.setdefault(key, []).append(100 * run.metric("accuracy"))
    labels = list(dict.fromkeys(label for label, _ in accuracy))
    names = sorted({name for _, name in accuracy})
    names = [name for name in names if all((label, name) in accuracy for label in labels)]
    mean = np.array([[np.mean(accuracy[lab, name]) for name in names] for lab in labels])
    less = mean - mean[labels.index(AUTO)]
    error = less.std(axis=1, ddof=1) / np.sqrt(len(names))  # of the mean over datasets
    lines = [f"{shots} shots, {len(names)} datasets: {', '.join(names)}", ""]
    lines += [
        "| setting | mean accuracy (%) | less `auto` | standard error |",
        "|---|---:|---:|---:|",
    ]
    for row in np.argsort(-mean.mean(axis=1)):
        value = f"{mean[row].mean():.1f} | {less[row].mean():+.1f} | {error[row]:.1f}"
        lines.append(f"| {labels[row]} | {value} |")
    candidates = [row for row, label in enumerate(labels) if label in CHANGES]
    ours = mean[candidates]  # [candidates, datasets]
    rest = (ours.sum(axis=1, keepdims=True) - ours) / (len(names) - 1)
    taken = rest.argmax(axis=0)
    chosen = ours[taken, np.arange(len(names))].mean()
    lines += ["", f"Leaving one out: {chosen:.1f}; each dataset's own best: "]
    lines[-1] += f"{ours.max(axis=0).mean():.1f}."
    lines += [
        f"- without {name}: {labels[candidates[best]]}"
        for name, best in zip(names, taken, strict=True)
    ]
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/auto"))
    parser.add_argument("--datasets", nargs="+", default=["*"])
    parser.add_argument("--shots", nargs="+", type=int, default=[4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--rows", nargs="+", help="only these settings")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = RunsFolder(arguments.out)
    if not arguments.table:
        with tempfile.TemporaryDirectory() as place:
            data = link_halves(Path(place))
            grid = make_grid(data, arguments.datasets, arguments.shots, arguments.seeds)
            grid = grid.model_copy(update={"only": arguments.rows})
            plan, sources = expand(grid)
            prepare(folder, plan, sources)
            work(Job(out=folder.root, plan=plan, sources=sources, backbone=grid.backbone))
    for shots in arguments.shots:
        print(f"\n{table(folder, shots)}")


if __name__ == "__main__":
    main()
