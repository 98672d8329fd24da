"""Images encoded by a real Ray cluster, started by the command itself."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ogkd.backbones import load_backbone
from ogkd.errors import ConfigError
from ogkd.features.encode import encode_files
from ogkd.features.ray_encode import _batch, _Encoder, _Recipe
from tiny_data import write_image

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    for seed in range(7):
        write_image(folder / f"{seed}.png", seed)
    (folder / "3 bad.png").write_bytes(b"no picture")
    (folder / os.fsdecode(b"4\xff.png")).write_bytes(b"no picture")  # not even a valid name
    return folder


def encoder(patches=True, **changes):
    backbone = load_backbone(FIXTURE, device="cpu")
    recipe = _Recipe(str(FIXTURE), backbone.digest, "cpu", "torch", patches, 1)
    return backbone, _Encoder(vars(recipe) | changes, {})


@pytest.mark.parametrize("patches", [False, True])
def test_a_worker_gives_what_encoding_here_gives(pictures, patches, monkeypatch):
    monkeypatch.chdir(pictures.parent)
    backbone, worker = encoder(patches)
    paths = sorted(Path("pictures").iterdir())  # names that mean nothing on another machine
    (expected,) = encode_files(backbone, paths, patches=patches, batch_size=99)
    row = worker({"index": 0, "paths": [os.fsencode(path.absolute()) for path in paths]})
    found = _batch(paths, row, patches=patches)
    assert found.paths == expected.paths
    assert found.bad == expected.bad
    assert len(found.bad) == 2
    assert torch.equal(found.features.globals, expected.features.globals)
    if patches:
        assert torch.equal(found.features.patches, expected.features.patches)
    else:
        assert found.features.patches is None


def test_a_batch_without_a_readable_file_has_no_features(pictures):
    _, worker = encoder()
    paths = [pictures / "3 bad.png"]
    row = worker({"index": 0, "paths": [os.fsencode(path) for path in paths]})
    found = _batch(paths, row, patches=True)
    assert found.features is None
    assert [bad.path for bad in found.bad] == paths


def test_a_worker_with_another_model_says_so_instead_of_encoding(pictures):
    _, worker = encoder(digest="0" * 64)
    row = worker({"index": 0, "paths": [os.fsencode(pictures / "1.png")]})
    assert "another backbone" in row["problem"]
    assert row["globals"] == b""


def embed(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ogkd", "embed", *map(str, words)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


@pytest.mark.timeout(900)  # many processes start: a busy machine takes minutes
def test_a_cluster_of_its_own_writes_the_file_that_one_process_writes(pictures, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "ogkd[ray]" to run this test')
    same = [pictures, "-b", FIXTURE, "--skip-bad", "--patches", "--batch-size", 2]
    alone = embed(*same, "--out", tmp_path / "alone.safetensors")
    assert alone.returncode == 0, alone.stderr
    quick = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    where = ["--engine", "ray", "--workers", 2, "--device", "cpu"]
    spread = embed(*same, *where, "--out", tmp_path / "spread.safetensors", **quick)
    assert spread.returncode == 0, spread.stderr
    assert spread.stdout.startswith("7 images in")
    assert spread.stderr == alone.stderr
    both = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("alone", "spread")]
    assert both[0] == both[1]


def test_options_of_a_cluster_need_a_cluster(tmp_path):
    from ogkd.cli.cluster_options import read_crew

    assert read_crew("local", None, None, 1.0, 0.0) is None
    assert read_crew("ray", "auto", 3, 2.0, 0.5).workers == 3
    with pytest.raises(ConfigError, match="need --engine ray"):
        read_crew("local", "auto", None, 1.0, 0.0)
    with pytest.raises(ConfigError, match="local or ray, not 'spark'"):
        read_crew("spark", None, None, 1.0, 0.0)
