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
import struct
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydicom.uid import JPEG2000Lossless, JPEGBaseline8Bit, JPEGLosslessSV1, RLELossless

from ogkd.bench.grid import Grid, expand, read_grid
from ogkd.core.checkpoint import Checkpoint, TrainingState
from ogkd.datasets.read import read_manifest
from ogkd.errors import OgkdError
from ogkd.features.store import FeatureStore
from ogkd.images import npz, read_image
from ogkd.images.decode import silence_decoders
from ogkd.model.calibration import Calibration
from ogkd.model.card import ModelCard
from ogkd.model.familiarity import Familiarity, SupportFeatures
from ogkd.model.load import load
from ogkd.prompts.bank import bank_for, read_bank
from ogkd.records import sealed
from tiny_data import write_dataset, write_image
from tiny_images import SHADES, dicom, encapsulated, lossless_jpeg, medmnist, nifti, png

from . import mutants
from .mutants import changed, damaged, either, then

EVERY = os.environ.get("OGKD_HOSTILE") == "all"
EXAMPLES = 10_000 if EVERY else 120
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
VOLUME = np.arange(4 * 5 * 6, dtype=np.int16).reshape(4, 5, 6)


class Watch:
    """Calls a reader and holds it to what all readers promise."""

    def __init__(self, folder, capfd):
        self.folder, self.capfd = folder, capfd
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self.answers = self.refusals = 0

    def all_of(self, make, check):
        """`check` what `make` gives, as often as the tests are to do it."""
        for number in range(FIRST, FIRST + EXAMPLES):
            try:
                check(make(random.Random(number)))
                if number % 25 == 0:
                    self.silent()
            except BaseException as error:
                error.add_note(f"with random.Random({number})")
                raise
        self.silent()

    def silent(self):
        """Nothing was printed since the last time."""
        out, err = self.capfd.readouterr()
        assert out == ""
        assert [line for line in err.splitlines() if not LIBTIFF.match(line)] == []

    def __call__(self, read, *args):
        """What `read` gives, or None where it refuses."""
        found = facts(self.folder)
        began = time.process_time()
        answer, refusal = None, "-"
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            silence_decoders()
            try:
                answer = read(*args)
                self.answers += 1
            except OgkdError as error:
                refusal = str(error)
                self.refusals += 1
        assert refusal.strip()
        assert time.process_time() - began < SECONDS
        assert [str(one.message) for one in said] == []
        assert facts(self.folder) == found
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.before
        assert grown * 1024 < MEMORY
        return answer


def facts(folder):
    """When each file was last changed, and its size."""
    files = {file: file.stat() for file in folder.rglob("*")}
    return {file: (one.st_mtime_ns, one.st_size) for file, one in files.items()}


@pytest.fixture
def watch(capfd):
    memory = Path("/dev/shm")  # a disk would take most of the time
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        found = Watch(Path(folder), capfd)
        yield found
    print(f"{found.answers} answers, {found.refusals} refusals")


def tiff(path, **how):
    import tifffile

    tifffile.imwrite(path, SMALL.astype(np.uint16) * 99, photometric="rgb", **how)
    return path


def jpeg():
    stream = io.BytesIO()
    Image.fromarray(SMALL).save(stream, "JPEG")
    return stream.getvalue()


def saved(path, **how):
    Image.fromarray(SMALL).save(path, **how)
    return path


def windowed(path):
    wishes = {"WindowCenter": 90, "WindowWidth": 300, "RescaleSlope": 2, "RescaleIntercept": -7}
    return dicom(path, SHADES[:9, :8], **wishes)


def padded(path):
    values = SHADES[:9, :8].astype(np.int16)
    return dicom(path, values, PixelPaddingValue=3, PhotometricInterpretation="MONOCHROME1")


def baseline(path):
    look = {"PhotometricInterpretation": "YBR_FULL"}
    return encapsulated(path, jpeg(), JPEGBaseline8Bit, SMALL, **look)


IMAGES = {  # name, part, and the ways to make a valid one
    "dicom": (
        "a.dcm",
        "",
        windowed,
        padded,
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
        saved,
        lambda at: saved(at, compression="tiff_lzw"),
        lambda at: saved(at, compression="jpeg"),
        tiff,
        lambda at: tiff(at, compression="zlib"),
        lambda at: tiff(at, bigtiff=True),
        lambda at: tiff(at, byteorder=">"),
    ),
    "png": (
        "a.png",
        "",
        saved,
        lambda at: png(at, SMALL.astype(np.uint16) * 99),
        lambda at: png(at, SHADES[:9]),
    ),
    "jpeg": ("a.jpg", "", saved, lambda at: saved(at, progressive=True)),
    "bmp": ("a.bmp", "", saved),
    "webp": ("a.webp", "", saved, lambda at: saved(at, lossless=True)),
    "npz": ("a.npz", "#test/0", lambda at: medmnist(at, test_images=SMALL[None])),
}


def valid_image(path, part):
    npz._kept.cache_clear()
    pixels = read_image(f"{path}{part}")
    assert pixels.dtype == np.uint8
    assert pixels.ndim == 3
    assert pixels.shape[2] == 3
    assert pixels.size > 0


@pytest.mark.parametrize("kind", IMAGES)
def test_images(kind, watch, tmp_path):
    name, part, *ways = IMAGES[kind]
    seeds = [way(tmp_path / name).read_bytes() for way in ways]

    def check(content):
        file = watch.folder / name
        file.write_bytes(content)
        watch(valid_image, file, part)

    watch.all_of(damaged(seeds, magic=400), check)


def valid_manifest(path):
    found = read_manifest(path)
    assert found.items
    assert len(found.class_names) >= (1 if found.has_findings else 2)
    for item in found.items:
        for number in item.present if found.has_findings else [item.label]:
            assert 0 <= number < len(found.class_names)
    assert len(found.sha256) == 64
    assert repr(found)


ROWS = [["a/1.png", 0, "benign"], ["b/2.png", 1, "malignant"]]
SPLIT = {"train": ROWS, "val": [["b/3.png", 1, "malignant"]], "test": [["a/4.png", 0, "benign"]]}
TABLE = b"path,label,split,patient\na.png,benign,train,1\nb.png,malignant,test,2\n"
MANIFESTS = {
    "csv": ("t.csv", either(then(mutants.tables, mutants.utf8), damaged([TABLE]))),
    "tsv": ("t.tsv", damaged([TABLE.replace(b",", b"\t")])),
    "split json": (
        "s.json",
        either(then(changed([SPLIT]), mutants.json_bytes), damaged([mutants.json_bytes(SPLIT)])),
    ),
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_tables_and_split_files(kind, watch):
    name, strategy = MANIFESTS[kind]

    def check(content):
        file = watch.folder / name
        file.write_bytes(content)
        watch(valid_manifest, file)

    watch.all_of(strategy, check)


def test_medmnist_labels(watch, tmp_path):
    arrays = {"train_images": SMALL[None, :, :, 0], "train_labels": np.array([[1]], np.uint8)}
    seeds = [medmnist(tmp_path / "a.npz", **arrays).read_bytes()]
    np.savez(tmp_path / "b.npz", **arrays)
    seeds.append((tmp_path / "b.npz").read_bytes())

    def check(content):
        (watch.folder / "a.npz").write_bytes(content)
        watch(valid_manifest, watch.folder / "a.npz")

    watch.all_of(damaged(seeds), check)


def valid_bank(path):
    bank = read_bank(path)
    for name, texts in bank.items():
        assert isinstance(name, str)
        assert any(text.strip() for text in texts)
    assert all(bank_for([*bank], bank))


BANK = {"benign": ["a smooth round mass", "b"], "malignant tumor": ["an irregular mass"]}


def test_prompt_banks(watch):
    def check(content):
        (watch.folder / "bank.json").write_bytes(content)
        watch(valid_bank, watch.folder / "bank.json")

    watch.all_of(
        either(then(changed([BANK]), mutants.json_bytes), damaged([mutants.json_bytes(BANK)])),
        check,
    )


GRID = {
    "name": "tiny",
    "data": "phantoms",
    "datasets": ["histology", "xray"],
    "shots": [1, 2],
    "seeds": [1],
    "methods": ["zero-shot", "gda"],
    "settings": {"lambda_sccm": 0.5},
    "sweep": {"gamma": [0.1, 0.2]},
    "rows": [{"method": "ogkd", "label": "ours", "settings": {"alpha": 4.0}}],
    "phantoms": {"train": 3, "test": 2},
}


def valid_grid(path):
    grid = read_grid(path)
    assert isinstance(grid, Grid)
    if len(grid.shots) * len(grid.seeds) * len(grid.flips) * len(grid.budgets) < 50:
        plan, _ = expand(grid)
        assert plan.cells
        assert len({cell.spec.hash for cell in plan.cells}) >= 1


def test_grids(watch):
    seeds = [GRID, {**GRID, "sweep": {}, "settings": {}}]
    texts = [mutants.toml_text(seed).encode() for seed in seeds]
    as_toml = then(changed(seeds), mutants.toml_text, mutants.utf8)

    def check(content):
        (watch.folder / "grid.toml").write_bytes(content)
        watch(valid_grid, watch.folder / "grid.toml")

    watch.all_of(either(as_toml, damaged(texts)), check)


def tensors(content):
    """Files whose header is changed as JSON, and such whose bytes are."""
    (length,) = struct.unpack_from("<Q", content)
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    as_json = then(changed([header]), lambda new: mutants.safetensors_bytes(new, body))
    return either(as_json, damaged([content]))


def valid_support(path):
    found = SupportFeatures.read(path, classes=3, width=4)
    assert found.features.shape[1:] == (4,)
    assert np.isfinite(found.features).all()
    assert found.labels.shape == found.features.shape[:1]
    assert ((found.labels >= 0) & (found.labels < 3)).all()
    assert not np.isnan(Familiarity(found).strangeness(np.eye(4, dtype=np.float32))).any()


def test_support_features(watch):
    rows = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    content = SupportFeatures(rows, np.arange(9) % 3).to_bytes()

    def check(content):
        (watch.folder / "support.safetensors").write_bytes(content)
        watch(valid_support, watch.folder / "support.safetensors")

    watch.all_of(tensors(content), check)


def test_checkpoints(watch):
    file = watch.folder / "c.safetensors"
    state = TrainingState(torch.ones(2, 3), torch.zeros(2, 3), 4, torch.ones(4, 2))
    Checkpoint(file, "mine").save(state)

    def valid_checkpoint():
        found = Checkpoint(file, "mine").load()
        assert found.epoch == 4  # the checksum lets nothing else pass
        assert torch.equal(found.contexts, state.contexts)
        assert torch.equal(found.momentum, state.momentum)

    def check(content):
        file.write_bytes(content)
        watch(valid_checkpoint)

    watch.all_of(tensors(file.read_bytes()), check)


def test_shards_of_the_feature_store(bert_backbone, watch, tmp_path):
    image = write_image(tmp_path / "a.png")
    place = tmp_path / "store"
    store = FeatureStore(bert_backbone, root=place)
    right = store.get([image])
    (shard,) = store.folder.iterdir()
    content = shard.read_bytes()

    def valid_features():
        found = FeatureStore(bert_backbone, root=place).get([image])
        assert torch.equal(found.globals, right.globals)

    def check(content):
        shard.write_bytes(content)
        watch(valid_features)

    watch.all_of(tensors(content), check)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A calibrated classifier, and its folder without the digests that refuse every change."""
    import ogkd

    root = tmp_path_factory.mktemp("model")
    data = write_dataset(root / "data", splits={"train": 4})
    with pytest.warns(UserWarning, match="only computer-drawn"):
        fitted = ogkd.fit(data, method="fused", backbone="builtin", out=root / "m")
    card = json.loads((root / "m" / "model.json").read_text())
    for name in ("sha256", "weights_sha256", "support_sha256"):
        del card[name]
    (root / "m" / "model.json").write_text(json.dumps(card))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    found = Calibration.fit(
        rng.normal(size=(40, 3)) + 3 * np.eye(3)[labels],
        labels,
        [f"{number:016x}" for number in rng.integers(0, 2**60, 40)],
        weights_sha256=fitted.weights_sha256,
    )
    (root / "m" / "calibration.json").write_text(json.dumps(found.model_dump(mode="json")))
    return root / "m", fitted.backbone


def valid_model(folder, backbone):
    found = load(folder, backbone=backbone)
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(5, found.head.shape[1])).astype(np.float32)
    p = found.probabilities(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    assert p.shape == (5, len(found.class_names))
    assert np.isfinite(p).all()
    assert found.card.findings or np.allclose(p.sum(axis=1), 1, atol=1e-4)
    assert found.refs(["a.png"])
    assert repr(found)
    if found.calibration is not None:
        valid_decisions(found.calibration, p)


def valid_decisions(calibration, p):
    assert repr(calibration)
    for kind in ("lac", "aps"):
        with contextlib.suppress(OgkdError):
            assert calibration.sets(p, coverage=0.8, kind=kind).shape == p.shape
    with contextlib.suppress(OgkdError):
        assert 0 <= calibration.threshold(0.2) <= 1


@pytest.mark.parametrize("name", ["model.json", "weights.safetensors", "support.safetensors"])
def test_model_folders(name, model, watch):
    source, backbone = model
    folder = watch.folder / "m"
    shutil.copytree(source, folder)
    (folder / "calibration.json").unlink()  # it belongs to the very weights
    content = (folder / name).read_bytes()
    strategy = tensors(content) if name != "model.json" else cards(json.loads(content))

    def check(content):
        (folder / name).write_bytes(content)
        watch(valid_model, folder, backbone)

    watch.all_of(strategy, check)


def cards(value):
    """Changed as JSON, with a seal that fits and without one; and changed bytes."""
    new = changed([value])
    resealed = then(new, lambda content: sealed(content) if isinstance(content, dict) else content)
    plain = [then(way, mutants.json_bytes) for way in (new, resealed)]
    return either(*plain, damaged([mutants.json_bytes(value)]))


def test_model_cards(model, watch):
    def check(content):
        (watch.folder / "model.json").write_bytes(content)
        found = watch(ModelCard.read, watch.folder / "model.json")
        assert found is None or (found.seen is not None and found.backbone.short_name is not None)

    watch.all_of(cards(json.loads((model[0] / "model.json").read_text())), check)


def test_calibrations(model, watch):
    p = np.full((2, 3), 1 / 3)

    def check(content):
        (watch.folder / "calibration.json").write_bytes(content)
        found = watch(Calibration.read, watch.folder / "calibration.json")
        if found is not None:
            assert 0 < found.temperature < 21
            valid_decisions(found, p)

    watch.all_of(cards(json.loads((model[0] / "calibration.json").read_text())), check)
