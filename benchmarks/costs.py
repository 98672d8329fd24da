"""What one fit costs at 4 classes x 16 shots: the second table of docs/evidence/methods.md.

Each method is fitted on RETINA with the proxy backbone and one thread; features are in the cache
before, where a method can use it. A method that tunes the towers is measured for one and for two
epochs, and the rest is estimated. Beside the processor seconds stands how many times the image
tower could have encoded the 64 images in them; its pass is measured once. One JSON file for each
method in --out; what is there is not measured again.

    OGKD_SHARED=../shared python benchmarks/costs.py --out runs/costs
    python benchmarks/costs.py --out runs/costs --table
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import cache
from pathlib import Path
from typing import Any

import torch

import ogkd
from ogkd.backbones import load_backbone
from ogkd.data.case import images_of
from ogkd.data.read import read_dataset
from ogkd.features.encode import encode_files
from ogkd.files import write_json
from ogkd.fitting.prepare import draw
from ogkd.methods import METHODS, make_method, presets

SHARED = Path(os.environ.get("OGKD_SHARED", "../shared"))
DATA, BACKBONE = SHARED / "data" / "RETINA", SHARED / "backbones" / "dinov2s14-minilm-med"
SHOTS = 16


@cache
def seconds_of_a_pass() -> float:
    """Processor seconds of encoding the images to learn from, decoded and whole."""
    backbone = load_backbone(BACKBONE)
    drawn = draw(read_dataset(DATA), make_method("fused"), shots=SHOTS, seed=1)
    images = images_of(drawn.support)
    list(encode_files(backbone, images[:4]))  # the first pays for imports
    began = time.process_time()
    list(encode_files(backbone, images))
    return time.process_time() - began


def seconds_of_a_fit(name: str, epochs: int | None = None) -> float:
    settings = {} if epochs is None else {"train.epochs": epochs}
    preset = "auto" if "auto" in presets(name) else None
    began = time.process_time()
    ogkd.fit(DATA, backbone=BACKBONE, method=name, shots=SHOTS, preset=preset, settings=settings)
    return time.process_time() - began


def measure(name: str) -> dict[str, Any]:
    """Processor seconds of one fit of a method, and of one pass of the image tower."""
    method = METHODS[name]
    row: dict[str, Any] = {"method": name, "pass": seconds_of_a_pass()}
    if not method.needs_pixels:
        seconds_of_a_fit(name, 1 if method.needs_training else None)  # fills the cache
        return row | {"seconds": seconds_of_a_fit(name), "how": "measured"}
    preset = "auto" if "auto" in presets(name) else None
    epochs = make_method(name, preset=preset).config.model_dump()["train"]["epochs"]
    first = seconds_of_a_fit(name, 1)
    each = seconds_of_a_fit(name, 2) - first
    how = f"estimated: {epochs} epochs of {each:.1f} s"
    return row | {"seconds": first + (epochs - 1) * each, "how": how}


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| method | processor seconds | passes of the image tower | how |",
        "|---|---:|---:|---|",
    ]
    for row in sorted(rows, key=lambda row: float(row["seconds"])):
        seconds, passes = row["seconds"], row["seconds"] / row["pass"]
        lines.append(f"| {row['method']} | {seconds:,.1f} | {passes:,.1f} | {row['how']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=sorted(METHODS))
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for name in options.methods if not options.table else ():
        file = options.out / f"{name}.json"
        if not file.is_file():
            write_json(file, measure(name))
    print(table([json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))]))


if __name__ == "__main__":
    main()
