"""Whatever a file contains, its reader gives something valid or raises an OgkdError.

It does so within two seconds, prints nothing and changes nothing. A sample runs with all tests;
with OGKD_HOSTILE=all (`make hostile`) every reader meets 2,000 files, beside those of
`fuzz.py`.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path

import numpy as np
import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.errors import OgkdError
from ogkd.features.store import FeatureStore
from ogkd.images.decode import silence_decoders
from ogkd.model.calibration import Calibration
from ogkd.model.load import load
from ogkd.records import sealed
from tiny_data import write_image

from . import mutants
from .readers import READERS, TASK

FAILURES = Path(__file__).parent / "failures"
EVERY = os.environ.get("OGKD_HOSTILE") == "all"
EXAMPLES = 2000 if EVERY else 20
FIRST = int(time.time()) << 20 if EVERY else 0  # each night other files
SECONDS, MEMORY = 10, 1 << 30  # processor time, with imports
# libtiff and its codecs write some errors to the terminal themselves, out of Python's reach.
LIBTIFF = re.compile(r"[\w.]+: ")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * 3600 if EVERY else 900),
    pytest.mark.skipif(sys.platform != "linux", reason="measures memory as Linux counts it"),
]


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
        messages = [str(warning.message) for warning in warned]
        assert [text for text in messages if not text.startswith("invalid value")] == []  # numpy
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


@pytest.mark.parametrize("kind", READERS)
def test_files(kind, watch):
    reader = READERS[kind]
    file = watch.folder / "in" / reader.name
    file.parent.mkdir()
    watch.all_of(reader.make, file, reader.read, file)


@pytest.mark.parametrize("content", sorted(FAILURES.glob("*/*")), ids=lambda path: path.name)
def test_what_ever_failed(content, watch):
    reader = READERS[content.parent.name]
    file = watch.folder / "in" / reader.name
    file.parent.mkdir()
    shutil.copyfile(content, file)
    watch(reader.read, file)


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
