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
from ogkd.cli.options import RayOptions
from ogkd.errors import ConfigError
from ogkd.features.cluster import Encoder
from ogkd.features.encode import encode_files
from ogkd.images import ImageRef
from tiny_data import write_image

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


@pytest.fixture
def images(tmp_path):
    folder = tmp_path / "images"
    for seed in range(7):
        write_image(folder / f"{seed}.png", seed)
    (folder / "3 bad.png").write_bytes(b"not an image")
    (folder / os.fsdecode(b"4\xff.png")).write_bytes(b"not an image")  # not even a valid name
    return folder


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("patches", [False, True])
def test_worker_gives_what_encoding_here_gives(images, patches, deep, monkeypatch):
    monkeypatch.chdir(images.parent)
    backbone = load_backbone(FIXTURE, device="cpu")
    load = {"source": str(FIXTURE), "device": "cpu", "folder": str(images.parent)}
    encoder = Encoder({}, 1, backbone.digest, **load)
    chunk = [ImageRef(path) for path in sorted(Path("images").iterdir())]
    options = {"patches": patches, "deep": deep}
    (expected,) = encode_files(backbone, chunk, **options, batch_size=99)
    batch = encoder.encode(chunk, options)
    assert batch.readable == expected.readable
    assert batch.bad == expected.bad
    assert len(batch.bad) == 2
    assert torch.equal(batch.features.globals, expected.features.globals)
    assert torch.equal(batch.features.rows, expected.features.rows)
    assert (batch.features.patches is not None) == patches
    if patches:
        assert torch.equal(batch.features.patches, expected.features.patches)


def test_worker_with_another_backbone_is_refused():
    with pytest.raises(ConfigError):
        Encoder({}, 1, "0" * 64, source=str(FIXTURE), device="cpu", folder=".")


def embed(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ogkd", "embed", *map(str, words)],
        capture_output=True,
        text=True,
        errors="surrogateescape",
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )


@pytest.mark.timeout(1800)  # many processes start: a busy machine takes minutes
def test_local_cluster_writes_the_file_that_one_process_writes(images, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip('Ray is not installed: pip install "ogkd[ray]" to run this test')
    same = [images, "-b", FIXTURE, "--on-error", "skip", "--patches"]
    alone = embed(*same, "--out", tmp_path / "alone.safetensors")
    assert alone.returncode == 0, alone.stderr
    quick = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
    where = ["--ray", "local", "--workers", 2, "--device", "cpu"]
    spread = embed(*same, *where, "--out", tmp_path / "spread.safetensors", **quick)
    assert spread.returncode == 0, spread.stderr
    assert spread.stdout.startswith("7 images in")
    assert spread.stderr == alone.stderr
    both = [(tmp_path / f"{name}.safetensors").read_bytes() for name in ("alone", "spread")]
    assert both[0] == both[1]


def test_options_of_a_cluster_need_a_cluster():
    assert RayOptions().cluster() is None
    assert RayOptions(ray="auto", workers=3).cluster().count == 3
    for name, value in {"workers": 2, "cpus_per_worker": 2.0}.items():
        with pytest.raises(ConfigError) as caught:
            RayOptions(**{name: value}).cluster()
        assert caught.value.argument == name
