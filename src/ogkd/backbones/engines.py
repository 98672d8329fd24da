"""How images are encoded: in float32, or faster with products in half precision.

An engine changes only the image features, and gives the backbone another digest, so cached
features and fitted models of two engines are never mixed.
"""

from __future__ import annotations

import copy
import hashlib
import logging
import platform
import subprocess
import sys
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import cosine_similarity, interpolate

from ogkd.backbones._towers import HALVES, TowersBackbone
from ogkd.backbones.base import Backbone
from ogkd.errors import ConfigError, OgkdError
from ogkd.files import cache_dir, read_json, write_json

log = logging.getLogger("ogkd.engine")

ENGINES = {
    "torch": "float32, the reference",
    "bf16": "products in half precision, for GPUs; features differ a little",
    "fp16": "the same with more digits and a smaller range",
}
AUTO = "auto"  # bf16 where a trial shows it right and faster, else torch
_RIGHT, _FASTER = 0.9995, 1.3  # least cosine with float32, and how many times as fast
_TRIED = 8  # images of a trial
_TIMEOUT = 300  # seconds: a busy machine needs a minute to load torch
# Large enough, and with a convolution, to reach the kernels that a model uses.
_PROBE = """
import sys, torch
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
torch.manual_seed(0)
layers = torch.nn.Linear(768, 768), torch.nn.Conv2d(3, 64, 16, 16)
inputs = torch.randn(256, 768), torch.randn(2, 3, 64, 64)
for layer, values in zip(layers, inputs):
    expected = layer(values)
    result = layer.to(device, dtype)(values.to(device, dtype)).float().cpu()
    assert (result - expected).norm() < 0.02 * expected.norm(), "wrong numbers"
"""


def digest_with(digest: str, engine: str) -> str:
    """The digest of a backbone with this digest when `engine` encodes its images."""
    if engine == "torch":
        return digest
    return hashlib.sha256(f"{digest} {engine}".encode()).hexdigest()


def without_engine(backbone: Backbone) -> Backbone:
    """The same backbone in float32."""
    original = getattr(backbone, "float32", None)
    return original if isinstance(original, Backbone) else backbone


def require_engine(engine: str) -> None:
    """Raise if there is no engine of that name."""
    if engine not in (*ENGINES, AUTO):
        raise ConfigError(
            f"There is no engine '{engine}', only {', '.join(ENGINES)} and {AUTO}.",
            argument="engine",
        )


def with_engine(backbone: Backbone, engine: str) -> Backbone:
    """The same backbone, sharing its weights, with its images encoded by one of ENGINES."""
    require_engine(engine)
    backbone = without_engine(backbone)
    if engine == AUTO:
        engine = fastest_engine(backbone)
    if engine == "torch":
        return backbone
    if not isinstance(backbone, TowersBackbone):  # a plugin's computation is its own
        raise ConfigError(f"{backbone.name} has no engine {engine}.", argument="engine")
    if problem := half_problem(str(backbone.device), engine):
        raise ConfigError(
            f"{backbone.device} cannot compute in {engine}: {problem}.", argument="engine"
        )
    twin = copy.copy(backbone)
    twin.float32 = backbone
    twin.engine = engine
    twin.digest = digest_with(backbone.digest, engine)
    return twin


@cache
def half_problem(device: str, engine: str) -> str:
    """Why a device cannot compute in half precision; "" if it can.

    It is tried in a child process: on some machines it is an illegal instruction.
    """
    dtype = str(HALVES[engine]).removeprefix("torch.")
    command = [sys.executable, "-c", _PROBE, device, dtype]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT} s"
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return " ".join([f"exit code {done.returncode}", *last]) if done.returncode else ""


def fastest_engine(backbone: Backbone) -> str:
    """The engine of `auto`: tried once for a machine, a version of torch and a backbone."""
    if not isinstance(backbone, TowersBackbone):
        return "torch"
    if (known := _remembered(backbone)) is None:
        log.info(f"Trying once whether half precision is right and faster for {backbone.name} ...")
        known = "torch"
        if not half_problem(str(backbone.device), "bf16"):
            cosine, speed = _trial(backbone, with_engine(backbone, "bf16"))
            known = "bf16" if cosine >= _RIGHT and speed >= _FASTER else "torch"
            log.info(f"bf16 is {speed:.2f} times as fast, cosine {cosine:.5f}: {known} is used.")
        with suppress(OgkdError):  # a cache that cannot be written: tried again next time
            write_json(_memory(backbone), {"engine": known}, ours=True)
    return known


def may_be_faster(backbone: Backbone) -> bool:
    """Whether `auto` would shorten encoding, as a trial or what the processor can do says."""
    if backbone.engine != "torch" or not isinstance(backbone, TowersBackbone):
        return False
    if (known := _remembered(backbone)) is not None:
        return known != "torch"
    return backbone.device.type == "cuda" or "bf16" in _processor(backbone.device)


def _trial(reference: Backbone, other: Backbone) -> tuple[float, float]:
    """The least cosine between features of both, and how many times as fast the other is."""
    coarse = torch.randn(_TRIED, 3, 14, 14, generator=torch.Generator().manual_seed(0))
    size = reference.preprocessing.size
    pixels = interpolate(coarse, (size, size), mode="bilinear")

    # A busy machine slows both: on a CPU only its own time counts.
    clock = time.process_time if reference.device.type == "cpu" else time.perf_counter

    def run(backbone: Backbone) -> tuple[torch.Tensor, float]:
        features, seconds = backbone.encode_images(pixels).globals.cpu(), []
        for _ in range(3):
            began = clock()
            features = backbone.encode_images(pixels).globals.cpu()
            seconds.append(clock() - began)
        return features, min(seconds)

    (expected, slow), (result, fast) = run(reference), run(other)
    cosine = float(cosine_similarity(expected, result).min())
    return cosine, slow / max(fast, 1e-9)


def _remembered(backbone: Backbone) -> str | None:
    """What a trial has shown; None before."""
    with suppress(OSError, ValueError, OgkdError):
        known = read_json(_memory(backbone)).get("engine")
        return known if known in ENGINES else None
    return None


def _memory(backbone: Backbone) -> Path:
    parts = (_processor(backbone.device), torch.__version__, backbone.digest)
    return cache_dir() / "engines" / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


@cache
def _processor(device: torch.device) -> str:
    """What computes there, with the instructions that it knows."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return " ".join(dict.fromkeys(x for x in lines if x.startswith(("model name", "flags"))))
    return f"{device.type} {platform.processor()}"
