"""`ogkd predict MODEL one.png` from a cold start, in units of what torch itself needs.

A folder in open_clip's format at BiomedCLIP's size (random weights, 0.8 GB) and a zero-shot model
on it are written to a temporary folder. Each command is a process of its own; processor seconds,
medians of interleaved rounds. The unit is a process that imports torch and reads all weights.
"predict, first time" also hashes the weights, which is remembered while the file is unchanged.

    python benchmarks/cold_start.py --out runs/cold.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import ogkd
from biomedclip_size import make_backbone, write_folder
from ogkd.files import write_json

_READ = """
import sys, torch
from safetensors.torch import load_file
weights = {name: tensor.clone() for name, tensor in load_file(sys.argv[1]).items()}
"""


def seconds(*command: str | Path) -> float:
    """Processor seconds of a command that must succeed."""

    def used() -> float:
        found = resource.getrusage(resource.RUSAGE_CHILDREN)
        return found.ru_utime + found.ru_stime

    before = used()
    subprocess.run([sys.executable, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return used() - before


def measure(place: Path, rounds: int) -> dict[str, Any]:
    """Medians over rounds in which the commands take turns."""
    folder = place / "backbone"
    weights = write_folder(make_backbone(), folder)
    time.sleep(3)  # a file that is younger than that is hashed every time
    noise = np.random.default_rng(0).integers(0, 255, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(noise).save(place / "one.png")
    names = ["normal", "benign tumor", "malignant tumor"]
    ogkd.zero_shot(names, backbone=folder).save(place / "model")
    predict = ("-m", "ogkd", "predict", place / "model", place / "one.png")
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        shutil.rmtree(place / "cache" / "digests", ignore_errors=True)
        found.setdefault("import torch and read the weights", []).append(
            seconds("-c", _READ, weights)
        )
        found.setdefault("import torch", []).append(seconds("-c", "import torch"))
        found.setdefault("predict, first time", []).append(seconds(*predict))
        found.setdefault("predict", []).append(seconds(*predict))
        found.setdefault("ogkd --help", []).append(seconds("-m", "ogkd", "--help"))
    medians: dict[str, Any] = {name: statistics.median(values) for name, values in found.items()}
    unit = found["import torch and read the weights"]
    for name in ("predict, first time", "predict"):
        pairs = zip(found[name], unit, strict=True)
        medians[f"{name}, in units"] = statistics.median(a / b for a, b in pairs)
    return medians


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    with tempfile.TemporaryDirectory() as place:
        os.environ["OGKD_CACHE"] = str(Path(place) / "cache")
        result = measure(Path(place), arguments.rounds)
    if arguments.out:
        write_json(arguments.out, result)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
