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

from ogkd.backbones import load_backbone
from ogkd.data.read import read_dataset
from ogkd.evaluation.prompts import TAU, zero_shot_accuracy
from ogkd.prompts.bank import read_bank

PROXY = "dinov2s14-minilm-med"
BANKS = {"COVID_19": "covid"}  # whose bank is not called like the folder in small letters
WAYS = ("single", "ensemble", "selective")


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
            select_on=["train"],
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
