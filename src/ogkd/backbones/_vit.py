"""timm's plain vision transformer, with open_clip's head on top.

A block is norm, attention, LayerScale, norm, MLP, LayerScale; if a checkpoint has no LayerScale,
identities take its place. Written here, because importing a model class of transformers takes
longer than encoding an image.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ogkd.backbones._folder import KeyTable, Weights
from ogkd.backbones._open_clip_config import OpenClipConfig, TimmConfigFile
from ogkd.backbones._towers import deep_blocks, deep_features
from ogkd.errors import BackboneError

_TRUNK = "visual.trunk."
_CACHE = 16 * 2**20  # bytes; larger activations also need new memory pages at each call
_EPS = 1e-6  # timm's LayerNorm in every network that _NAME admits
_NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch\d+_(?:\d+|dinov2)(?:_in21k)?")
# The layers of a block: timm's names and ours.
_SAME = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.proj": "proj",
    "mlp.fc1": "fc1",
    "mlp.fc2": "fc2",
}
# width, depth, heads
_SIZES = {
    "tiny": (192, 12, 3),
    "small": (384, 12, 6),
    "base": (768, 12, 12),
    "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}


@dataclass(frozen=True)
class VisionSpec:
    """Everything that determines what the image tower computes, besides its weights."""

    width: int
    depth: int
    heads: int
    mlp_ratio: int
    patch: int
    image_size: int
    grid: int
    layer_scale: bool
    qkv_bias: bool
    late_norm: bool  # timm's fc_norm: the final norm comes after pooling, not before
    pool: str  # "token" or "avg"
    proj: str  # "linear", "mlp", "none" or "trunk"
    proj_bias: bool
    embed_dim: int


def vision_spec(config: OpenClipConfig, timm: TimmConfigFile, weights: Weights) -> VisionSpec:
    """Derive the architecture from the shapes of the weights, and from names."""
    vision, args = config.vision_cfg, timm.model_args
    state, file = weights.tensors, weights.file
    if not (match := _NAME.fullmatch(timm.architecture)):
        raise BackboneError(
            f"The image tower {timm.architecture} is not one of timm's plain vision transformers."
        )
    width, depth, heads = _SIZES[match[1]]
    if _TRUNK + "norm_pre.weight" in state:
        raise BackboneError(f"{file} has a norm before its blocks, which is not supported.")
    patch = weights.shape(_TRUNK + "patch_embed.proj.weight", axes=4)[-1]
    grid = vision.image_size // patch
    positions = weights.shape(_TRUNK + "pos_embed", axes=3)[1]
    if grid * grid + 1 != positions:
        raise BackboneError(
            f"{file} has {positions} position embeddings, but image_size {vision.image_size} in "
            f"open_clip_config.json needs {grid * grid + 1}."
        )
    pool: str = vision.timm_pool
    if pool == "default":
        pool = args.global_pool
        if vision.timm_proj in ("none", "trunk"):
            raise BackboneError("open_clip_config.json has neither timm_pool nor a projection.")
    width, heads = args.embed_dim or width, args.num_heads or heads
    if width % heads:
        raise BackboneError(f"The image tower's width {width} is not a multiple of {heads} heads.")
    return VisionSpec(
        width=width,
        depth=args.depth or depth,
        heads=heads,
        mlp_ratio=args.mlp_ratio or 4,
        patch=patch,
        image_size=vision.image_size,
        grid=grid,
        layer_scale=any(key.endswith(".ls1.gamma") for key in state),
        qkv_bias=any(key.endswith(".attn.qkv.bias") for key in state),
        late_norm=_TRUNK + "fc_norm.weight" in state,
        pool=pool,
        proj=vision.timm_proj,
        proj_bias=vision.timm_proj_bias,
        embed_dim=config.embed_dim,
    )


class _Scale(nn.Module):
    """LayerScale: one factor per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        return values * self.gamma


class _Block(nn.Module):
    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        width, inner = spec.width, spec.width * spec.mlp_ratio
        self.heads = spec.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, _EPS), nn.LayerNorm(width, _EPS)
        self.query, self.key, self.value = (
            nn.Linear(width, width, bias=spec.qkv_bias) for _ in range(3)
        )
        self.proj = nn.Linear(width, width)
        self.fc1, self.act, self.fc2 = nn.Linear(width, inner), nn.GELU(), nn.Linear(inner, width)
        self.ls1, self.ls2 = (
            _Scale(width) if spec.layer_scale else nn.Identity() for _ in range(2)
        )

    def forward(self, hidden: Tensor, *, first_only: bool = False) -> Tensor:
        """Tokens [B, T, w] to tokens, or to the first one alone, [B, 1, w]."""
        count = 1 if first_only else hidden.shape[1]
        normed = self.norm1(hidden)
        query, key, value = (
            states.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
            for states in (self.query(normed[:, :count]), self.key(normed), self.value(normed))
        )
        mixed = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden = hidden[:, :count] + self.ls1(self.proj(mixed))
        final: Tensor = hidden + self.ls2(self.fc2(self.act(self.fc1(self.norm2(hidden)))))
        return final


class ImageTower(nn.Module):
    """Map pixels [B, 3, H, W] to projected features."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.cls_token = nn.Parameter(torch.zeros(1, 1, spec.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, spec.grid**2 + 1, spec.width))
        self.patch_embed = nn.Conv2d(3, spec.width, spec.patch, stride=spec.patch)
        self.blocks = nn.ModuleList(_Block(spec) for _ in range(spec.depth))
        norm, nothing = nn.LayerNorm(spec.width, _EPS), nn.Identity()
        self.norm: nn.Module = nothing if spec.late_norm else norm
        self.late_norm: nn.Module = norm if spec.late_norm else nothing
        self.head = _head(spec)

    def forward(
        self, pixels: Tensor, *, patches: bool, deep: bool = False
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Global features [B, d] and, if wanted, patches [B, P, d] and deep [B, D].

        Only the deeper features are normalised.
        """
        if pixels.device.type != "cpu" or torch.compiler.is_compiling():
            return self._encode(pixels, patches=patches, deep=deep)
        chunks = pixels.split(self._at_once())
        images, *others = zip(
            *(self._encode(chunk, patches=patches, deep=deep) for chunk in chunks), strict=True
        )
        parts, inner = (
            None if kind[0] is None else torch.cat([part for part in kind if part is not None])
            for kind in others
        )
        return torch.cat(images), parts, inner

    def first_tokens(self, pixels: Tensor) -> Tensor:
        """What enters the first block: the class token and the patches, [B, 1 + P, w]."""
        patches = self.patch_embed(pixels).flatten(2).transpose(1, 2)
        first = self.cls_token.expand(patches.shape[0], -1, -1)
        return torch.cat([first, patches], dim=1) + self.pos_embed

    def _encode(
        self, pixels: Tensor, *, patches: bool, deep: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        hidden = self.first_tokens(pixels)
        # The last block skips the patches if they are not needed.
        first_only = self.has_class_token and not patches
        wanted = deep_blocks(len(self.blocks)) if deep else ()
        states = []
        for number, block in enumerate(self.blocks, start=1):
            hidden = block(hidden, first_only=first_only and number == len(self.blocks))
            if number in wanted:
                states.append(hidden)
        tokens = self.norm(hidden)  # [B, 1 + P, w], or [B, 1, w]
        pooled = tokens[:, 0] if self.has_class_token else tokens[:, 1:].mean(dim=1)
        image = self.head(self.late_norm(pooled))
        # Patches reach the shared space in the same way as the pooled token.
        parts = self.head(self.late_norm(tokens[:, 1:])) if patches else None
        skipped = 0 if self.has_class_token else 1  # a class token that nothing was trained to read
        inner = [state[:, skipped:] for state in states]
        deeper = deep_features(inner, class_token=self.has_class_token) if deep else None
        return image, parts, deeper

    @property
    def has_class_token(self) -> bool:
        """Whether the image feature comes from a class token, not from a mean of patches."""
        return self.spec.pool == "token"

    def _at_once(self) -> int:
        """How many images to encode together so that the MLP's hidden states fit in the cache."""
        spec = self.spec
        floats = (spec.grid * spec.grid + 1) * spec.width * spec.mlp_ratio  # of one image
        return max(1, _CACHE // (4 * floats))


def _head(spec: VisionSpec) -> nn.Module:
    if spec.proj == "mlp":
        hidden = 2 * spec.embed_dim
        return nn.Sequential(
            OrderedDict(
                fc1=nn.Linear(spec.width, hidden),
                act=nn.GELU(),
                fc2=nn.Linear(hidden, spec.embed_dim, bias=spec.proj_bias),
            )
        )
    if spec.proj == "none":
        if spec.width != spec.embed_dim:
            raise BackboneError(
                f"The image tower is {spec.width} wide, but embed_dim is {spec.embed_dim}."
            )
        return nn.Identity()
    return nn.Linear(spec.width, spec.embed_dim, bias=spec.proj_bias or spec.proj == "trunk")


def vision_table(tower: ImageTower, prefix: str) -> KeyTable:
    """Map keys of the file to parameters of `tower`, whose name in the whole model is `prefix`."""
    spec = tower.spec
    table: dict[str, tuple[str, ...]] = {
        f"{_TRUNK}{key}": (f"{prefix}{key}",) for key in ("cls_token", "pos_embed")
    }

    def both(key: str, *targets: str, bias: bool = True) -> None:
        for part in ("weight", "bias") if bias else ("weight",):
            table[f"{key}.{part}"] = tuple(f"{target}.{part}" for target in targets)

    both(f"{_TRUNK}patch_embed.proj", f"{prefix}patch_embed")
    for index in range(spec.depth):
        key, block = f"{_TRUNK}blocks.{index}.", f"{prefix}blocks.{index}."
        for theirs, ours in _SAME.items():
            both(key + theirs, block + ours)
        qkv = (f"{block}{name}" for name in ("query", "key", "value"))
        both(f"{key}attn.qkv", *qkv, bias=spec.qkv_bias)
        if spec.layer_scale:
            table |= {f"{key}{ls}.gamma": (f"{block}{ls}.gamma",) for ls in ("ls1", "ls2")}
    norm, target = ("fc_norm", "late_norm") if spec.late_norm else ("norm", "norm")
    both(f"{_TRUNK}{norm}", f"{prefix}{target}")
    if spec.proj == "linear":
        both("visual.head.proj", f"{prefix}head", bias=spec.proj_bias)
    elif spec.proj == "trunk":
        both(f"{_TRUNK}head", f"{prefix}head")
    elif spec.proj == "mlp":
        both("visual.head.mlp.fc1", f"{prefix}head.fc1")
        both("visual.head.mlp.fc2", f"{prefix}head.fc2", bias=spec.proj_bias)
    return table
