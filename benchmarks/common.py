"""What experiments share: datasets as features, draws of a support, tables, paired differences."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.evidence import BACKBONE, SHARED
from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Case
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.data.tasks import OneOf
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.fitting.prepare import text_sides
from ogkd.methods import Support, TextSide
from ogkd.prompts.bank import read_bank

# All of the shared folder but CHMNIST, which has four training images per class there.
DATASETS = (
    *("BTMRI", "BUSI", "COVID_19", "CTKidney", "DermaMNIST"),
    *("KneeXray", "Kvasir", "LungColon", "OCTMNIST", "RETINA"),
)
_BANKS = {"COVID_19": "covid"}  # whose bank is not called like the folder in small letters
_DRAWS = 4000  # of the bootstrap


@cache
def backbone() -> Backbone:
    torch.set_num_threads(1)
    return load_backbone(BACKBONE, device="cpu")


@dataclass(frozen=True)
class Data:
    """A dataset as features [N, w] of its whole images."""

    cases: tuple[Case, ...]
    task: OneOf
    text: TextSide
    features: ImageFeatures
    labels: Tensor

    @property
    def rows(self) -> Tensor:
        return self.features.rows[:, 0].float()

    def part(self, *splits: str) -> list[int]:
        """The images of some splits, by number."""
        return [n for n, case in enumerate(self.cases) if case.split in splits]

    def draw(self, shots: int, seed: int) -> list[int]:
        """A support: `shots` images of each class of train, as `ogkd fit` draws them."""
        train = [case for case in self.cases if case.split == "train"]
        number = {case: n for n, case in enumerate(self.cases)}
        drawn, _ = support_and_val(self.task, train, (), shots, seed)
        return [number[case] for case in drawn]

    def rest(self, known: Sequence[int], seed: int) -> list[int]:
        """The images of train and val that are not in the support, in a random order."""
        left = sorted(set(self.part("train", "val")) - set(known))
        random.Random(seed).shuffle(left)
        return left

    def support(self, known: Sequence[int], labels: Tensor | None = None) -> Support:
        features = self.features
        deep = None if features.deep is None else features.deep[known]
        views = FixedViews(ImageFeatures(features.globals[known], None, deep))
        return Support(views, self.labels[known] if labels is None else labels)


@cache
def data(name: str) -> Data:
    """One of the developers' datasets, encoded once and kept in the feature store."""
    dataset = read_dataset(SHARED / "data" / name)
    task = replace(dataset.task, normal=())
    bank = read_bank(_BANKS.get(name, name.lower()))
    [text] = text_sides(backbone(), task, bank)
    features = FeatureStore(backbone()).get([case.image for case in dataset.cases], deep=True)
    labels = torch.tensor([case.target for case in dataset.cases])
    return Data(dataset.cases, task, text, features, labels)


# Tables


def markdown(rows: Mapping[str, Sequence[str]], columns: Sequence[str], corner: str = "") -> str:
    """A table of cells by row; all but the first column are aligned to the right."""
    lines = [f"| {' | '.join((corner, *columns))} |", "|---|" + "---:|" * len(columns)]
    lines += [f"| {' | '.join((name, *cells))} |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def mean_and_spread(frame: pd.DataFrame, value: str) -> tuple[float, float]:
    """The mean over datasets, and its standard deviation over seeds."""
    by_seed = frame.pivot_table(index="seed", columns="dataset", values=value).mean(axis=1)
    by_dataset = frame.groupby("dataset")[value].mean()
    return float(by_dataset.mean()), float(by_seed.std(ddof=0))


def paired(
    frame: pd.DataFrame, a: str, b: str, value: str, by: str = "label"
) -> tuple[float, float, float]:
    """A minus b on the same datasets and seeds: mean, 95 % interval.

    The interval resamples datasets, and the seeds of each.
    """
    keys = ["dataset", "seed"]
    wide = frame[frame[by].isin([a, b])].pivot_table(index=keys, columns=by, values=value)
    gain = (wide[a] - wide[b]).dropna().unstack("seed").to_numpy()  # [datasets, seeds]
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(gain), size=(_DRAWS, len(gain)))
    seeds = rng.integers(gain.shape[1], size=(_DRAWS, *gain.shape))
    means = np.nanmean(gain[chosen[:, :, None], seeds], axis=(1, 2))
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.nanmean(gain)), float(low), float(high)


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def points(difference: Sequence[float]) -> str:
    """A difference of shares with its interval, in points: +0.3 (-0.2 to +0.9)."""
    mean, low, high = (100 * number for number in difference)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
