"""Other ways to compute image features: faster, but not the same numbers.

An engine replaces `encode_images` alone and gives the backbone a digest of its own, so cached
features and fitted models of two engines are never mixed.
"""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import ConfigError
from ogkd.images.transforms import RGB, normalise

__all__ = [
    "ENGINES",
    "EngineBackbone",
    "digest_with",
    "require_engine",
    "with_engine",
    "without_engine",
]

ENGINES = {
    "torch": "float32, the reference",
    "int8": "8-bit products in most of the image tower; CPU only, features differ a little",
    "int8-fast": "8-bit products in more of it; CPU only, features differ somewhat more",
}

_KERNELS = ("onednn", "x86", "fbgemm")  # torch's names, the fastest first
_SMOOTHING = 0.4  # how much of an input channel's range goes over to the weights
# Without VNNI the CPU adds pairs of 8-bit products in 16 bits, which overflow if both weights
# are near 127. 100 makes that rare at the price of a third of a bit.
_LEVELS = 100
_SAMPLES = 8  # made-up images that show the range of each channel


class EngineBackbone(Backbone):
    """A backbone whose images are encoded by an engine; its texts are the base's own."""

    def __init__(self, base: Backbone, engine: str, images: Backbone) -> None:
        for name in Backbone.__annotations__:
            setattr(self, name, getattr(base, name))
        self.base = base
        self.engine = engine
        self.digest = digest_with(base.digest, engine)
        self._images = images

    @torch.no_grad()
    def encode_images(self, pixels: Tensor, *, patches: bool = True) -> ImageFeatures:
        # One by one: activations share one scale, and an image's must not depend on the others.
        found = [self._images.encode_images(one, patches=patches) for one in pixels.split(1)]
        parts = [features.patches for features in found if features.patches is not None]
        return ImageFeatures(
            globals=torch.cat([features.globals for features in found]),
            patches=torch.cat(parts) if parts else None,
        )

    def pieces(self, text: str) -> list[int]:
        return self.base.pieces(text)

    def pack(self, pieces: Sequence[Sequence[int]]) -> Tokens:
        return self.base.pack(pieces)

    def embed(self, tokens: Tokens) -> Tensor:
        return self.base.embed(tokens)

    def encode_text(
        self, embeddings: Tensor, tokens: Tokens, *, dropout: TextDropout | None = None
    ) -> Tensor:
        return self.base.encode_text(embeddings, tokens, dropout=dropout)


def digest_with(digest: str, engine: str) -> str:
    """The digest of a backbone of this digest when `engine` encodes its images."""
    if engine == "torch":
        return digest
    return hashlib.sha256(f"{digest} {engine}".encode()).hexdigest()


def without_engine(backbone: Backbone) -> Backbone:
    """The backbone as it was before it was given an engine."""
    return backbone.base if isinstance(backbone, EngineBackbone) else backbone


def require_engine(engine: str) -> None:
    """Refuse a name that is not an engine's."""
    if engine not in ENGINES:
        known = "; ".join(f"{name} ({about})" for name, about in ENGINES.items())
        raise ConfigError(f"There is no encoder engine '{engine}'. Known engines: {known}.")


def with_engine(backbone: Backbone, engine: str) -> Backbone:
    """The same backbone with its images encoded by `engine`, one of ENGINES."""
    require_engine(engine)
    backbone = without_engine(backbone)
    if engine == "torch":
        return backbone
    if backbone.device.type != "cpu":
        raise ConfigError(
            f"The engine {engine} runs on the CPU, but {backbone.name} is on {backbone.device}. "
            "Use the engine torch there, or the device cpu."
        )
    return EngineBackbone(backbone, engine, _in_int8(backbone, everywhere=engine == "int8-fast"))


class _Int8Linear(nn.Module):
    """A linear layer with 8-bit weights per output channel and inputs scaled as they come."""

    def __init__(self, linear: nn.Linear, largest: Tensor, kernel: str) -> None:
        super().__init__()
        # Wide input channels are shrunk and their weights enlarged by as much: the product is
        # the same, but a few wide channels no longer set the step size of all the others.
        stretch = largest.clamp_min(1e-5) ** _SMOOTHING
        stretch = stretch / stretch.mean()
        self.shrink = 1 / stretch
        weight = linear.weight * stretch
        scales = (weight.abs().amax(dim=1) / _LEVELS).clamp_min(1e-12)
        with _quantised_kernels(kernel):
            zeros = torch.zeros(len(weight), dtype=torch.long)
            quantised = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(quantised, linear.bias)

    def forward(self, values: Tensor) -> Tensor:
        product: Tensor = torch.ops.quantized.linear_dynamic(values * self.shrink, self.packed)
        return product


@torch.no_grad()
def _in_int8(backbone: Backbone, *, everywhere: bool) -> Backbone:
    """A twin that shares every weight but those of the image tower's inner blocks.

    The layers that narrow (an MLP's second one) lose most by 8 bits: only `everywhere` takes them.
    """
    kernel = next((k for k in _KERNELS if k in torch.backends.quantized.supported_engines), None)
    if kernel is None or not hasattr(torch, "quantize_per_channel"):
        raise ConfigError(
            f"torch {torch.__version__} has no 8-bit linear layers for this machine. "
            "Use the engine torch."
        )
    modules = {key: value for key, value in vars(backbone).items() if isinstance(value, nn.Module)}
    largest = _input_ranges(backbone, list(modules.values()))
    # The first and the last block see the widest ranges and stay in float32.
    inner = [
        layer
        for module in modules.values()
        for blocks in module.modules()
        if isinstance(blocks, nn.ModuleList)
        for block in list(blocks)[1:-1]
        for layer in block.modules()
        if layer in largest and (everywhere or layer.in_features <= layer.out_features)
    ]
    if not inner:
        raise ConfigError(
            f"The image tower of {backbone.name} has no inner blocks with linear layers, so the "
            "int8 engines have nothing to speed up. Use the engine torch."
        )
    # deepcopy takes what it finds in the memo as it is: weights are shared, layers replaced.
    memo: dict[int, object] = {
        id(layer): _Int8Linear(layer, largest[layer], kernel) for layer in inner
    }
    for module in modules.values():
        memo |= {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    twin = copy.copy(backbone)
    for key, module in modules.items():
        setattr(twin, key, copy.deepcopy(module, memo))
    return twin


def _input_ranges(backbone: Backbone, modules: Sequence[nn.Module]) -> dict[nn.Linear, Tensor]:
    """Largest absolute input per channel of each linear layer that images pass through."""
    found: dict[nn.Linear, Tensor] = {}

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(layer, nn.Linear)
        seen = inputs[0].abs().flatten(0, -2).amax(dim=0)
        found[layer] = torch.maximum(found[layer], seen) if layer in found else seen

    layers = {layer for module in modules for layer in module.modules() if type(layer) is nn.Linear}
    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    try:
        for image in _made_up_images(backbone.preprocessing.size):
            pixels = normalise([image], backbone.preprocessing)
            backbone.encode_images(pixels)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _made_up_images(size: int) -> Iterator[RGB]:
    """Smooth noise at several scales, grey or coloured, some round in the dark; always the same."""
    rng = torch.Generator().manual_seed(0)
    across = torch.linspace(-1, 1, size)
    inside = across[:, None] ** 2 + across[None, :] ** 2 < 0.7
    for index in range(_SAMPLES):
        values = torch.randn(1, generator=rng) * torch.ones(3, size, size)
        for cells in (2, 4, 8, 16, 32, 64):
            grey = torch.randn(1, 1, cells, cells, generator=rng)
            colour = torch.randn(1, 3, cells, cells, generator=rng) * (0.7 if index % 2 else 0.0)
            strength = torch.rand(1, generator=rng)
            values += strength * interpolate(grey + colour, size=(size, size), mode="bilinear")[0]
        image = values.sigmoid() * (inside if index % 3 == 0 else 1.0)
        yield (image * 255).byte().permute(1, 2, 0).numpy()


@contextmanager
def _quantised_kernels(kernel: str) -> Iterator[None]:
    """Weights packed in here are for `kernel`; torch's own choice comes back afterwards."""
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = kernel
    try:
        with warnings.catch_warnings():
            # torch says that its quantised tensors will go; `_in_int8` looks whether they have.
            warnings.simplefilter("ignore", UserWarning)
            yield
    finally:
        torch.backends.quantized.engine = before
