"""The readers of files that users bring, valid files for each, and what reading has to give.

`test_readers.py` damages these files blindly, `fuzz.py` guided by the code that a change reaches.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import openpyxl
from PIL import Image
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from ogkd.bench.grid import expand, read_grid
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.images import npz, read_image
from ogkd.images.dicom import Series
from ogkd.model.classifier import read_history
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.table import read_predictions
from ogkd.prompts.bank import read_bank
from ogkd.serve.studio.project import LOG, SETTINGS, Facts, Project
from tiny_images import SHADES, dicom, encapsulated, lossless_jpeg, medmnist, nifti, png

from . import mutants
from .corpus import GRID

SMALL = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
LARGER = np.random.default_rng(0).integers(0, 256, (34, 36, 3), dtype=np.uint8)
TASK = OneOf(("a", "b", "c"))
VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


def tiff(path, **how):
    import tifffile

    tifffile.imwrite(path, SMALL.astype(np.uint16) * 99, photometric="rgb", **how)
    return path


def saved(path, **how):
    Image.fromarray(SMALL).save(path, **how)
    return path


def baseline(path):
    stream = saved(path, format="JPEG").read_bytes()
    look = {"PhotometricInterpretation": "YBR_FULL"}
    return encapsulated(path, stream, JPEGBaseline8Bit, SMALL, **look)


def valid_image(path, part=""):
    npz._load.cache_clear()
    if path.suffix == ".dcm":
        assert Series.of(path).along < np.inf
    pixels = read_image(f"{path}{part}")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.size > 0


def valid_dataset(path):
    dataset = read_dataset(path)
    assert dataset.cases
    for case in dataset.cases:
        assert all(0 <= number < len(dataset.names) for number in dataset.task.shown(case.target))
    assert len(dataset.sha256) == 64
    assert repr(dataset)


def valid_support(path):
    support = SupportFeatures.read(path, TASK, width=4)
    assert support.features.shape[1:] == (4,)
    assert np.isfinite(support.features).all()
    assert support.labels.shape == support.features.shape[:1]
    assert ((support.labels >= 0) & (support.labels < 3)).all()


def valid_bank(path):
    bank = read_bank(path)
    assert bank
    json.dumps(bank, ensure_ascii=False).encode()


def valid_log(path):
    """A torn last line goes, which was never acknowledged: in a copy."""
    with tempfile.TemporaryDirectory(dir=path.parent.parent) as name:
        folder = Path(name)
        (folder / SETTINGS).write_text(Facts().model_dump_json())
        (folder / LOG).write_bytes(path.read_bytes())
        project = Project.open(folder)
        assert len(project.labels) <= len(project.history)
        project.write_table()


def valid_predictions(path, format):
    read_predictions(path, TASK, format, joined=False, model="m")


def archive():
    """A MedMNIST file with all its arrays."""
    memory = io.BytesIO()
    parts = {"images": SMALL[None].repeat(2, axis=0), "labels": np.array([[0], [1]])}
    splits = ("train", "val", "test")
    np.savez_compressed(memory, **{f"{s}_{k}": v for s in splits for k, v in parts.items()})
    return memory.getvalue()


def sheet():
    book, memory = openpyxl.Workbook(), io.BytesIO()
    for row in TABLE.decode().split():
        book.active.append(row.split(","))
    book.save(memory)
    return memory.getvalue()


ROWS = [["a/1.png", 0, "benign"], ["b/2.png", 1, "malignant"]]
SPLIT = {"train": ROWS, "val": [["b/3.png", 1, "malignant"]], "test": [["a/4.png", 0, "benign"]]}
TABLE = b"path,label,split,patient\na.png,benign,train,1\nb.png,malignant,test,2\n"
FEATURES = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
LINE = {"number": 1, "image": "a.png", "state": "label", "label": "b", "by": "", "time": 1.0}
PREDICTED = b'{"path": "a.png", "model": "m"}\n'
BANK = {"a": ["one text", "another"], "b": ["a third"]}


@dataclass(frozen=True)
class Reader:
    """A file by its name, what reads it, files that are valid, and how to damage them."""

    name: str
    read: Callable[[Path], object]
    seeds: Sequence[bytes]
    damaged: Callable[[Sequence[bytes]], mutants.Make] = mutants.damaged

    @property
    def make(self) -> mutants.Make:
        return self.damaged(self.seeds)


def image(name, *ways, part=""):
    with tempfile.TemporaryDirectory() as folder:
        seeds = [way(Path(folder) / name).read_bytes() for way in ways]
    damaged = partial(mutants.damaged, magic=400)
    return Reader(name, partial(valid_image, part=part), seeds, damaged)


def json_reader(name, read, value):
    return Reader(name, read, [mutants.json_bytes(value)], lambda _: mutants.json_files(value))


READERS = {
    "dicom": image(
        "a.dcm",
        lambda at: dicom(at, SHADES[:9, :8], WindowCenter=90, WindowWidth=300),
        lambda at: dicom(at, SHADES[:9, :8].astype(np.int16), PixelPaddingValue=3),
        baseline,
        lambda at: dicom(at, SMALL),
        lambda at: dicom(at, SHADES[:9, :8], syntax=RLELossless),
        lambda at: dicom(at, LARGER, syntax=JPEG2000Lossless),
        lambda at: encapsulated(at, lossless_jpeg(SHADES, 16), JPEGLosslessSV1, SHADES),
    ),
    "frames": image("a.dcm", lambda at: dicom(at, VOLUME, frames=True), part="#index=middle"),
    "nifti": image(
        "a.nii",
        lambda at: nifti(at, VOLUME),
        lambda at: nifti(at, VOLUME.astype(np.float32), slope=2.0, inter=-3.0),
        part="#axis=1,index=2",
    ),
    "nifti.gz": image("a.nii.gz", lambda at: nifti(at, VOLUME), part="#axis=2,index=middle"),
    "tiff": image(
        "a.tif",
        *(partial(saved, compression=kind) for kind in (None, "tiff_lzw", "jpeg")),
        *(partial(tiff, **how) for how in ({"compression": "zlib"}, {"bigtiff": True}, {})),
        partial(tiff, byteorder=">"),
    ),
    "png": image("a.png", saved, lambda at: png(at, SMALL.astype(np.uint16) * 99)),
    "jpeg": image("a.jpg", saved, lambda at: saved(at, progressive=True)),
    "webp": image("a.webp", saved, lambda at: saved(at, lossless=True)),
    "npz": image("a.npz", lambda at: medmnist(at, test_images=SMALL[None]), part="#test/0"),
    "medmnist": Reader("a.npz", valid_dataset, [archive()]),
    "table": Reader("t.csv", valid_dataset, [TABLE, TABLE.decode().encode("utf-16")]),
    "sheet": Reader("t.xlsx", valid_dataset, [sheet()]),
    "split": json_reader("split.json", valid_dataset, SPLIT),
    "support": Reader(
        "support.safetensors",
        valid_support,
        [SupportFeatures(FEATURES, np.arange(9) % 3).to_bytes()],
        lambda seeds: mutants.tensor_files(seeds[0]),
    ),
    "bank": json_reader("bank.json", valid_bank, BANK),
    "bank table": Reader("bank.csv", valid_bank, [b"class,text\na,one text\nb,another\n"]),
    "grid": Reader("g.toml", lambda path: expand(read_grid(path)), [GRID.encode()]),
    "labels": Reader(LOG, valid_log, [mutants.json_bytes(LINE) + b"\n"]),
    "history": Reader("training.jsonl", read_history, [b'{"epoch": 1, "loss": 0.5}\n']),
    "predictions": Reader("p.jsonl", partial(valid_predictions, format="jsonl"), [PREDICTED]),
    "predictions table": Reader(
        "p.csv", partial(valid_predictions, format="csv"), [b"path,label\na.png,b\n"]
    ),
}
