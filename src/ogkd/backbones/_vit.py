"""timm's plain vision transformer as transformers' Dinov2Model, with open_clip's head on top.

Dinov2's blocks are timm's blocks: norm, attention, LayerScale, norm, MLP, LayerScale. If a
checkpoint has no LayerScale, identities take its place.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Dinov2Config, Dinov2Model

from ogkd.backbones._folder import KeyTable, Weights
from ogkd.backbones._open_clip_config import OpenClipConfig, TimmConfigFile
from ogkd.errors import BackboneError

_TRUNK = "visual.trunk."
_CACHE = 16 * 2**20  # bytes; larger activations also need new memory pages at each call
_EPS = 1e-6  # timm's LayerNorm in every network that _NAME admits
_NAME = re.compile(r"(?:vit|deit)_(tiny|small|base|large|huge)_patch\d+_(?:\d+|dinov2)(?:_in21k)?")
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
            f"The image tower {timm.architecture} is not supported. ogkd builds timm's plain "
            f"vision transformers: vit_ or deit_, then {', '.join(_SIZES)}, such as "
            "vit_base_patch16_224 and vit_small_patch14_dinov2."
        )
    width, depth, heads = _SIZES[match[1]]
    if _TRUNK + "norm_pre.weight" in state:
        raise BackboneError(
            f"{file} has a norm before its blocks (visual.trunk.norm_pre), as CLIP's own vision "
            "transformers do, which this format does not support; look for the same model in "
            "transformers' format (CLIPModel)."
        )

    patch = weights.shape(_TRUNK + "patch_embed.proj.weight", axes=4)[-1]
    grid = vision.image_size // patch
    positions = weights.shape(_TRUNK + "pos_embed", axes=3)[1]
    if grid * grid + 1 != positions:
        side = round((positions - 1) ** 0.5)
        raise BackboneError(
            f"{file} has {positions} position embeddings (images of about {side * patch} px), but "
            f"image_size is {vision.image_size} in open_clip_config.json, which needs "
            f"{grid * grid + 1}. Correct it."
        )
    pool: str = vision.timm_pool
    if pool == "default":
        pool = args.global_pool
        if vision.timm_proj in ("none", "trunk"):
            raise BackboneError(
                "open_clip_config.json has no timm_pool and no projection after it, so this image "
                'tower has no global feature. Set timm_pool to "token" or "avg".'
            )
    width, heads = args.embed_dim or width, args.num_heads or heads
    if width % heads:
        raise BackboneError(
            f"timm/config.json has embed_dim {width}, which is not a multiple of its {heads} "
            "attention heads. Correct the file."
        )
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


class ImageTower(nn.Module):
    """Map pixels [B, 3, H, W] to projected features."""

    def __init__(self, spec: VisionSpec) -> None:
        super().__init__()
        self.spec = spec
        self.trunk = Dinov2Model(
            Dinov2Config(
                hidden_size=spec.width,
                num_hidden_layers=spec.depth,
                num_attention_heads=spec.heads,
                mlp_ratio=spec.mlp_ratio,
                image_size=spec.image_size,
                patch_size=spec.patch,
                qkv_bias=spec.qkv_bias,
                layer_norm_eps=_EPS,
                hidden_act="gelu",
                use_mask_token=False,
                attn_implementation="sdpa",
            )
        )
        if not spec.layer_scale:
            for layer in self.trunk.encoder.layer:
                layer.layer_scale1, layer.layer_scale2 = nn.Identity(), nn.Identity()
        self.late_norm: nn.Module = nn.Identity()
        if spec.late_norm:
            self.trunk.layernorm, self.late_norm = nn.Identity(), self.trunk.layernorm
        self.head = _head(spec)

    def forward(self, pixels: Tensor, *, patches: bool) -> tuple[Tensor, Tensor | None]:
        """Global features [B, d] and, if wanted, patch features [B, P, d]; not normalised."""
        if pixels.device.type != "cpu" or torch.compiler.is_compiling():
            return self._encode(pixels, patches=patches)
        parts = [self._encode(part, patches=patches) for part in pixels.split(self._at_once())]
        image = torch.cat([part for part, _ in parts])
        found = [part for _, part in parts if part is not None]
        return image, torch.cat(found) if found else None

    def _encode(self, pixels: Tensor, *, patches: bool) -> tuple[Tensor, Tensor | None]:
        if self.spec.pool == "token" and not patches:
            return self.head(self.late_norm(self._class_token(pixels))), None
        tokens = self.trunk(pixels).last_hidden_state  # [B, 1 + P, w]
        pooled = tokens[:, 0] if self.spec.pool == "token" else tokens[:, 1:].mean(dim=1)
        image = self.head(self.late_norm(pooled))
        # Patches reach the shared space in the same way as the pooled token.
        return image, self.head(self.late_norm(tokens[:, 1:])) if patches else None

    def _class_token(self, pixels: Tensor) -> Tensor:
        """The class token [B, w]; the last block skips the patches, which nobody reads."""
        *layers, last = self.trunk.encoder.layer
        hidden: Tensor = self.trunk.embeddings(pixels)
        for layer in layers:
            hidden = layer(hidden)
        to_query, to_key, to_value, out = (
            last.attention.get_submodule(name) for name in _attention_names(last.attention)
        )
        normed = last.norm1(hidden)
        query, key, value = (
            states.unflatten(-1, (self.spec.heads, -1)).transpose(1, 2)  # [B, heads, tokens, .]
            for states in (to_query(normed[:, :1]), to_key(normed), to_value(normed))
        )
        mixed = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        token = hidden[:, :1] + last.layer_scale1(out(mixed))  # [B, 1, w]
        token = token + last.layer_scale2(last.mlp(last.norm2(token)))
        final: Tensor = self.trunk.layernorm(token[:, 0])
        return final

    def _at_once(self) -> int:
        """How many images to encode together so that the MLP's hidden states fit in the cache."""
        spec = self.spec
        floats = (spec.grid * spec.grid + 1) * spec.width * spec.mlp_ratio  # of one image
        return max(1, _CACHE // (4 * floats))


def _attention_names(attention: nn.Module) -> tuple[str, str, str, str]:
    """Query, key, value and output layers; transformers 5.18 renamed them."""
    if hasattr(attention, "q_proj"):
        return "q_proj", "k_proj", "v_proj", "o_proj"
    return "attention.query", "attention.key", "attention.value", "output.dense"


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
                f"open_clip_config.json has no image projection, but the image tower is "
                f"{spec.width} wide and embed_dim is {spec.embed_dim}. Correct the file."
            )
        return nn.Identity()
    return nn.Linear(spec.width, spec.embed_dim, bias=spec.proj_bias or spec.proj == "trunk")


def vision_table(tower: ImageTower, prefix: str) -> KeyTable:
    """Map keys of the file to parameters of `tower`, whose name in the whole model is `prefix`."""
    spec = tower.spec
    trunk = f"{prefix}trunk."
    table: dict[str, tuple[str, ...]] = {
        f"{_TRUNK}cls_token": (f"{trunk}embeddings.cls_token",),
        f"{_TRUNK}pos_embed": (f"{trunk}embeddings.position_embeddings",),
    }

    def both(key: str, *targets: str, bias: bool = True) -> None:
        for part in ("weight", "bias") if bias else ("weight",):
            table[f"{key}.{part}"] = tuple(f"{target}.{part}" for target in targets)

    both(f"{_TRUNK}patch_embed.proj", f"{trunk}embeddings.patch_embeddings.projection")
    *qkv, out = _attention_names(tower.trunk.encoder.layer[0].attention)
    for index in range(spec.depth):
        key, layer = f"{_TRUNK}blocks.{index}.", f"{trunk}encoder.layer.{index}."
        for same in ("norm1", "norm2", "mlp.fc1", "mlp.fc2"):
            both(key + same, layer + same)
        both(f"{key}attn.qkv", *(f"{layer}attention.{x}" for x in qkv), bias=spec.qkv_bias)
        both(f"{key}attn.proj", f"{layer}attention.{out}")
        if spec.layer_scale:
            table[f"{key}ls1.gamma"] = (f"{layer}layer_scale1.lambda1",)
            table[f"{key}ls2.gamma"] = (f"{layer}layer_scale2.lambda1",)
    if spec.late_norm:
        both(f"{_TRUNK}fc_norm", f"{prefix}late_norm")
    else:
        both(f"{_TRUNK}norm", f"{trunk}layernorm")
    if spec.proj == "linear":
        both("visual.head.proj", f"{prefix}head", bias=spec.proj_bias)
    elif spec.proj == "trunk":
        both(f"{_TRUNK}head", f"{prefix}head")
    elif spec.proj == "mlp":
        both("visual.head.mlp.fc1", f"{prefix}head.fc1")
        both("visual.head.mlp.fc2", f"{prefix}head.fc2", bias=spec.proj_bias)
    return table
