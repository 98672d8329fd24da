"""Whatever a file contains, its reader gives something valid or raises an OgkdError.

It does so within two seconds, prints nothing and changes nothing. A sample runs with all tests;
with OGKD_HOSTILE=all (`make hostile`) every reader meets 10,000 files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import openpyxl
import pytest
import torch
from PIL import Image
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from ogkd.backbones import load_backbone
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import OgkdError
from ogkd.features.store import FeatureStore
from ogkd.images import npz, read_image
from ogkd.images.decode import silence_decoders
from ogkd.model.calibration import Calibration
from ogkd.model.familiarity import SupportFeatures
from ogkd.model.load import load
from ogkd.records import sealed
from tiny_data import write_image
from tiny_images import SHADES, dicom, encapsulated, lossless_jpeg, medmnist, nifti, png

from . import mutants

EVERY = os.environ.get("OGKD_HOSTILE") == "all"
EXAMPLES = 10_000 if EVERY else 20
FIRST = int(time.time()) << 20 if EVERY else 0  # each night other files
SECONDS, MEMORY = 10, 1 << 30  # processor time, with imports
# libtiff and its codecs write some errors to the terminal themselves, out of Python's reach.
LIBTIFF = re.compile(r"[\w.]+: ")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * 3600 if EVERY else 900),
    pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it"),
]
SMALL = np.random.default_rng(0).integers(0, 256, (9, 11, 3), dtype=np.uint8)
LARGER = np.random.default_rng(0).integers(0, 256, (34, 36, 3), dtype=np.uint8)
TASK = OneOf(("a", "b", "c"))
VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


class Watch:
    """Calls a reader and holds it to what all readers promise."""

    def __init__(self, folder, capfd):
        self.folder, self.capfd = folder, capfd
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def all_of(self, make, file, read, *args):
        """Write what `make` gives to `file` and read it, as often as the tests are to do it."""
        for number in range(FIRST, FIRST + EXAMPLES):
            try:
                file.write_bytes(make(random.Random(number)))
                self(read, *args)
            except BaseException as error:
                error.add_note(f"with random.Random({number})")
                raise

    def __call__(self, read, *args):
        before, began, refusal = facts(self.folder), time.process_time(), "-"
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            silence_decoders()
            try:
                read(*args)
            except OgkdError as error:
                refusal = str(error)
        assert refusal.strip()
        assert time.process_time() - began < SECONDS
        assert [str(warning.message) for warning in warned] == []
        assert facts(self.folder) == before
        out, err = self.capfd.readouterr()
        assert out == ""
        assert [line for line in err.splitlines() if not LIBTIFF.match(line)] == []
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.before
        assert grown * 1024 < MEMORY


def facts(folder):
    """When each file was last changed, and its size."""
    files = {file: file.stat() for file in folder.rglob("*")}
    return {file: (stat.st_mtime_ns, stat.st_size) for file, stat in files.items()}


@pytest.fixture
def watch(capfd):
    memory = Path("/dev/shm")  # a disk would take most of the time
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Watch(Path(folder), capfd)


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


IMAGES = {  # name, part, and the ways to make a valid one
    "dicom": (
        "a.dcm",
        "",
        lambda at: dicom(at, SHADES[:9, :8], WindowCenter=90, WindowWidth=300),
        lambda at: dicom(at, SHADES[:9, :8].astype(np.int16), PixelPaddingValue=3),
        baseline,
        lambda at: dicom(at, SMALL),
        lambda at: dicom(at, SHADES[:9, :8], syntax=RLELossless),
        lambda at: dicom(at, LARGER, syntax=JPEG2000Lossless),
        lambda at: encapsulated(at, lossless_jpeg(SHADES, 16), JPEGLosslessSV1, SHADES),
    ),
    "frames": ("a.dcm", "#index=middle", lambda at: dicom(at, VOLUME, frames=True)),
    "nifti": (
        "a.nii",
        "#axis=1,index=2",
        lambda at: nifti(at, VOLUME),
        lambda at: nifti(at, VOLUME.astype(np.float32), slope=2.0, inter=-3.0),
    ),
    "nifti.gz": ("a.nii.gz", "#axis=2,index=middle", lambda at: nifti(at, VOLUME)),
    "tiff": (
        "a.tif",
        "",
        *(partial(saved, compression=kind) for kind in (None, "tiff_lzw", "jpeg")),
        *(partial(tiff, **how) for how in ({"compression": "zlib"}, {"bigtiff": True}, {})),
        partial(tiff, byteorder=">"),
    ),
    "png": ("a.png", "", saved, lambda at: png(at, SMALL.astype(np.uint16) * 99)),
    "jpeg": ("a.jpg", "", saved, lambda at: saved(at, progressive=True)),
    "webp": ("a.webp", "", saved, lambda at: saved(at, lossless=True)),
    "npz": ("a.npz", "#test/0", lambda at: medmnist(at, test_images=SMALL[None])),
}


def valid_image(path, part):
    npz._load.cache_clear()
    pixels = read_image(f"{path}{part}")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.size > 0


@pytest.mark.parametrize("kind", IMAGES)
def test_images(kind, watch, tmp_path):
    name, part, *ways = IMAGES[kind]
    seeds = [way(tmp_path / name).read_bytes() for way in ways]
    file = watch.folder / name
    watch.all_of(mutants.damaged(seeds, magic=400), file, valid_image, file, part)


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


def valid_calibration(path):
    calibration = Calibration.read(path, TASK)
    (question,) = calibration.questions
    assert 0 < question.temperature < 21
    with contextlib.suppress(OgkdError):
        assert [limit.shape for limit in calibration.limits(0.8)] == [(3,)]
    with contextlib.suppress(OgkdError):
        assert 0 <= question.threshold(0.2) <= 1


def valid_model(file):
    classifier = load(file.parent, backbone=load_backbone("builtin", device="cpu"))
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, classifier.head.shape[1])).astype(np.float32)
    p = classifier.probabilities(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    assert p.shape == (5, len(classifier.class_names))
    assert np.isfinite(p).all()
    assert np.allclose(p.sum(axis=1), 1, atol=1e-4) or classifier.task.kind != "classes"
    assert repr(classifier)


def records(content):
    """A JSON file, and one with a checksum that fits its changes."""
    value = json.loads(content)

    def resealed(choose):
        changed = json.loads(mutants.changed([value])(choose))
        return mutants.json_bytes(sealed(changed) if isinstance(changed, dict) else changed)

    return mutants.either(mutants.json_files(value), resealed)


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
READERS = {
    "t.csv": (valid_dataset, mutants.damaged([TABLE, TABLE.decode().encode("utf-16")])),
    "t.xlsx": (valid_dataset, mutants.damaged([sheet()])),
    "split.json": (valid_dataset, mutants.json_files(SPLIT)),
    "support.safetensors": (
        valid_support,
        mutants.tensor_files(SupportFeatures(FEATURES, np.arange(9) % 3).to_bytes()),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_data(name, watch):
    read, make = READERS[name]
    watch.all_of(make, watch.folder / name, read, watch.folder / name)


def test_shards_of_the_feature_store(bert_backbone, watch, tmp_path):
    image, root = write_image(tmp_path / "a.png"), tmp_path / "store"
    store = FeatureStore(bert_backbone, root=root)
    expected = store.get([image]).globals
    (shard,) = store.folder.iterdir()

    def valid_features():
        assert torch.equal(FeatureStore(bert_backbone, root=root).get([image]).globals, expected)

    watch.all_of(mutants.tensor_files(shard.read_bytes()), shard, valid_features)


@pytest.mark.parametrize(
    "name", ["model.json", "weights.safetensors", "support.safetensors", "calibration.json"]
)
def test_files_of_a_model(name, world, watch):
    file = shutil.copytree(world["model"], watch.folder / "m") / name
    card = json.loads((file.parent / "model.json").read_text())
    for digest in ("sha256", "weights_sha256", "support_sha256"):
        del card[digest]  # they refuse every change
    (file.parent / "model.json").write_text(json.dumps(card))
    content = file.read_bytes()
    make = (records if file.suffix == ".json" else mutants.tensor_files)(content)
    if name == "calibration.json":
        watch.all_of(make, file, valid_calibration, file)
    else:
        (file.parent / "calibration.json").unlink()  # it belongs to the very weights
        watch.all_of(make, file, valid_model, file)
