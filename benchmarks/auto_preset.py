"""One setting of OGKD for everybody: chosen on validation images, leaving one dataset out.

Every candidate is fitted on each dataset of the shared folder (OGKD_SHARED) and judged on the
dataset's validation images; test images are not even in the folder that is made for this. For
each dataset the candidate that is best in the mean of all others is taken: what that loses
against the dataset's own best candidate, and against the paper's setting for it, is printed.

    OGKD_SHARED=../shared python benchmarks/auto_preset.py --out runs/auto --shots 4 16
    python benchmarks/auto_preset.py --out runs/auto --table
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ogkd.bench.engines import make_job, prepare, run_here
from ogkd.bench.grid import Grid, expand
from ogkd.bench.results import RunsFolder

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BACKBONE = "backbones/dinov2s14-minilm-med"
OFF = {"options.text_dropout": False}
PAPER, RIVAL = "paper's own", "BiomedCoOp, auto"


def rows() -> list[dict[str, Any]]:
    """Candidates (no dropout, whole image), the paper's setting of each dataset, BiomedCoOp."""
    found: list[dict[str, Any]] = []
    for gad, lgd, gamma in itertools.product((0.25, 1.0, 4.0), (0.1, 0.5), (0.1, 0.5)):
        settings = {"lambda_gad": gad, "lambda_lgd": lgd, "gamma": gamma}
        label = f"GAD {gad:g}, LGD {lgd:g}, gamma {gamma:g}"
        found.append({"label": label, "method": "ogkd", "preset": "auto", "settings": settings})
    for label, preset in ((PAPER, None), (f"{PAPER}, no dropout", None)):
        settings = OFF if "no" in label else {}
        found.append({"label": label, "method": "ogkd", "preset": preset, "settings": settings})
    found.append({"label": RIVAL, "method": "biomedcoop", "preset": "auto"})
    return found


def make_grid(data: Path, datasets: list[str], shots: list[int], seeds: list[int]) -> Grid:
    """The grid over a folder whose test part are validation images."""
    return Grid.model_validate(
        {
            "name": "auto-preset",
            "data": str(data),
            "backbone": str(SHARED / BACKBONE),
            "datasets": datasets,
            "banks": {"COVID_19": "covid"},
            "shots": shots,
            "seeds": seeds,
            "preset": "paper/few-shot/{bank}",
            "settings": {"views": 0, "train.epochs": 50},
            "rows": rows(),
        }
    )


def link_validation(root: Path) -> Path:
    """Datasets as links: train is train, test is val."""
    top = root / "validation"
    for dataset in sorted(path for path in (SHARED / "data").iterdir() if path.is_dir()):
        (top / dataset.name).mkdir(parents=True)
        (top / dataset.name / "train").symlink_to((dataset / "train").resolve())
        (top / dataset.name / "test").symlink_to((dataset / "val").resolve())
    return top


def table(folder: RunsFolder) -> str:
    """For every number of shots: candidates by mean accuracy, and what leaving one out gives."""
    plan = folder.plans()["auto-preset"]
    accuracy: dict[tuple[int, str, str], list[float]] = {}
    for label, run in folder.finished(plan):
        key = (run.spec.shots or 0, label, run.spec.dataset)
        accuracy.setdefault(key, []).append(100 * run.metric("accuracy"))
    parts = []
    for shots in sorted({key[0] for key in accuracy}):
        labels = list(dict.fromkeys(key[1] for key in accuracy if key[0] == shots))
        names = sorted({key[2] for key in accuracy if key[0] == shots})
        names = [n for n in names if all((shots, label, n) in accuracy for label in labels)]
        mean = {(lab, n): float(np.mean(accuracy[shots, lab, n])) for lab in labels for n in names}
        candidates = [label for label in labels if label.startswith("GAD")]
        lines = [f"{shots} shots, {len(names)} datasets: {', '.join(names)}", ""]
        lines += ["| setting | mean |", "|---|---|"]
        for label in sorted(labels, key=lambda lab: -np.mean([mean[lab, n] for n in names])):
            lines.append(f"| {label} | {np.mean([mean[label, n] for n in names]):.1f} |")
        taken = {}
        for left in names:
            rest = [n for n in names if n != left]
            taken[left] = max(candidates, key=lambda lab: np.mean([mean[lab, n] for n in rest]))
        chosen = np.mean([mean[taken[n], n] for n in names])
        best = np.mean([max(mean[lab, n] for lab in candidates) for n in names])
        lines += ["", f"Leaving one out: {chosen:.1f}; each dataset's own best: {best:.1f}.", ""]
        lines += [f"- without {left}: {label}" for left, label in taken.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def main() -> None:
    """Run what is missing, then print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/auto"))
    parser.add_argument("--datasets", nargs="+", default=["*"])
    parser.add_argument("--shots", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = RunsFolder(arguments.out)
    if not arguments.table:
        with tempfile.TemporaryDirectory() as place:
            data = link_validation(Path(place))
            grid = make_grid(data, arguments.datasets, arguments.shots, arguments.seeds)
            plan, sources = expand(grid)
            prepare(folder, plan)
            job = make_job(plan, sources, grid.backbone)
            run_here(folder, job, lambda record: print(record, flush=True))
    print(table(folder))


if __name__ == "__main__":
    main()
