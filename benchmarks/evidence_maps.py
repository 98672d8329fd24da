"""Do evidence maps mark what the model uses? Deletion, insertion, pointing at phantoms' lesions.

    python benchmarks/evidence_maps.py phantoms [--images 8]
    python benchmarks/evidence_maps.py DATA BACKBONE [--images 8]

Maps: `parts` (what each patch wrote into the class token, of the last blocks or of all), `patches`
(the head applied to patch features, as `ogkd explain` does), `gradient` (input times gradient of
the logit), random.
Deletion: patches are replaced by the image's mean colour, the highest first; insertion is the
reverse. The number is the mean, over shares of patches, of the logit's lead over the mean of the
other classes, between 0 (all deleted) and 1 (the whole image). A map is good if deletion is low
and insertion high. Pointing: how often the highest patch is on the lesion.
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
from ogkd.backbones.token_parts import split_feature
from ogkd.datasets.phantoms import PHANTOMS, render, write_folder
from ogkd.datasets.read import read_manifest
from ogkd.features.encode import encode_crops
from ogkd.images import read_image
from ogkd.images.transforms import center_crop, normalise
from ogkd.model.classifier import Classifier
from ogkd.model.explain import patch_evidence

SHARES = np.linspace(0, 1, 11)


def lead(classifier: Classifier, crops: list[NDArray[np.uint8]], label: int) -> NDArray[np.float32]:
    """The logit of a class minus the mean of the others, [N]."""
    features = encode_crops(classifier.backbone, crops, patches=False).globals
    logits = classifier.logits(features)
    others = (logits.sum(axis=1) - logits[:, label]) / (logits.shape[1] - 1)
    return logits[:, label] - others


def contrast(classifier: Classifier, label: int) -> torch.Tensor:
    """The weights [d] whose product with a feature is the lead, up to a constant."""
    W = classifier.head.W
    return W[label] - (W.sum(0) - W[label]) / (len(W) - 1)


def maps(
    classifier: Classifier, crop: NDArray[np.uint8], label: int, rng: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    backbone = classifier.backbone
    grid = backbone.patch_grid
    pixels = normalise([crop], backbone.preprocessing)
    parts = split_feature(backbone, pixels)
    w = contrast(classifier, label)
    by_block = (parts.patches[0] @ w).numpy()  # [L, P]
    patches = backbone.encode_images(pixels).patches
    similar = patch_evidence(classifier.head.logits(patches[0])[None], torch.tensor([label]))[0]
    found = {
        "random": rng.normal(size=grid),
        "patches": similar.numpy().reshape(grid),
        "parts, all blocks": by_block.sum(0).reshape(grid),
        "parts, last half": by_block[len(by_block) // 2 :].sum(0).reshape(grid),
        "parts, last 2": by_block[-2:].sum(0).reshape(grid),
        "gradient": gradient(classifier, pixels, w).reshape(grid),
    }
    found["parts, last half, smoothed"] = gaussian_filter(found["parts, last half"], 1.0)
    found["patches, smoothed"] = gaussian_filter(found["patches"], 1.0)
    return found


def gradient(classifier: Classifier, pixels: torch.Tensor, w: torch.Tensor) -> NDArray[np.float32]:
    """Input times gradient of the lead, summed over each patch."""
    backbone = classifier.backbone
    image = pixels.clone().requires_grad_(True)
    with torch.enable_grad():
        feature, _ = backbone._encode_pixels(image, patches=False)
        (torch.nn.functional.normalize(feature, dim=-1)[0] @ w).backward()
    each = (image.grad * image)[0].sum(0).detach()
    rows, columns = backbone.patch_grid
    side = each.shape[0] // rows
    return each.unflatten(0, (rows, side)).unflatten(2, (columns, side)).sum((1, 3)).numpy()


def curves(classifier, crop, label, grid):
    """Means of the deletion and the insertion curve."""
    rows, columns = grid.shape
    side = crop.shape[0] // rows
    mean = crop.reshape(-1, 3).mean(0).astype(np.uint8)
    order = np.argsort(-grid, axis=None, kind="stable")
    crops = []
    for share in SHARES:
        for keep in (False, True):
            mask = np.zeros(rows * columns, bool)
            mask[order[: round(share * len(order))]] = True
            gone = mask if not keep else ~mask
            big = np.kron(gone.reshape(rows, columns), np.ones((side, side), bool))
            changed = crop.copy()
            changed[: big.shape[0], : big.shape[1]][big] = mean
            crops.append(changed)
    values = lead(classifier, crops, label)
    deleted, inserted = values[0::2], values[1::2]
    whole, empty = deleted[0], inserted[0]
    if abs(whole - empty) < 1e-3:
        return np.nan, np.nan
    scale = whole - empty
    return ((deleted - empty) / scale).mean(), ((inserted - empty) / scale).mean()


def report(rows: dict[str, list[tuple[float, float, float]]]) -> None:
    print("| map | deletion (low) | insertion (high) | points at the lesion, % |")
    for name, values in rows.items():
        d, i = np.nanmedian([value[:2] for value in values], axis=0)
        p = np.nanmean([value[2] for value in values])
        print(f"| {name} | {d:.2f} | {i:.2f} | {100 * p:.0f} |")
    print(f"{len(next(iter(rows.values())))} images")


def run_phantoms(count: int) -> None:
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    for name in ("us-breast", "ct-kidney", "mri-brain", "derm"):
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


def run_data(folder: Path, backbone: str, count: int) -> None:
    rng = np.random.default_rng(0)
    rows: dict[str, list[tuple[float, float, float]]] = {}
    classifier = ogkd.fit(folder, method="fused", backbone=backbone, shots=16)
    test = read_manifest(folder).part("test")
    for item in rng.permutation(np.array(test, object))[:count]:
        crop = center_crop(read_image(item.image), classifier.backbone.preprocessing)
        label = int(
            classifier.logits(encode_crops(classifier.backbone, [crop], patches=False).globals)[
                0
            ].argmax()
        )
        for kind, grid in maps(classifier, crop, label, rng).items():
            rows.setdefault(kind, []).append((*curves(classifier, crop, label, grid), np.nan))
    report(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("backbone", nargs="?")
    parser.add_argument("--images", type=int, default=8)
    options = parser.parse_args()
    if options.data == "phantoms":
        run_phantoms(options.images)
    else:
        run_data(Path(options.data), options.backbone, options.images)


if __name__ == "__main__":
    main()
