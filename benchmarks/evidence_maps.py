"""Do evidence maps mark what the model uses? Deletion, insertion, pointing at phantoms' lesions.

    python benchmarks/evidence_maps.py phantoms [--images 8]
    python benchmarks/evidence_maps.py DATA BACKBONE [--images 8] [--quick]
    python benchmarks/evidence_maps.py DATA BACKBONE --check [--images 8]

DATA is a folder of datasets, or one. Maps: `parts` (what each patch contributes to the lead of the
class, adding up), `gradient` (input times gradient of the lead), `attention` (of the last block,
weighted by its gradient), random.
Deletion: patches are blurred, the highest first; insertion starts from the blurred image. The
number is the mean, over shares of patches, of the logit's lead over the mean of the other classes,
between 0 (all blurred) and 1 (the whole image). A map is good if deletion is low and insertion
high. `--check`: how often the page's own check lets a map pass. Pointing: how often the highest
patch is on the lesion. Intervals: bootstrap over images of the difference from random.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

import ogkd
from ogkd.backbones import token_parts
from ogkd.backbones.base import ImageFeatures
from ogkd.backbones.token_parts import split_products
from ogkd.data.phantoms import PHANTOMS, render, write_folder
from ogkd.data.read import read_dataset
from ogkd.features.encode import encode_crops
from ogkd.images import read_image
from ogkd.images.transforms import center_crop, normalise
from ogkd.model.classifier import Classifier
from ogkd.model.explain import check_evidence, evidence_map

SHARES = np.linspace(0, 1, 9)  # of patches; --quick: 5 of them
BLUR = 0.08  # of the side, the width of the Gaussian in place of hidden patches
SMOOTH = 1.0  # patches


def lead(classifier: Classifier, crops: list[NDArray[np.uint8]], label: int) -> NDArray[np.float32]:
    """The logit of a class minus the mean of the others, [N]."""
    features = encode_crops(classifier.backbone, crops, patches=False, deep=classifier.deep)
    logits = classifier.logits(features.rows)
    others = (logits.sum(axis=1) - logits[:, label]) / (logits.shape[1] - 1)
    return logits[:, label] - others


def contrast(W: torch.Tensor, label: int) -> torch.Tensor:
    """The weights [D] whose product with a feature is the lead, up to a constant."""
    return W[label] - (W.sum(0) - W[label]) / (len(W) - 1)


def maps(
    classifier: Classifier, crop: NDArray[np.uint8], label: int, rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    backbone, head = classifier.backbone, classifier.head
    grid = backbone.patch_grid
    pixels = normalise([crop], backbone.preprocessing)
    w = contrast(head.W, label)
    parts = split_products(backbone, pixels, w[None]).patches[0, :, 0].numpy()
    small = w[: backbone.embed_dim]
    found = {
        "random": rng.normal(size=grid),
        "parts": parts.reshape(grid),
        "gradient": gradient(classifier, pixels, w).reshape(grid),
        "attention": attention(backbone, pixels, small).reshape(grid),
    }
    for name in ("parts", "gradient"):
        found[f"{name}, smoothed"] = gaussian_filter(found[name], SMOOTH)
    return found


def gradient(classifier: Classifier, pixels: torch.Tensor, w: torch.Tensor) -> NDArray[np.float32]:
    """Input times gradient of the lead, summed over each patch."""
    backbone = classifier.backbone
    image = pixels.clone().requires_grad_(True)
    with torch.enable_grad():
        found = backbone.model.image(image, patches=False, deep=classifier.deep)
        rows = ImageFeatures(torch.nn.functional.normalize(found[0], dim=-1), deep=found[2]).rows
        (rows[0] @ w).backward()
    each = (image.grad * image)[0].sum(0).detach()
    rows, columns = backbone.patch_grid
    side = each.shape[0] // rows
    each = each[: rows * side, : columns * side]
    return each.unflatten(0, (rows, side)).unflatten(2, (columns, side)).sum((1, 3)).numpy()


def attention(backbone, pixels: torch.Tensor, w: torch.Tensor) -> NDArray[np.float32]:
    """Attention of the class token in the last block times its gradient where above 0."""
    tower = backbone.model.image
    tokens = tower.first_tokens(pixels)
    for block in tower.blocks[:-1]:
        tokens = block(tokens)
    kept, plain = {}, token_parts.attention_weights

    def remembering(query, key):
        kept["A"] = plain(query, key).detach().requires_grad_(True)
        return kept["A"]

    last = tower.blocks[-1]
    with torch.enable_grad():
        token_parts.attention_weights = remembering
        written = token_parts.read_tokens(last, tokens).sum(1)
        token_parts.attention_weights = plain
        middle = tokens[:, 0] + written + last.ls1(last.proj.bias)
        after = last.add_mlp(middle)
        torch.testing.assert_close(after, last(tokens)[:, 0], atol=1e-3, rtol=1e-3)
        feature = torch.nn.functional.normalize(
            tower.head(tower.late_norm(tower.norm(after))), dim=-1
        )
        (feature[0] @ w).backward()
    A = kept["A"]
    return (A * A.grad).clamp_min(0).detach()[0, :, 0, 1:].sum(0).numpy()


def curves(classifier, crop, label, grid):
    """Means of the deletion and the insertion curve."""
    rows, columns = grid.shape
    side = crop.shape[0] // rows
    soft = gaussian_filter(crop.astype(np.float32), (BLUR * len(crop), BLUR * len(crop), 0))
    soft = soft.round().astype(np.uint8)
    order = np.argsort(-grid, axis=None, kind="stable")
    crops = []
    for share in SHARES:
        for keep in (False, True):
            mask = np.zeros(rows * columns, bool)
            mask[order[: round(share * len(order))]] = True
            gone = mask if not keep else ~mask
            big = np.kron(gone.reshape(rows, columns), np.ones((side, side), bool))
            changed = crop.copy()
            part = (slice(big.shape[0]), slice(big.shape[1]))
            changed[part][big] = soft[part][big]
            crops.append(changed)
    values = lead(classifier, crops, label)
    deleted, inserted = values[0::2], values[1::2]
    whole, empty = deleted[0], inserted[0]
    if abs(whole - empty) < 1e-3:
        return np.nan, np.nan
    scale = whole - empty
    return ((deleted - empty) / scale).mean(), ((inserted - empty) / scale).mean()


def report(rows: dict[str, list[tuple[float, float, float]]]) -> None:
    print("| map | deletion (low) | against random | insertion (high) | against random | points |")
    base = np.array(rows["random"])
    rng = np.random.default_rng(0)
    for name, values in rows.items():
        found = np.array(values)
        cells = []
        for column in (0, 1):
            gap = (found - base)[:, column]
            gap = gap[np.isfinite(gap)]
            some = [np.median(rng.choice(gap, len(gap))) for _ in range(1000)] if len(gap) else [0]
            low, high = np.quantile(some, [0.025, 0.975])
            cells += [f"{np.nanmedian(found[:, column]):.2f}", f"{low:+.2f} to {high:+.2f}"]
        print(f"| {name} | {' | '.join(cells)} | {100 * np.nanmean(found[:, 2]):.0f} |")
    print(f"{len(base)} images", flush=True)


def run_phantoms(count: int) -> None:
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for name in ("us-breast", "endoscopy"):
        with TemporaryDirectory() as folder:
            data = write_folder(name, Path(folder, "d"), splits={"train": 16}, size=160)
            classifier = ogkd.fit(data, method="fused", backbone="builtin")
        prep, shape = classifier.backbone.preprocessing, classifier.backbone.patch_grid
        for label in range(len(PHANTOMS[name].class_names)):
            for index in range(count):
                made = render(name, label, seed=5, index=index, size=160, stream=9)
                mask = np.repeat(made.mask[:, :, None], 3, axis=2)
                if not made.mask.any():
                    continue
                crop = center_crop(made.image, prep)
                lesion = center_crop(mask, prep)[:, :, 0] > 127
                side = crop.shape[0] // shape[0]
                inside = lesion.reshape(shape[0], side, shape[1], side).mean((1, 3)) > 0.25
                if not inside.any() or inside.mean() > 0.5:
                    continue
                for kind, grid in maps(classifier, crop, label, rng).items():
                    hit = float(inside.flat[int(grid.argmax())])
                    rows.setdefault(kind, []).append((*curves(classifier, crop, label, grid), hit))
                rows.setdefault("(share of patches on the lesion)", []).append(
                    (np.nan, np.nan, float(inside.mean()))
                )
        print(name, flush=True)
    report(rows)


def run_data(folders: list[Path], backbone: str, count: int) -> None:
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for folder in folders:
        classifier = ogkd.fit(folder, method="fused", backbone=backbone, shots=16)
        test = read_dataset(folder).part("test")
        for case in rng.permutation(np.array(test, object))[:count]:
            crop = center_crop(read_image(case.image), classifier.backbone.preprocessing)
            seen = encode_crops(classifier.backbone, [crop], patches=False, deep=classifier.deep)
            label = int(classifier.logits(seen.rows)[0].argmax())
            for kind, grid in maps(classifier, crop, label, rng).items():
                rows.setdefault(kind, []).append((*curves(classifier, crop, label, grid), np.nan))
        print(folder.name)
        report(rows)


def run_check(folders: list[Path], backbone: str, count: int) -> None:
    """How often marked places count more than random ones, and how much of the lead they are."""
    pairs: list[tuple[float, float]] = []
    for folder in folders:
        classifier = ogkd.fit(folder, method="fused", backbone=backbone, shots=16)
        images = [case.image for case in read_dataset(folder).part("test")]
        chosen = np.random.default_rng(2).permutation(len(images))[:count]
        for decision in classifier.decide([images[row] for row in chosen], crops=True):
            evidence = evidence_map(classifier, decision)
            check = None if evidence is None else check_evidence(classifier, evidence)
            if check is not None:
                pairs.append((check.marked, check.random))
        passed = sum(marked > random for marked, random in pairs)
        lost = np.median(pairs, axis=0)
        print(f"up to {folder.name}: {passed} of {len(pairs)}, lost {lost.round(2)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("backbone", nargs="?")
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--check", action="store_true", help="try the page's check instead")
    parser.add_argument("--quick", action="store_true", help="fewer points of each curve")
    options = parser.parse_args()
    run = run_data
    if options.check:
        run = run_check
    if options.quick:
        globals()["SHARES"] = SHARES[::2]
    if options.data == "phantoms":
        run_phantoms(options.images)
    else:
        data = Path(options.data)
        one = (data / "train").is_dir()
        folders = [data] if one else sorted(path for path in data.iterdir() if path.is_dir())
        run(folders, options.backbone, options.images)


if __name__ == "__main__":
    main()
