"""Draw docs/pictures/overview.png: what ogkd does, from phantoms and the built-in model.

    python tools/make_overview_picture.py

It runs the same commands that the picture shows.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from PIL import Image

OUT = Path(__file__).parents[1] / "docs" / "pictures" / "overview.png"
KIND, STRANGER = "endoscopy", "cxr"
COLOURS = {"good": "#1a7f4b", "unsure": "#b26a00", "strange": "#a4262c"}


def ogkd(folder: Path, *words: str) -> str:
    """Run one command in the folder and return what it prints."""
    command = [sys.executable, "-m", "ogkd", *words]
    # 1: predict met a file that it could not read, which cannot happen here
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def decisions(folder: Path) -> list[dict[str, object]]:
    """Fit, calibrate and predict: one record per image, and its map in maps/."""
    ogkd(folder, "phantoms", KIND, "--out", "bowel", "--train", "16", "--val", "60", "--test", "12")
    ogkd(
        folder, "phantoms", STRANGER, "--out", "chest", "--train", "0", "--val", "0", "--test", "1"
    )
    ogkd(folder, "fit", "bowel", "--shots", "16", "--method", "fused", "--out", "model")
    ogkd(folder, "calibrate", "model", "bowel", "--split", "val")
    words = ["predict", "model", "bowel/test", "chest/test", "--max-risk", "0.2"]
    lines = ogkd(folder, *words, "--format", "jsonl", "--explain", "maps").splitlines()
    rows = [json.loads(line) for line in lines]
    maps = sorted((folder / "maps").glob("*.png"))
    return [row | {"map": file} for row, file in zip(rows, maps, strict=True)]


def choose(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """A confident one that is right, one to abstain on, and one unlike all that was learned."""

    def right(row: dict[str, object]) -> bool:
        return str(row["prediction"]).replace(" ", "_") == Path(str(row["path"])).parent.name

    known = [row for row in rows if str(row["path"]).startswith("bowel") and not row["unfamiliar"]]
    sure = [row for row in known if right(row) and not row["abstain"]]
    unsure = [row for row in known if row["abstain"] and len(row["set"]) in (2, 3)]
    strange = [row for row in rows if row["unfamiliar"] and str(row["path"]).startswith("chest")]
    best = min(sure, key=lambda row: abs(float(row["probability"]) - 0.95))
    closest = min(unsure, key=lambda row: float(row["probability"]))
    return [best, closest, strange[0]]


def card(figure: SubFigure, row: dict[str, object], folder: Path) -> None:
    """The image, its evidence map, the probabilities and the verdict."""
    ratios = (1, 1, 1.35, 1.25)
    box = {"left": 0.0, "right": 0.99, "top": 0.97, "bottom": 0.03}
    grid = figure.add_gridspec(1, 4, width_ratios=ratios, wspace=0.08, **box)
    picture, evidence, bars, words = (figure.add_subplot(cell) for cell in grid)
    picture.imshow(Image.open(folder / str(row["path"])).convert("RGB").resize((160, 160)))
    evidence.imshow(Image.open(Path(str(row["map"]))).convert("RGB").resize((160, 160)))
    draw_bars(bars, row)
    text, colour = verdict(row)
    words.text(0.06, 0.5, text, color=colour, fontsize=10, weight="bold", va="center")
    for axes in (picture, evidence, words):
        axes.set_axis_off()


def draw_bars(axes: Axes, row: dict[str, object]) -> None:
    """The four most probable classes; those of the set are dark."""
    probabilities = dict(row["probabilities"])
    top = sorted(probabilities, key=lambda name: -probabilities[name])[:4]
    chosen = set(row["set"] or ())
    for place, name in enumerate(top):
        colour = "#2b5c8a" if name in chosen else "#c3cdd8"
        axes.barh(-place, probabilities[name], color=colour, height=0.36)
        axes.text(0, -place + 0.27, name, fontsize=7.5, va="bottom")
        value = probabilities[name]
        axes.text(value + 0.02, -place, f"{value:.2f}", fontsize=7, va="center")
    axes.set(xlim=(0, 1.22), ylim=(-3.45, 0.85))
    axes.set_axis_off()


def verdict(row: dict[str, object]) -> tuple[str, str]:
    """What the three columns set, abstain and unfamiliar say together."""
    if row["unfamiliar"]:
        return "unlike everything\nit learned from", COLOURS["strange"]
    if row["abstain"]:
        return "abstains: refer\nto a specialist", COLOURS["unsure"]
    return f"{row['prediction']}\np = {float(row['probability']):.2f}", COLOURS["good"]


def support(figure: SubFigure, folder: Path) -> None:
    """Some of the labelled images, one row for each class."""
    classes = sorted((folder / "bowel" / "train").iterdir())
    ratios = (1, 1, 1, 1, 2)
    box = {"left": 0.02, "right": 0.99, "top": 0.98, "bottom": 0.02}
    grid = figure.add_gridspec(
        len(classes), 5, width_ratios=ratios, wspace=0.05, hspace=0.05, **box
    )
    for place, name in enumerate(classes):
        for column, file in enumerate(sorted(name.iterdir())[:4]):
            axes = figure.add_subplot(grid[place, column])
            axes.imshow(Image.open(file).convert("RGB").resize((64, 64)))
            axes.set_axis_off()
        axes = figure.add_subplot(grid[place, 4])
        text = name.name.replace("_", "\n", 1).replace("_", " ")
        axes.text(0.06, 0.5, text, fontsize=7.5, va="center")
        axes.set_axis_off()


def main() -> None:
    """Run the commands and put the picture together."""
    mpl.use("agg")
    mpl.rcParams["font.family"] = "DejaVu Sans"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        chosen = choose(decisions(folder))
        figure = plt.figure(figsize=(10.4, 4.2), facecolor="white")
        top, below = figure.subfigures(2, 1, height_ratios=(0.17, 1))
        mono = {"family": "DejaVu Sans Mono", "fontsize": 8.5, "va": "center"}
        small = {"fontsize": 9, "color": "#555", "va": "center"}
        top.text(0.01, 0.68, "$ ogkd fit bowel --shots 16 --method fused --out model", **mono)
        top.text(0.01, 0.22, "a few labelled images per class (phantoms)", **small)
        top.text(0.43, 0.68, "$ ogkd predict model new/ --max-risk 0.2 --explain maps", **mono)
        top.text(
            0.43,
            0.22,
            "new images: evidence, probabilities, plausible classes (dark), decision",
            **small,
        )
        left, right = below.subfigures(1, 2, width_ratios=(0.42, 0.58))
        support(left, folder)
        for part, row in zip(right.subfigures(3, 1), chosen, strict=True):
            card(part, row, folder)
        OUT.parent.mkdir(exist_ok=True)
        figure.savefig(OUT, dpi=120)
    with Image.open(OUT) as picture:
        picture.convert("RGB").quantize(200, dither=Image.Dither.FLOYDSTEINBERG).save(
            OUT, optimize=True
        )
    print(f"{OUT.name}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
