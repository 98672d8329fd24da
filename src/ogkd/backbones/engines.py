"""Other ways to compute image features: faster, but not the same numbers.

An engine replaces only `encode_images` and gives the backbone another digest, so cached features
and fitted models of two engines are never mixed. `bf16` and `fp16` compute the products of the
image tower in half precision, which GPUs do faster. `onnx` and `onnx-int8` run it in ONNX Runtime
on a CPU (`pip install "ogkd[onnx]"`). Converting it takes about a minute, once: the graph is kept
in the cache.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ogkd.backbones._half import HALVES, HalfProducts, half_problem
from ogkd.backbones._onnx_tower import int8_layers, open_session, too_shallow, tower_graph
from ogkd.backbones._towers import TowersBackbone
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.errors import ConfigError

ENGINES = {
    "torch": "float32, the reference",
    "onnx": "float32 in ONNX Runtime; CPU only, features equal up to rounding",
    "onnx-int8": "8-bit products in most of the image tower; CPU only, features differ a little",
    "bf16": "products in half precision, for GPUs; features differ a little",
    "fp16": "the same with more digits and a smaller range",
}

ON_CPU = ("onnx", "onnx-int8")  # they run nowhere else
_EXTRA = ("onnx", "onnxscript", "onnxruntime")


class EngineBackbone(Backbone):
    """A backbone whose images are encoded by an engine; its texts are encoded by `base`."""

    def __init__(self, base: Backbone, engine: str) -> None:
        for name in Backbone.__annotations__:
            setattr(self, name, getattr(base, name))
        self.base = base
        self.engine = engine
        self.digest = digest_with(base.digest, engine)
        self._sessions: dict[tuple[bool, bool], Any] = {}

    def release(self) -> None:
        self.base.release()

    def encode_images(
        self, pixels: Tensor, *, patches: bool = True, deep: bool = False
    ) -> ImageFeatures:
        self.check_pixels(pixels)
        if not len(pixels):
            none = torch.empty(0, self.patch_grid[0] * self.patch_grid[1], self.embed_dim)
            inner = torch.empty(0, sum(self.deep_parts)) if deep else None
            return ImageFeatures(none[:, 0], none if patches else None, inner)
        if (patches, deep) not in self._sessions:
            graph = tower_graph(self.base, self.engine, patches=patches, deep=deep)
            self._sessions[patches, deep] = open_session(graph)
        session = self._sessions[patches, deep]
        # One by one: 8-bit activations share one scale, which must not depend on the other images.
        images = pixels.to("cpu", torch.float32).contiguous().numpy()
        found = [session.run(None, {"pixels": image[None]}) for image in images]
        parts = [torch.cat(list(map(torch.from_numpy, part))) for part in zip(*found, strict=True)]
        return ImageFeatures(parts[0], parts[1] if patches else None, parts[-1] if deep else None)

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


class HalfBackbone(EngineBackbone):
    """A backbone whose images are encoded with products in half precision, where it is."""

    base: TowersBackbone

    def encode_images(
        self, pixels: Tensor, *, patches: bool = True, deep: bool = False
    ) -> ImageFeatures:
        with self._products:
            return self.base.encode_images(pixels, patches=patches, deep=deep)

    @cached_property
    def _products(self) -> HalfProducts:
        return HalfProducts(HALVES[self.engine])


def digest_with(digest: str, engine: str) -> str:
    """The digest of a backbone with this digest when `engine` encodes its images."""
    if engine == "torch":
        return digest
    return hashlib.sha256(f"{digest} {engine}".encode()).hexdigest()


def without_engine(backbone: Backbone) -> Backbone:
    """The backbone without the engine that it was given, if any."""
    return backbone.base if isinstance(backbone, EngineBackbone) else backbone


def require_engine(engine: str) -> None:
    """Raise if there is no engine of that name, or if the packages that it needs are missing."""
    if engine not in ENGINES:
        known = "; ".join(f"{name} ({about})" for name, about in ENGINES.items())
        raise ConfigError(
            f"There is no engine '{engine}'. Known engines: {known}.", argument="engine"
        )
    if engine not in ON_CPU:
        return
    for package in _EXTRA:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"The engine {engine} needs the package {package}, which is not installed. "
                'Install it with: pip install "ogkd[onnx]".',
                argument="engine",
            ) from error


def with_engine(backbone: Backbone, engine: str) -> Backbone:
    """The same backbone with its images encoded by `engine`, one of ENGINES."""
    require_engine(engine)
    backbone = without_engine(backbone)
    if engine == "torch":
        return backbone
    if engine in HALVES:
        return _half(backbone, engine)
    if backbone.device.type != "cpu":
        raise ConfigError(
            f"The engine {engine} runs on the CPU, but {backbone.name} is on {backbone.device}. "
            "Use the engine torch there, or the device cpu.",
            argument="engine",
        )
    if engine == "onnx-int8" and not int8_layers(backbone):
        raise too_shallow(backbone)
    return EngineBackbone(backbone, engine)


def _half(backbone: Backbone, engine: str) -> Backbone:
    if not isinstance(backbone, TowersBackbone):  # of a plugin: its computation is its own
        raise ConfigError(
            f"The engine {engine} is for the towers of this package, not for {backbone.name}. Use "
            "the engine torch.",
            argument="engine",
        )
    if problem := half_problem(str(backbone.device), engine):
        raise ConfigError(
            f"{backbone.device} cannot compute in {engine} ({problem}). Use the engine torch.",
            argument="engine",
        )
    return HalfBackbone(backbone, engine)
