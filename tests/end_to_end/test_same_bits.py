"""What is bit-equal, and what only to some digits (docs/reference/promises.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import ogkd
from tiny_data import write_dataset

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::ogkd.errors.OgkdWarning")]
METHODS = {"fused": {}, "coop": {"train.epochs": 2}}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("bits") / "data", splits={"train": 3, "test": 4})


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def fit(data, method, **options):
    return ogkd.fit(data, backbone="builtin", method=method, settings=METHODS[method], **options)


def answers(model, data, batch_size):
    images = sorted((data / "test").rglob("*.png"))
    found = model.decide(images, batch_size=batch_size)
    return np.array([said.probabilities for said in found])


@pytest.mark.parametrize("method", METHODS)
def test_batch_size_and_threads_change_the_last_digits_only(method, data, threads):
    model = fit(data, method)
    threads(1)
    first = answers(model, data, 32)
    for number in (1, 2):
        threads(number)
        for size in (1, 7, 32):
            np.testing.assert_allclose(answers(model, data, size), first, atol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_a_fit_is_the_same_with_and_without_cached_features(method, data, tmp_path, monkeypatch):
    written = []
    for cache in ("a", "a", "b"):  # empty, full, empty again
        monkeypatch.setenv("OGKD_CACHE", str(tmp_path / cache))
        out = tmp_path / f"m{len(written)}"
        fit(data, method, out=out)
        written.append((out / "weights.safetensors").read_bytes())
    assert written[0] == written[1] == written[2]


def test_an_older_processor_changes_the_last_digits_only(data, tmp_path):
    """Torch and its libraries are kept from the instructions of newer processors (AVX-512)."""
    fit(data, "fused", out=tmp_path / "m")
    older = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    older |= {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "OGKD_CACHE": str(tmp_path / "older")}
    command = [sys.executable, "-m", "ogkd", "predict", tmp_path / "m", data / "test"]
    rows = [
        subprocess.run(
            [*map(str, command), "--format", "jsonl"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path[1:]), **extra},
            capture_output=True,
            check=True,
        ).stdout.splitlines()
        for extra in ({}, older)
    ]
    p = [[list(json.loads(row)["probabilities"].values()) for row in lines] for lines in rows]
    np.testing.assert_allclose(*p, atol=2e-5)
