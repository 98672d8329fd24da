"""What every method costs: the first table of docs/evidence/methods.md.

Measured at BiomedCLIP's size with random weights, on cached features of 16 shots x 8 classes
and texts that are encoded beforehand, each method in a process of its own; one JSON each. What
is there is not measured again.

    python benchmarks/methods.py --out runs/methods
    python benchmarks/methods.py --out runs/methods --table               # print it
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save
from torch.nn.functional import normalize

from ogkd.backbones import Backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.features.views import FixedViews
from ogkd.files import write_atomically, write_json
from ogkd.methods import METHODS, Method, Support, TextSide, make_method, presets

CLASSES, SHOTS = 8, 16
_MIB = 1024**2
_ENOUGH = 40.0  # seconds of training that tell what an epoch takes

Timing = NDArray[np.float64]  # wall and processor seconds


def chosen_preset(method: str) -> str | None:
    """The setting for everybody, where a method has one."""
    return "auto" if "auto" in presets(method) else None


def make_support(d: int, grid: int, views: int, *, patches: bool, seed: int) -> Support:
    """Random features that cluster by class, as the store would give them."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(CLASSES, 1, 1, d, generator=generator)
    noise = torch.randn(CLASSES, SHOTS, max(1, views), d, generator=generator)
    features = normalize(centres + 2 * noise, dim=-1).flatten(0, 1)
    local = None
    if patches:
        shape = (*features.shape[:2], grid, d)
        local = normalize(torch.randn(shape, generator=generator), dim=-1).half()
    labels = torch.arange(CLASSES).repeat_interleave(SHOTS)
    return Support(FixedViews(ImageFeatures(features, local)), labels)


def write_texts(path: Path) -> None:
    """Encode the texts once for all methods: features, and how long it took."""
    from biomedclip_size import make_backbone

    text = _text(make_backbone())
    began = time.perf_counter()
    tensors = {"single": text.single, "bank": torch.stack(text.bank)}
    seconds = time.perf_counter() - began
    with write_atomically(path) as aside:
        aside.write_bytes(save(tensors, metadata={"seconds": f"{seconds:.2f}"}))


def _text(backbone: Backbone) -> TextSide:
    from speed import NAMES, make_bank

    bank = make_bank(CLASSES)
    return TextSide(backbone, tuple(NAMES[:CLASSES]), tuple(tuple(row) for row in bank))


def cost_of(name: str, texts: Path) -> dict[str, Any]:
    """Seconds and memory of one fit in this process, from features of images and texts on."""
    from biomedclip_size import make_backbone

    backbone = make_backbone()
    text = _text(backbone)
    encoded = load_file(texts)
    # Where TextSide keeps what it has encoded.
    text.__dict__.update(single=encoded["single"], bank=list(encoded["bank"]))
    settings = {"views": _cached(name)} if "views" in _preset_of(name) else {}
    method = make_method(name, preset=chosen_preset(name), settings=settings)
    views = method.config.views
    count = 0 if views == "online" else views
    grid = backbone.patch_grid[0] * backbone.patch_grid[1]
    support = make_support(backbone.embed_dim, grid, count, patches=method.uses_patches, seed=0)
    forget_peak()
    before = psutil.Process().memory_info().rss
    seconds, processor, note = _seconds(name, method, support, text)
    peak = peak_memory()
    return {
        "method": name,
        "cost": method.cost,
        "seconds": seconds,
        "processor s": processor,
        "note": note,
        "peak MiB": peak / _MIB,
        "above start MiB": max(0, peak - before) / _MIB,
    }


def forget_peak() -> None:
    """Start anew with the peak of memory, where Linux lets us: making the model had its own."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory() -> int:
    """The largest resident memory since `forget_peak`, in bytes."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _preset_of(name: str) -> dict[str, Any]:
    preset = chosen_preset(name)
    return {} if preset is None else presets(name)[preset]


def _cached(name: str) -> int:
    views = _preset_of(name)["views"]
    return (
        4 if views == "online" else int(views)
    )  # a fresh crop each step is not on cached features


def _seconds(
    name: str, method: Method, support: Support, text: TextSide
) -> tuple[float, float, str]:
    """Wall and processor seconds: median of three fits, or extrapolated for a trained context."""

    def fit_once(chosen: Method) -> Timing:
        began = np.array([time.perf_counter(), time.process_time()])
        chosen.fit(support if chosen.needs_images else None, text, seed=1)
        return np.array([time.perf_counter(), time.process_time()]) - began

    train = getattr(method.config, "train", None)
    if not method.needs_training or train is None:
        fit_once(method)  # the first pays for imports
        wall, processor = np.median([fit_once(method) for _ in range(3)], axis=0)
        return float(wall), float(processor), "measured"
    settings = method.config.model_dump()

    def epochs(count: int) -> Timing:
        few = {**settings, "train": {**settings["train"], "epochs": count}}
        return fit_once(make_method(name, settings=few))

    epochs(1)  # pays for what is done once
    if train.tolerance:  # it ends by itself
        wall, processor = fit_once(method)
        return float(wall), float(processor), "measured"
    one = epochs(1)
    count = min(train.epochs, max(3, int(_ENOUGH / max(one[1], 1e-3))))
    epoch = (epochs(count) - one) / (count - 1)
    wall, processor = one + (train.epochs - 1) * epoch
    note = f"{train.epochs} epochs, extrapolated from {count} of {epoch[1]:.1f} s"
    return float(wall), float(processor), note


def measure_costs(names: Sequence[str], out: Path, threads: int) -> None:
    """Every method in a process of its own; one JSON each."""
    texts = out / "cost" / "texts.safetensors"
    if not texts.is_file():
        write_texts(texts)
    for name in names:
        path = out / "cost" / f"{name}.json"
        if path.is_file():
            continue
        arguments = [sys.executable, __file__, "--one", name, "--threads", str(threads)]
        arguments += ["--out", str(out)]
        answer = subprocess.run(arguments, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(answer.stdout.splitlines()[-1]) | {"threads": threads}
        write_json(path, found)
        print(f"{name:22} {found['processor s']:9.3f} s  {found['peak MiB']:7.0f} MiB", flush=True)


def cost_table(out: Path) -> str:
    """Markdown of what was measured."""
    rows = [json.loads(path.read_text()) for path in sorted((out / "cost").glob("*.json"))]
    lines = ["| method | processor seconds | seconds | peak memory | above start | how |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {row['method']} | {row['processor s']:.2f} | {row['seconds']:.2f} "
        f"| {row['peak MiB']:.0f} MiB "
        f"| {row['above start MiB']:.0f} MiB | {row['note']} |"
        for row in sorted(rows, key=lambda row: row["processor s"])
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure or print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    parser.add_argument("--table", action="store_true", help="print what is there as Markdown")
    parser.add_argument("--methods", nargs="+", choices=sorted(METHODS), default=sorted(METHODS))
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.one:
        print(json.dumps(cost_of(arguments.one, arguments.out / "cost" / "texts.safetensors")))
        return
    if not arguments.table:
        measure_costs(arguments.methods, arguments.out, arguments.threads)
    print(f"\n{cost_table(arguments.out)}")


if __name__ == "__main__":
    main()
