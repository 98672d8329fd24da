"""Zero-shot accuracy of the developers' proxy backbone on the shared images.

    OGKD_SHARED=../shared python benchmarks/zero_shot_proxy.py [--datasets BUSI CHMNIST]

Prints JSON, then a Markdown table, of the test split with "a photo of a {class}.".
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch

from ogkd.backbones.base import Backbone
from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.images.decode import read_image
from ogkd.images.transforms import to_pixels

TEMPLATE = "a photo of a {}."
PROXY = "dinov2s14-minilm-med"


def class_names(record: dict[str, Any], folder: Path) -> dict[str, str]:
    """Class folder -> class name, in label order, of the classes that have test images."""
    classes = sorted(record["classes"].items(), key=lambda item: item[1]["label"])
    return {key: value["classname"] for key, value in classes if (folder / key).is_dir()}


def zero_shot(backbone: Backbone, folder: Path, names: dict[str, str], *, batch: int = 32) -> Any:
    """Predicted and true class of every image below `folder`, in sorted order."""
    texts = backbone.encode_texts([TEMPLATE.format(name) for name in names.values()])
    files = [(path, label) for label, key in enumerate(names) for path in _files(folder / key)]
    predicted: list[int] = []
    for start in range(0, len(files), batch):
        images = [read_image(path) for path, _ in files[start : start + batch]]
        pixels = to_pixels(images, backbone.preprocessing)
        features = backbone.encode_images(pixels, patches=False).globals.cpu()
        predicted += (features @ texts.T).argmax(dim=1).tolist()
    return predicted, [label for _, label in files]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="*")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shared = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    manifest = json.loads((shared / "data" / "MANIFEST.json").read_text())["datasets"]
    device = torch.device("cpu")
    backbone = load_open_clip(shared / "backbones" / PROXY, name=PROXY, device=device)
    rows: dict[str, dict[str, float]] = {}
    for name in options.datasets or sorted(manifest):
        folder = shared / "data" / name / "test"
        start = time.perf_counter()
        names = class_names(manifest[name], folder)
        predicted, true = zero_shot(backbone, folder, names)
        right = sum(a == b for a, b in zip(predicted, true, strict=True))
        rows[name] = {
            "classes": len(names),
            "images": len(true),
            "accuracy": round(100 * right / len(true), 2),
            "seconds": round(time.perf_counter() - start, 1),
        }
    mean = round(sum(row["accuracy"] for row in rows.values()) / len(rows), 2)
    print(
        json.dumps({"backbone": PROXY, "digest": backbone.digest, "datasets": rows, "mean": mean})
    )
    print("\n| dataset | classes | images | accuracy (%) |\n|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['classes']} | {row['images']} | {row['accuracy']:.1f} |")
    print(f"| mean of {len(rows)} | | | {mean:.1f} |")


if __name__ == "__main__":
    main()
