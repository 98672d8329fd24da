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
from ogkd.images import ImageRef
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


def encoder(patches=True, deep=False, **changes):
    backbone = load_backbone(FIXTURE, device="cpu")
    recipe = _Recipe(str(FIXTURE), backbone.digest, "cpu", "torch", patches, deep, 1)
    return backbone, _Encoder(vars(recipe) | changes, {})


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("patches", [False, True])
def test_a_worker_gives_what_encoding_here_gives(pictures, patches, deep, monkeypatch):
    monkeypatch.chdir(pictures.parent)
    backbone, worker = encoder(patches, deep)
    images = [
        ImageRef(path) for path in sorted(Path("pictures").iterdir())
    ]  # names that mean nothing on another machine
    wanted = {"patches": patches, "deep": deep}
    (expected,) = encode_files(backbone, images, **wanted, batch_size=99)
    names = [os.fsencode(image.file.absolute()) for image in images]
    found = _batch(images, worker({"index": 0, "images": names}), **wanted)
    assert found.readable == expected.readable
    assert found.bad == expected.bad
    assert len(found.bad) == 2
    assert torch.equal(found.features.globals, expected.features.globals)
    assert torch.equal(found.features.rows, expected.features.rows)
    assert found.features.rows.shape[1] > backbone.embed_dim or not deep
    if patches:
        assert torch.equal(found.features.patches, expected.features.patches)
    else:
        assert found.features.patches is None


def test_a_batch_without_a_readable_file_has_no_features(pictures):
    _, worker = encoder()
    images = [ImageRef(pictures / "3 bad.png")]
    row = worker({"index": 0, "images": [os.fsencode(image.file) for image in images]})
    found = _batch(images, row, patches=True, deep=False)
    assert found.features is None
    assert [bad.image for bad in found.bad] == images


def test_a_worker_with_another_model_says_so_instead_of_encoding(pictures):
    _, worker = encoder(digest="0" * 64)
    row = worker({"index": 0, "images": [os.fsencode(pictures / "1.png")]})
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


@pytest.mark.timeout(1800)  # many processes start: a busy machine takes minutes
def test_a_cluster_of_its_own_writes_the_file_that_one_process_writes(pictures, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "ogkd[ray]" to run this test')
    same = [pictures, "-b", FIXTURE, "--on-error", "skip", "--patches", "--batch-size", 2]
    alone = embed(*same, "--out", tmp_path / "alone.safetensors")
    assert alone.returncode == 0, alone.stderr
    quick = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    where = ["--ray", "--workers", 2, "--device", "cpu"]
    spread = embed(*same, *where, "--out", tmp_path / "spread.safetensors", **quick)
    assert spread.returncode == 0, spread.stderr
    assert spread.stdout.startswith("7 images in")
    assert spread.stderr == alone.stderr
    both = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("alone", "spread")]
    assert both[0] == both[1]


def test_options_of_a_cluster_need_a_cluster():
    from ogkd.cli.options import RayOptions

    assert RayOptions().cluster() is None
    assert RayOptions(ray=True, address="auto", workers=3, gpus_per_worker=0.5).cluster().count == 3
    given = {"address": "auto", "workers": 2, "cpus_per_worker": 2.0, "gpus_per_worker": 0.5}
    for name, value in given.items():
        option = name.replace("_", "-")
        with pytest.raises(ConfigError, match=f"--{option} has no effect without --ray"):
            RayOptions(**{name: value}).cluster()
