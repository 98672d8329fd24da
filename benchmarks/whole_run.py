"""What a whole run of OGKD's `auto` takes: processor seconds of each part, and how they grow.

BiomedCLIP's architecture at full size with random weights, 16 shots, 50 prompts per class. The
bank is encoded, a context is trained on random features until it ends by itself, and the image
encoder is timed on `--images` of the 16 per class and 200 test images, and multiplied.

    python benchmarks/whole_run.py --classes 8 --out runs/whole.json
    python benchmarks/whole_run.py --growth --out runs/growth.json      # cost against sizes
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from biomedclip_size import make_backbone
from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.features.texts import text_features
from ogkd.features.views import FixedViews
from ogkd.files import write_json
from ogkd.methods import Support, TextSide, TrainingFolder, make_method
from speed import NAMES, make_bank, peak_gib

SHOTS, TEST_IMAGES = 16, 200


def clock(work: Callable[[], Any]) -> float:
    """Processor seconds of a piece of work."""
    began = time.process_time()
    work()
    return time.process_time() - began


def support_of(backbone: Backbone, classes: int, shots: int) -> Support:
    """Random features that cluster by class, as the store would give them."""
    generator = torch.Generator().manual_seed(1)
    d, grid = backbone.embed_dim, backbone.patch_grid[0] * backbone.patch_grid[1]
    labels = torch.arange(classes).repeat_interleave(shots)
    centres = torch.randn(classes, d, generator=generator)
    features = centres[labels] + 2 * torch.randn(len(labels), d, generator=generator)
    local = torch.randn(len(labels), grid, d, generator=generator) + features.unsqueeze(1)
    return Support(
        FixedViews(
            ImageFeatures(
                normalize(features, dim=-1).unsqueeze(1),
                normalize(local, dim=-1).half().unsqueeze(1),
            )
        ),
        labels,
    )


def text_of(backbone: Backbone, names: list[str], bank: list[list[str]]) -> TextSide:
    """The text side, of which nothing is encoded yet."""
    return TextSide(backbone, tuple(names), tuple(tuple(rows) for rows in bank))


def whole(classes: int, images: int, say: Callable[[dict[str, Any]], None]) -> None:
    """Every part at one number of classes; `say` gets what is known after each."""
    backbone, names, bank = make_backbone(), NAMES[:classes], make_bank(classes)
    text = text_of(backbone, names, bank)
    found: dict[str, Any] = {"classes": classes}
    ours = found["ours s"] = {"bank": clock(lambda: text.bank)}
    again = text_of(backbone, names, bank)
    found["bank a second time s"] = clock(lambda: again.bank)
    say(found)
    with tempfile.TemporaryDirectory() as place:
        steps: list[Any] = []
        folder = TrainingFolder(Path(place), "", steps.append)
        support, method = support_of(backbone, classes, SHOTS), make_method("ogkd", preset="auto")
        ours["training"] = clock(lambda: method.fit([support], text, seeds=[1], folder=folder))
    found["steps"], found["peak GiB, ours"] = len(steps), peak_gib()
    say(found)
    pixels = torch.randn(images, 3, 224, 224)
    for name, count in (("support images", SHOTS * classes), ("test images", TEST_IMAGES)):
        patches = name == "support images"
        seconds = clock(lambda p=patches: backbone.encode_images(pixels, patches=p))
        ours[name] = seconds * count / images
    found["whole s"] = sum(ours.values())
    say(found)


def growth(say: Callable[[dict[str, Any]], None]) -> None:
    """Seconds of 5 steps of `auto` against classes and shots, and of a bank against its size."""
    backbone = make_backbone()
    found: dict[str, Any] = {"classes": {}, "shots": {}, "bank": {}}

    def train(classes: int, shots: int) -> float:
        names = [f"{NAMES[row % 8]} {'abcdefgh'[row // 8]}" for row in range(classes)]
        text = text_of(backbone, names, make_bank(classes, 2))
        support = support_of(backbone, classes, shots)
        method = make_method("ogkd", preset="auto", settings={"train.epochs": 5})
        _ = text.bank
        return clock(lambda: method.fit([support], text, seeds=[1])) / 5

    train(2, 1)  # lays out the weights
    for classes in (4, 8, 16, 32, 64):
        found["classes"][classes] = train(classes, 4)
    for shots in (1, 4, 16, 64, 128):
        found["shots"][shots] = train(4, shots)
    for count in (10, 50, 200):  # prompts of each of two classes
        texts = [text for rows in make_bank(2, count) for text in rows]
        with tempfile.TemporaryDirectory() as place:
            found["bank"][count] = clock(
                lambda t=texts, p=place: text_features(backbone, t, root=Path(p))
            )
    for values in found.values():
        sizes, seconds = np.array(list(values)), np.array(list(values.values()))
        slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        values["slope of log against log"] = float(slope)
    say(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--images", type=int, default=200, help="that the encoder is timed on")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    os.environ["OGKD_CACHE"] = tempfile.mkdtemp()  # nothing is known yet

    def say(result: dict[str, Any]) -> None:
        if arguments.out:
            write_json(arguments.out, result)
        print(json.dumps(result, indent=2), flush=True)

    if arguments.growth:
        growth(say)
    else:
        whole(arguments.classes, arguments.images, say)


if __name__ == "__main__":
    main()
