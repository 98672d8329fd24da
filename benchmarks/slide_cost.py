"""What a whole slide costs: images/s, memory, disk, a killed run; docs/evidence/cases.md.

    python benchmarks/slide_cost.py make runs/slide.tiff --tiles 20000
    python benchmarks/slide_cost.py predict runs/slide.tiff --tiles 2000 10000 20000
    python benchmarks/slide_cost.py store runs/slide.tiff --tiles 20000     # kills it half-way
    python benchmarks/slide_cost.py predict runs/slide.tiff --tiles 1500 --backbone FOLDER

`make` writes a pyramid of compressed tiles of 256 pixels, histology phantoms in random order.
`predict` runs `ogkd predict` with a model of two small slides, `store` what `ogkd fit` does first:
the features of every tile, into a store of its own. Both measure another process: the processor
time of all of its threads, and its resident memory ten times a second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from ogkd.images.slide import tiles

SIDE, KINDS = 256, 64  # pixels of a tile; different tiles
ENCODE = """
import sys
from pathlib import Path
from ogkd.backbones import load_backbone
from ogkd.features.store import FeatureStore
from ogkd.images import ImageRef
from ogkd.images.slices import SlicesRule, parts_of
backbone = load_backbone(sys.argv[2])
tiles = parts_of(ImageRef(Path(sys.argv[1])), SlicesRule.parse(sys.argv[3]))
store = FeatureStore(backbone, root=Path(sys.argv[4]))
store.get(tiles, deep=bool(backbone.deep_parts))
print(store.encoded)
"""


def make(path: Path, least: int) -> None:
    """A slide of at least that many tiles, most of them tissue."""
    import tifffile

    from ogkd.data.phantoms import phantom, render

    classes = len(phantom("histology").class_names)
    drawn = [
        render("histology", n % classes, seed=1, index=n, size=SIDE).image for n in range(KINDS)
    ]
    across = int(np.ceil(least**0.5 / 16)) * 16  # so that levels of a fourth are whole tiles, too
    down = -(-least // across // 16) * 16
    chosen = np.random.default_rng(1).integers(KINDS, size=(down, across))
    whole = [zlib.compress(pixels) for pixels in drawn]
    small = {step: [pixels[::step, ::step] for pixels in drawn] for step in (4, 16)}

    def level(step: int) -> Iterator[bytes]:
        for top in range(0, down, step):
            for left in range(0, across, step):
                block = chosen[top : top + step, left : left + step]
                if step == 1:
                    yield whole[block[0, 0]]
                else:
                    rows = [np.hstack([small[step][n] for n in row]) for row in block]
                    yield zlib.compress(np.vstack(rows))

    how: dict[str, Any] = {"tile": (SIDE, SIDE), "photometric": "rgb", "compression": "zlib"}
    path.parent.mkdir(parents=True, exist_ok=True)
    with tifffile.TiffWriter(path, bigtiff=True) as file:
        for step in (1, 4, 16):
            shape = (down * SIDE // step, across * SIDE // step, 3)
            kind = {} if step == 1 else {"subfiletype": 1}
            file.write(level(step), shape=shape, dtype="uint8", **how, **kind)
    print(json.dumps({"tiles": down * across, "MiB": path.stat().st_size / 2**20}))


def watched(command: list[str], kill_at: tuple[Path, int] | None = None) -> dict[str, Any]:
    """Run a command; with `kill_at`, kill it when a folder has that many bytes."""
    began = time.perf_counter()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    process, seen, seconds = psutil.Process(run.pid), [], 0.0
    while run.poll() is None:
        try:
            seen.append(process.memory_info().rss / 2**20)
            seconds = sum(process.cpu_times()[:2])
        except psutil.Error:
            break
        if kill_at is not None and disk(kill_at[0]) >= kill_at[1]:
            run.send_signal(signal.SIGKILL)
            break
        time.sleep(0.1)
    out, _ = run.communicate()
    if run.returncode and kill_at is None:
        raise SystemExit(f"{command} ended with {run.returncode}")
    print(out.decode()[-300:], file=sys.stderr)
    # The first and the last tenth are the start and the end of the program.
    middle = [round(seen[int(len(seen) * part)]) for part in (0.1, 0.5, 0.9)]
    return {
        "seconds of processor": round(seconds, 1),
        "seconds": round(time.perf_counter() - began, 1),
        "peak MiB": round(max(seen)),
        "MiB after 10, 50 and 90 % of the time": middle,
    }


def disk(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*.safetensors"))


def model_of(folder: Path, backbone: str) -> Path:
    """A model of slides, fitted on two small ones of each of two classes."""
    import tifffile

    from ogkd import fit
    from ogkd.data.phantoms import phantom, render

    for label, name in enumerate(phantom("histology").class_names[:2]):
        for index in range(2):
            tiles = [
                render("histology", label, seed=2 + index, index=n, size=SIDE).image
                for n in range(4)
            ]
            whole = np.vstack([np.hstack(tiles[:2]), np.hstack(tiles[2:])])
            place = folder / "data" / name / f"{index}.tiff"
            place.parent.mkdir(parents=True, exist_ok=True)
            with tifffile.TiffWriter(place) as file:
                file.write(whole, tile=(SIDE, SIDE), photometric="rgb")
                small = np.ascontiguousarray(whole[::2, ::2])
                file.write(small, tile=(SIDE, SIDE), photometric="rgb", subfiletype=1)
    fit(folder / "data", slices=f"side={SIDE},all", backbone=backbone, out=folder / "model")
    return folder / "model"


def predicted(model: Path, slide: Path, count: int) -> dict[str, Any]:
    ogkd = [sys.executable, "-m", "ogkd", "predict", str(model), str(slide)]
    rule = f"side={SIDE},N={count}"
    return watched([*ogkd, "--slices", rule, "--out", str(model.with_name("answers.csv"))])


def stored(root: Path, slide: Path, backbone: str, count: int, half: int) -> dict[str, Any]:
    """Killed when half of it is on the disk, and then run to the end."""
    root.mkdir()
    rule = f"side={SIDE},N={count}"
    encode = [sys.executable, "-c", ENCODE, str(slide), backbone, rule, str(root)]
    found: dict[str, Any] = {}
    if half:
        first = watched(encode, (root, half))
        found = {f"killed: {name}": value for name, value in first.items()}
        found["killed: MiB kept"] = round(disk(root) / 2**20, 1)
    found |= watched(encode)
    found |= {"MiB on disk": round(disk(root) / 2**20, 1), "kB a tile": disk(root) / 1000 / count}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["make", "predict", "store"])
    parser.add_argument("slide", type=Path)
    parser.add_argument("--tiles", type=int, nargs="+", default=[20000])
    parser.add_argument("--backbone", default="builtin")
    options = parser.parse_args()
    if options.what == "make":
        make(options.slide, options.tiles[0])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder, start, each = Path(temporary), 0.0, 0.0
        model = model_of(folder, options.backbone) if options.what == "predict" else None
        with_tissue = len(tiles(options.slide, magnification=1, side=SIDE))
        for wanted in [1, *options.tiles]:  # one tile: the start of the program
            count = min(wanted, with_tissue)
            if model is not None:
                found = predicted(model, options.slide, count)
            else:
                half, root = int(each * count / 2), folder / f"store-{count}"
                found = stored(root, options.slide, options.backbone, count, half)
                each = 1000 * found["kB a tile"]
            if count == 1:
                start = found["seconds of processor"]
            else:
                spent = found["seconds of processor"] - start
                spent += found.get("killed: seconds of processor", start) - start
                found["images/s of processor"] = round(count / spent, 1)
            print(json.dumps({"tiles": count, **found}), flush=True)


if __name__ == "__main__":
    main()
