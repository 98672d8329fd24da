"""Zero-shot accuracy of the shipped prompt banks on the developers' proxy backbone and images.

    OGKD_SHARED=../shared python benchmarks/prompt_banks.py [--split test] [--datasets BUSI ...]

For each dataset: one template ("a photo of a {class}."), the mean of the 50 prompts of the bank,
and the mean of those that the released selector keeps. The selector looks at the training images
only, without labels. Prints JSON, then a Markdown table. The default judges train and val
images: banks are written and mended by those, the test split is for reporting.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ogkd.backbones import Backbone, load_backbone
from ogkd.core.geometry import prototypes
from ogkd.core.teacher import select_prompts, teacher_prototypes
from ogkd.data.case import Dataset, images_of
from ogkd.data.read import read_dataset
from ogkd.features import FeatureStore
from ogkd.prompts.bank import SINGLE, bank_for, read_bank

PROXY = "dinov2s14-minilm-med"
BANKS = {"COVID_19": "covid"}  # whose bank is not called like the folder in small letters
WAYS = ("single", "ensemble", "selective")
TAU = 1.5  # the selector's width in most of the released settings


def images(backbone: Backbone, data: Dataset, splits: list[str]) -> tuple[Tensor, Tensor]:
    """Features [N, d] and labels [N] of the images in these splits."""
    cases = [case for case in data.cases if case.split in splits]
    features = FeatureStore(backbone).get(images_of(cases)).globals[:, 0]
    return features, torch.tensor(data.task.labels(data.targets(cases)).tolist())


def zero_shot_accuracy(
    backbone: Backbone,
    bank: dict[str, list[str]],
    data: Dataset,
    *,
    splits: list[str],
    tau: float,
) -> dict[str, Any]:
    """Accuracy with one template, the whole bank, and the texts that the selector keeps."""
    texts = bank_for(data.names, bank)
    features = [backbone.encode_texts(row) for row in texts]
    V, y = images(backbone, data, splits)
    seen, _ = images(backbone, data, ["train"])
    mask = select_prompts(seen, features, tau=tau, selector="batch")
    heads = {
        "single": backbone.encode_texts([SINGLE.replace("{}", name) for name in data.names]),
        "ensemble": prototypes(features),
        "selective": teacher_prototypes(features, mask),
    }
    accuracy = {
        how: float(((V @ T.mT).argmax(dim=-1) == y).double().mean()) for how, T in heads.items()
    }
    kept = int(mask.sum()) / sum(len(rows) for rows in features)
    return {"images": len(y), "accuracy": accuracy, "kept": kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="*")
    parser.add_argument("--split", nargs="+", default=["train", "val"])
    parser.add_argument("--tau", type=float, default=TAU)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shared = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
    known = sorted(path.name for path in (shared / "data").iterdir() if path.is_dir())
    backbone = load_backbone(shared / "backbones" / PROXY, device="cpu")
    began = time.perf_counter()
    rows: dict[str, dict[str, Any]] = {}
    for name in options.datasets or known:
        dataset = read_dataset(shared / "data" / name)
        rows[name] = zero_shot_accuracy(
            backbone,
            read_bank(Path(BANKS.get(name, name.lower()))),
            dataset,
            splits=options.split,
            tau=options.tau,
        )
        rows[name]["classes"] = len(dataset.names)
    seconds = round(time.perf_counter() - began, 1)
    print(json.dumps({"backbone": PROXY, "split": options.split, "seconds": seconds, **rows}))
    print("\n| dataset | classes | images | single template | ensemble of 50 | selective (kept) |")
    print("|---|---|---|---|---|---|")
    for name, row in rows.items():
        shares = [f"{100 * row['accuracy'][way]:.1f}" for way in WAYS]
        shares[-1] += f" ({100 * row['kept']:.0f} %)"
        print(f"| {name} | {row['classes']} | {row['images']} | {' | '.join(shares)} |")
    means = [
        f"{100 * sum(row['accuracy'][way] for row in rows.values()) / len(rows):.1f}"
        for way in WAYS
    ]
    print(f"| mean of {len(rows)} | | | {' | '.join(means)} |")


if __name__ == "__main__":
    main()
