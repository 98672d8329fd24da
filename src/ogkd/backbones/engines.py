"""How images are encoded: in float32, or faster with products in half precision.

An engine changes only the image features, and gives the backbone another digest, so cached
features and fitted models of two engines are never mixed.
"""

from __future__ import annotations

import copy
import hashlib
import subprocess
import sys
from functools import cache

from ogkd.backbones._towers import HALVES, TowersBackbone
from ogkd.backbones.base import Backbone
from ogkd.errors import ConfigError

ENGINES = {
    "torch": "float32, the reference",
    "bf16": "products in half precision, for GPUs; features differ a little",
    "fp16": "the same with more digits and a smaller range",
}
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
    if engine not in ENGINES:
        raise ConfigError(
            f"There is no engine '{engine}', only {', '.join(ENGINES)}.", argument="engine"
        )


def with_engine(backbone: Backbone, engine: str) -> Backbone:
    """The same backbone, sharing its weights, with its images encoded by one of ENGINES."""
    require_engine(engine)
    backbone = without_engine(backbone)
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
