"""Phantom chest films with several findings, and a table with a column for each of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from ogkd.datasets.case import Case, Dataset
from ogkd.datasets.phantoms import _xray, checked_counts, new_place, phantom
from ogkd.datasets.phantoms._draw import Canvas, new_rng, to_levels
from ogkd.datasets.splits import check_seed
from ogkd.datasets.tables import table_text
from ogkd.datasets.task import UNKNOWN, Findings
from ogkd.errors import ConfigError
from ogkd.files import folder_atomically
from ogkd.images import ImageRef
from ogkd.progress import progress_bar

NAME = "chest-findings"
TABLE = "films.csv"
FINDINGS = phantom("cxr").class_names[1:]  # all but the normal class
_SHARES = (0.35, 0.3, 0.25, 0.2)  # how often each is present


def write_films(
    out: Path, *, splits: Mapping[str, int], seed: int = 0, size: int = 160, missing: float = 0.0
) -> Path:
    """Write `out/{train,val,test}/0000.png` and `out/films.csv`; gives the table's path.

    An image shows each finding with its own share, independently of the others. `missing` is the
    share of answers that the table leaves out, never in test.
    """
    check_seed(seed)
    if not 0 <= missing < 1:
        raise ConfigError(
            f"missing must be at least 0 and below 1, but is {missing}.", argument="missing"
        )
    counts = checked_counts(splits)
    cases = []
    with (
        folder_atomically(new_place(out)) as aside,
        progress_bar(f"phantoms {NAME}", sum(counts.values())) as bar,
    ):
        for split, count in counts.items():
            (aside / split).mkdir()
            for index in range(count):
                entropy = [zlib.crc32(NAME.encode()), seed, index, zlib.crc32(split.encode())]
                scene, texture, choice = np.random.SeedSequence(entropy).spawn(3)
                draws = new_rng(choice).random((2, len(_SHARES)))
                present = (draws[0] < _SHARES).astype(int)
                labels = tuple((np.flatnonzero(present) + 1).tolist()) or (0,)
                canvas = Canvas(new_rng(scene), new_rng(texture), size)
                picture, _, _ = _xray.film(labels, canvas)
                file = aside / split / f"{index:04d}.png"
                Image.fromarray(to_levels(picture)).save(file, compress_level=1)
                open_ = draws[1] < (0 if split == "test" else missing)
                known = tuple(np.where(open_, UNKNOWN, present).tolist())
                cases.append(Case.single(ImageRef(file), known, split=split))
                bar.advance()
        table = table_text(Dataset(tuple(cases), Findings(tuple(FINDINGS))), aside)
        (aside / TABLE).write_text(table, encoding="utf-8")
    return Path(out) / TABLE
