"""A whole run of OGKD from beginning to end, as a user runs it, and how its cost grows.

BiomedCLIP's architecture at full size with random weights, in a folder as a download would be;
random images as PNG files; 50 prompts per class. Each command is a process of its own: processor
seconds of one thread, and its peak memory.

    python benchmarks/whole_run.py --classes 8 --out runs/whole.json      # ours: fit, predict
    python benchmarks/whole_run.py --plain --classes 4 --shots 1 --prompts 10 --epochs 12 \
        --test-images 20 --out runs/plain.json
    python benchmarks/whole_run.py --growth classes shots bank images --out runs/growth.json \
        --backbone ../shared/backbones/dinov2s14-minilm-med

`--plain` runs the plain loop (plain_loop.py) to the end on the same images, in batches of 4: 100
epochs at 16 shots of 8 classes would take half a day of one core. Beside what it took stands what
would have been estimated from start-up, one step and one batch of test images. `--growth` times 2
steps of `auto` on random features, and the store of image features on disk.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.functional import normalize

from biomedclip_size import make_backbone, write_folder
from ogkd.backbones import load_backbone
from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.features.encode import whole_image
from ogkd.features.store import FeatureStore, text_features
from ogkd.features.views import FixedViews
from ogkd.files import write_json
from ogkd.images import ImageRef
from ogkd.images.transforms import normalise
from ogkd.methods import Support, TextSide, make_method
from plain_loop import PlainLoop
from speed import BATCH, CONFIG, EPOCHS, NAMES, clock, make_bank

Say = Callable[[dict[str, Any]], None]


def write_all(place: Path, classes: int, shots: int, prompts: int, test_images: int) -> None:
    """The backbone, the images and the texts of a run."""
    write_folder(make_backbone(), place / "backbone")
    write_images(place / "data", classes, shots, test_images)
    texts = dict(zip(NAMES, make_bank(classes, prompts), strict=False))
    (place / "texts.json").write_text(json.dumps(texts))


def write_images(place: Path, classes: int, shots: int, test_images: int) -> None:
    """{train,test}/class/*.png: noise around a colour of the class."""
    rng = np.random.default_rng(0)
    colours = rng.integers(40, 200, (classes, 3))
    for split, count in (("train", shots), ("test", test_images // classes)):
        for name, colour in zip(NAMES[:classes], colours, strict=True):
            folder = place / split / name.replace(" ", "_")
            folder.mkdir(parents=True)
            for number in range(count):
                small = colour + rng.integers(-40, 40, (32, 32, 3))
                Image.fromarray(small.astype(np.uint8)).resize((384, 320)).save(
                    folder / f"{number}.png"
                )


def run(command: list[str], threads: int) -> tuple[float, float]:
    """Processor seconds and peak resident GiB of a command that must succeed."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen([sys.executable, *command], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024**2


def whole(place: Path, classes: int, shots: int, threads: int, say: Say) -> None:
    """Fit and predict from the command line; then fit other images with the same texts."""
    fit = ["-m", "ogkd", "fit", str(place / "data"), "--backbone", str(place / "backbone")]
    fit += ["--prompts", str(place / "texts.json"), "--method", "ogkd", "--shots", str(shots)]
    fit += ["--preset", "auto"]
    found: dict[str, Any] = {"classes": classes, "shots": shots, "s": {}, "peak GiB": {}}
    commands = {
        "fit": [*fit, "--out", str(place / "model")],
        "predict": ["-m", "ogkd", "predict", str(place / "model"), str(place / "data" / "test")],
        "fit again, other seed": [*fit, "--seed", "2", "--out", str(place / "other")],
    }
    commands["predict"] += ["--out", str(place / "answers.csv")]
    for name, command in commands.items():
        found["s"][name], found["peak GiB"][name] = run(command, threads)
        say(found)
    log = (place / "model" / "training.jsonl").read_text().splitlines()
    found["steps"] = len(log)
    found["whole run s"] = found["s"]["fit"] + found["s"]["predict"]
    say(found)


def plain(place: Path, classes: int, shots: int, prompts: int, epochs: int, say: Say) -> None:
    """The plain loop on the same images, all of it."""
    backbone = load_backbone(place / "backbone")
    assert isinstance(backbone, TowersBackbone)
    loop = PlainLoop(backbone, NAMES[:classes], make_bank(classes, prompts), CONFIG)
    found: dict[str, Any] = {"classes": classes, "shots": shots, "s": {}}
    found["s"]["start-up"] = clock(loop.start_up)
    say(found)

    def pixels(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        images = [
            (ImageRef.of(file), label)
            for label, name in enumerate(NAMES[:classes])
            for file in sorted((place / "data" / split / name.replace(" ", "_")).iterdir())
        ]
        prep = backbone.preprocessing
        crops = [whole_image(image, prep) for image, _ in images]
        return normalise(crops, prep), torch.tensor([label for _, label in images])

    train, labels = pixels("train")
    taken: list[float] = []
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in order.split(BATCH):
            some = train[rows], labels[rows]
            taken += [clock(lambda some=some: loop.step(*some))]
        found["s"]["training"], found["steps"] = sum(taken), len(taken)
        say(found)
    test, _ = pixels("test")
    batches = [clock(lambda some=some: loop.test_batch(some)) for some in test.chunk(2)]
    found["s"]["test"] = sum(batches)
    found["whole run s"] = sum(found["s"].values())
    second = taken[1]  # the first warms up
    parts = found["s"]["start-up"], second * len(taken), batches[0] * len(batches)
    found["put together s"] = sum(parts)
    found["peak GiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    say(found)


def growth(kinds: Sequence[str], most_images: int, folder: Path | None, say: Say) -> None:
    """Seconds of a step of `auto` against classes and shots, of a bank, and of the store."""
    found: dict[str, Any] = {kind: {} for kind in kinds}
    if set(kinds) != {"images"}:
        _towers_growth(found, load_backbone(folder) if folder else make_backbone(), say)
    if "images" in kinds:
        found["disk, bytes per image"], found["images, found again"] = {}, {}
        for count in (n for n in (100, 1_000, 10_000, 100_000) if n <= most_images):
            first, again, size = _stored(count)
            found["images"][count], found["images, found again"][count] = first, again
            found["disk, bytes per image"][count] = size / count
            say(found)
    for name in set(found) - {"disk, bytes per image"}:
        sizes, seconds = np.array(list(found[name])), np.array(list(found[name].values()))
        slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
        found[name]["slope of log against log"] = float(slope)
    say(found)


def _towers_growth(found: dict[str, Any], backbone: Backbone, say: Say) -> None:

    def train(classes: int, shots: int) -> float:
        names = [f"{NAMES[row % 8]} {'abcdefgh'[row // 8]}" for row in range(classes)]
        bank = tuple(tuple(rows) for rows in make_bank(classes, 2))
        text, support = TextSide(backbone, tuple(names), bank), _support(backbone, classes, shots)
        method = make_method("ogkd", preset="auto", settings={"train.epochs": 2})
        _ = text.bank
        return clock(lambda: method.fit(support, text, seed=1)) / 2

    train(2, 1)  # lays out the weights
    if "classes" in found:
        for classes in (4, 8, 16, 32, 64):
            found["classes"][classes] = train(classes, 4)
    say(found)
    if "shots" in found:
        for shots in (1, 4, 16, 64, 256):
            found["shots"][shots] = train(4, shots)
    say(found)
    for count in (10, 20, 50, 100, 200) if "bank" in found else ():  # of each of two classes
        texts = [text for rows in make_bank(2, count) for text in rows]
        with tempfile.TemporaryDirectory() as place:
            found["bank"][count] = clock(
                lambda t=texts, p=place: text_features(backbone, t, root=Path(p))
            )
    say(found)


def _support(backbone: Backbone, classes: int, shots: int) -> Support:
    """Random features that cluster by class, as the store would give them."""
    generator = torch.Generator().manual_seed(1)
    d, grid = backbone.embed_dim, backbone.patch_grid[0] * backbone.patch_grid[1]
    labels = torch.arange(classes).repeat_interleave(shots)
    centres = torch.randn(classes, d, generator=generator)
    features = normalize(
        centres[labels] + 2 * torch.randn(len(labels), d, generator=generator), dim=-1
    )
    local = torch.empty(len(labels), 1, grid, d, dtype=torch.float16)
    for row, own in enumerate(features):
        noise = torch.randn(grid, d, generator=generator)
        local[row, 0] = normalize(noise + own * d**0.5, dim=-1).half()
    return Support(FixedViews(ImageFeatures(features.unsqueeze(1), local)), labels)


class _NoTower:
    """A backbone that knows its features at once, so that only the store is timed."""

    digest, device, embed_dim, patch_grid = "none", torch.device("cpu"), 512, (14, 14)
    deep_parts: tuple[int, ...] = ()

    def __init__(self) -> None:
        from ogkd.images.transforms import Preprocessing

        self.preprocessing = Preprocessing(size=4)

    def encode_images(self, pixels: torch.Tensor, **_: Any) -> ImageFeatures:
        return ImageFeatures(torch.rand(len(pixels), self.embed_dim))


def _stored(count: int) -> tuple[float, float, int]:
    """Seconds of storing and of finding the global features of so many images, and bytes."""
    with tempfile.TemporaryDirectory() as place:
        images = Path(place, "images")
        images.mkdir()
        for number in range(count):
            rows = np.frombuffer((number + 1).to_bytes(48, "big"), dtype=np.uint8)
            Image.fromarray(rows.reshape(4, 4, 3)).save(images / f"{number}.bmp")
        paths = sorted(images.iterdir())

        def get() -> None:
            backbone: Any = _NoTower()
            FeatureStore(backbone, root=Path(place, "store")).get(paths)

        first, again = clock(get), clock(get)
        size = sum(file.stat().st_size for file in Path(place, "store").rglob("*.safetensors"))
        return first, again, size


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--classes", type=int, default=8)
    parser.add_argument("--shots", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=50, help="for each class")
    parser.add_argument("--test-images", type=int, default=200)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of --plain")
    parser.add_argument("--growth", nargs="+", choices=["classes", "shots", "bank", "images"])
    parser.add_argument("--backbone", type=Path, help="of --growth; BiomedCLIP's size if not given")
    parser.add_argument("--most-images", type=int, default=100_000, help="of --growth images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    classes, shots, prompts = arguments.classes, arguments.shots, arguments.prompts

    def say(result: dict[str, Any]) -> None:
        if arguments.out:
            write_json(arguments.out, result)
        print(json.dumps(result), flush=True)

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        os.environ["OGKD_CACHE"] = str(place / "cache")  # nothing is known yet
        if arguments.growth:
            growth(arguments.growth, arguments.most_images, arguments.backbone, say)
            return
        # In a process of its own: a command's peak memory begins with that of its parent.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            pool.apply(write_all, (place, classes, shots, prompts, arguments.test_images))
        if arguments.plain:
            plain(place, classes, shots, prompts, arguments.epochs, say)
        else:
            whole(place, classes, shots, arguments.threads, say)


if __name__ == "__main__":
    main()
