"""What the benchmarks of `fused` share: one JSON file for each dataset, run if it is missing."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ogkd.backbones import Backbone, load_backbone
from ogkd.files import write_json
from ogkd.methods import TextSide
from ogkd.prompts.bank import bank_for, read_bank

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BANKS = {"COVID_19": "covid"}  # whose bank is not called like the folder in small letters
NAMES = ["BUSI", "RETINA", "BTMRI", "OCTMNIST", "CTKidney", "COVID_19", "KneeXray"]
NAMES += ["LungColon", "DermaMNIST", "Kvasir"]

OneDataset = Callable[[str, Backbone, argparse.Namespace], dict[str, Any]]


def options_of(doc: str | None, out: str, judges: list[str]) -> argparse.ArgumentParser:
    """The options that all of them have; the first of `judges` is the default."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--datasets", nargs="*", default=NAMES)
    parser.add_argument("--judge", choices=judges, default=judges[0])
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--threads", type=int, default=1)
    return parser


def run(options: argparse.Namespace, one_dataset: OneDataset) -> list[dict[str, Any]]:
    """Run what is missing, and read what there is."""
    torch.set_num_threads(options.threads)
    backbone, done = None, []
    for name in options.datasets:
        path = options.out / f"{name}.json"
        if not path.is_file() and not options.table:
            backbone = backbone or load_backbone(
                SHARED / "backbones" / "dinov2s14-minilm-med", device="cpu"
            )
            write_json(path, one_dataset(name, backbone, options))
            print(f"{name} is done", flush=True)
        if path.is_file():
            done.append(json.loads(path.read_text()))
    return done


def text_of(name: str, class_names: tuple[str, ...], backbone: Backbone) -> TextSide:
    """The prompt bank of a dataset."""
    bank = read_bank(Path(BANKS.get(name, name.lower())))
    return TextSide(backbone, class_names, tuple(tuple(row) for row in bank_for(class_names, bank)))
