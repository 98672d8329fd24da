"""Image encoder: speed, agreement with float32 and zero-shot accuracy of each engine.

    OGKD_SHARED=../shared python benchmarks/encoder.py [--threads 2] [--out encoder.json]

Rates are medians of interleaved rounds, by wall clock and by CPU time (the latter is meaningful
on a busy machine too, with one thread). Speed: the proxy and BiomedCLIP's size with random
weights; agreement and accuracy: the proxy on real test images. The engines need the extra `onnx`.
Prints JSON, then Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from biomedclip_size import make_backbone
from ogkd.backbones.base import Backbone
from ogkd.backbones.engines import ENGINES, with_engine
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.files import write_json
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels
from zero_shot_proxy import PROXY, class_names, zero_shot

DATASETS = ("BUSI", "CHMNIST", "RETINA", "OCTMNIST")


def rates(engines: dict[str, Backbone], pixels: Tensor, rounds: int) -> dict[str, Any]:
    """Seconds per image of every engine, with and without patches, and ratios to torch."""
    cases = [(name, patches) for patches in (True, False) for name in engines]
    taken: dict[tuple[str, bool], list[tuple[float, float]]] = {case: [] for case in cases}
    for turn in range(rounds + 1):
        for name, patches in cases:
            wall, cpu = time.perf_counter(), time.process_time()
            engines[name].encode_images(pixels, patches=patches)
            used = time.perf_counter() - wall, time.process_time() - cpu
            if turn:  # the first round warms up
                taken[name, patches].append((used[0] / len(pixels), used[1] / len(pixels)))
    found: dict[str, Any] = {}
    for (name, patches), times in taken.items():
        reference = taken["torch", patches]
        row = found.setdefault(name, {})
        for index, clock in enumerate(("wall", "cpu")):
            key = f"{clock}, {'patches' if patches else 'globals'}"
            row[f"ms per image, {key}"] = 1000 * statistics.median(t[index] for t in times)
            row[f"ratio, {key}"] = statistics.median(
                base[index] / own[index] for base, own in zip(reference, times, strict=True)
            )
    return found


def sgemm_rate() -> float:
    """GFLOP/s of one large float32 product: an upper bound for the encoder."""
    left, right = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds = []
    for _ in range(20):
        start = time.process_time()
        torch.mm(left, right)
        seconds.append(time.process_time() - start)
    return 2 * 1024**3 / statistics.median(seconds) / 1e9


def agreement(reference: Backbone, other: Backbone, files: list[Path]) -> dict[str, float]:
    """Cosines between the features of two engines on real images."""
    images, parts = [], []
    for start in range(0, len(files), 8):
        batch = [read_image(file) for file in files[start : start + 8]]
        pixels = to_pixels(batch, reference.preprocessing)
        want, got = reference.encode_images(pixels), other.encode_images(pixels)
        assert want.patches is not None
        assert got.patches is not None
        images.append((want.globals * got.globals).sum(dim=-1))
        parts.append((want.patches * got.patches).sum(dim=-1).flatten())
    whole, patches = torch.cat(images), torch.cat(parts)
    return {
        "images": len(files),
        "globals, mean": float(whole.mean()),
        "globals, min": float(whole.min()),
        "patches, mean": float(patches.mean()),
        "patches, 1st percentile": float(patches.sort().values[len(patches) // 100]),
        "patches, min": float(patches.min()),
    }


def real_images(shared: Path, per_dataset: int) -> list[Path]:
    """Test files, spread evenly over every dataset."""
    chosen: list[Path] = []
    for folder in sorted(path for path in (shared / "data").iterdir() if path.is_dir()):
        files = sorted(path for path in (folder / "test").rglob("*") if path.is_file())
        chosen += files[:: max(1, len(files) // per_dataset)][:per_dataset]
    return chosen


def accuracies(engines: dict[str, Backbone], shared: Path, datasets: list[str]) -> dict[str, Any]:
    """Zero-shot accuracy (%) of every engine on each dataset's test split."""
    manifest = json.loads((shared / "data" / "MANIFEST.json").read_text())["datasets"]
    found: dict[str, Any] = {}
    for dataset in datasets:
        folder = shared / "data" / dataset / "test"
        names = class_names(manifest[dataset], folder)
        answers = {name: zero_shot(engine, folder, names) for name, engine in engines.items()}
        base = answers["torch"][0]
        for name, (predicted, true) in answers.items():
            right = sum(a == b for a, b in zip(predicted, true, strict=True))
            same = sum(a == b for a, b in zip(predicted, base, strict=True))
            found.setdefault(dataset, {})[name] = {
                "images": len(true),
                "accuracy": 100 * right / len(true),
                "same answer as torch": 100 * same / len(true),
            }
    return found


def to_table(report: dict[str, Any]) -> str:
    """The report as Markdown."""
    lines = ["| model | engine | features | clock ms | ratio | CPU ms | ratio |", "|---" * 7 + "|"]
    for model, rows in report["speed"].items():
        for engine, row in rows.items():
            for kind in ("patches", "globals"):
                cells = " | ".join(
                    f"{row[f'ms per image, {clock}, {kind}']:.0f} | "
                    f"**{row[f'ratio, {clock}, {kind}']:.2f}x**"
                    for clock in ("wall", "cpu")
                )
                lines.append(f"| {model} | {engine} | {kind} | {cells} |")
    for engine, row in report.get("agreement", {}).items():
        values = "; ".join(f"{key} {value:.5g}" for key, value in row.items())
        lines.append(f"\nCosines of {engine} to torch: {values}")
    if "zero-shot" in report:
        lines.append("\n| dataset | engine | accuracy | same answer |\n|---|---|---|---|")
        for dataset, rows in report["zero-shot"].items():
            for engine, row in rows.items():
                same = row["same answer as torch"]
                lines.append(f"| {dataset} | {engine} | {row['accuracy']:.1f} | {same:.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32, help="images per call when timing")
    parser.add_argument("--engines", nargs="*", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--models", nargs="*", default=["proxy", "biomedclip-size"])
    parser.add_argument("--datasets", nargs="*", default=list(DATASETS))
    parser.add_argument("--images-per-dataset", type=int, default=20)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shared = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    report: dict[str, Any] = {
        "machine": {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count()},
        "torch": f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}",
        "threads": options.threads,
        "batch": options.batch,
        "sgemm GFLOP/s": sgemm_rate(),
        "speed": {},
    }
    for model in options.models:
        if model == "proxy":
            folder = shared / "backbones" / PROXY
            backbone: Backbone = load_open_clip(folder, name=PROXY, device=torch.device("cpu"))
        else:
            backbone = make_backbone()
        engines = {name: with_engine(backbone, name) for name in ("torch", *options.engines)}
        size = backbone.preprocessing.size
        pixels = torch.randn(options.batch, 3, size, size)
        report["speed"][model] = rates(engines, pixels, options.rounds)
        if model == "proxy":
            files = real_images(shared, options.images_per_dataset)
            report["agreement"] = {
                name: agreement(backbone, engine, files)
                for name, engine in engines.items()
                if name != "torch"
            }
            if options.datasets:
                report["zero-shot"] = accuracies(engines, shared, options.datasets)
    report["peak GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    if options.out:
        write_json(options.out, report)
    print(json.dumps(report, indent=2))
    print("\n" + to_table(report))


if __name__ == "__main__":
    main()
