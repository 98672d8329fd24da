"""ResNets: torchvision's (FLAIR, BioViL, MedCLIP) and CLIP's (PMC-CLIP) are one tower.

A patch is a position of the last map. There are no deeper features and no tokens to split.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, max_pool2d

from ogkd.backbones._layers import CrossAttention


@dataclass(frozen=True)
class ResNetSpec:
    """Everything that determines what the image tower computes, besides its weights."""

    width: int  # of the first stage; the last map has 32 times as many channels
    depths: tuple[int, ...]  # blocks of each stage
    image_size: int
    embed_dim: int
    # "linear"; "mlp", with a norm over the batch's statistics (BioViL); "attention" (CLIP)
    head: str = "linear"
    heads: int = 0  # of the attention
    reduced: int = 0  # channels that the last map is reduced to first (BioViL-T)
    # CLIP: three convolutions before the first block, and average pools instead of strides.
    pools: bool = False

    @property
    def grid(self) -> int:
        """Positions along one side of the last map."""
        return -(-self.image_size // 32)


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with the statistics of the training."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias, self.running_mean, self.running_var = (
            nn.Parameter(torch.empty(channels)) for _ in range(4)
        )

    def forward(self, values: Tensor) -> Tensor:
        """Channels are the second axis."""
        return batch_norm(values, self.running_mean, self.running_var, self.weight, self.bias)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut, under the names that all checkpoints have."""

    def __init__(self, inputs: int, width: int, stride: int, *, pools: bool) -> None:
        super().__init__()
        outputs, step = 4 * width, 1 if pools else stride
        self.conv1, self.bn1 = _convolution(inputs, width, 1), FrozenBatchNorm(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, step), FrozenBatchNorm(width)
        self.conv3, self.bn3 = _convolution(width, outputs, 1), FrozenBatchNorm(outputs)
        self.pool = nn.AvgPool2d(stride) if pools and stride > 1 else nn.Identity()
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            shortcut = _convolution(inputs, outputs, 1, step)
            self.downsample = nn.Sequential(shortcut, FrozenBatchNorm(outputs))

    def forward(self, values: Tensor) -> Tensor:
        inner = self.bn1(self.conv1(values)).relu()
        inner = self.pool(self.bn2(self.conv2(inner)).relu())
        final: Tensor = self.bn3(self.conv3(inner)) + self.downsample(self.pool(values))
        return final.relu()


class MapAttention(nn.Module):
    """CLIP's pooling: the mean of all positions attends to itself and to each of them."""

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        channels = 32 * spec.width
        self.positions = nn.Parameter(torch.empty(spec.grid**2 + 1, channels))
        self.attention = CrossAttention(channels, channels, spec.heads, spec.embed_dim)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens [B, P, c] to the image's feature and those of the positions."""
        tokens = torch.cat([tokens.mean(dim=1, keepdim=True), tokens], dim=1) + self.positions
        pooled: Tensor = self.attention(tokens[:, :1], tokens)
        return pooled[:, 0], self.attention.alone(tokens[:, 1:])


class MapProjection(nn.Module):
    """Each position projected; the image's feature is their mean."""

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        channels, d = 32 * spec.width, spec.embed_dim
        if spec.reduced:
            self.reduce = nn.Linear(channels, spec.reduced, bias=False)
            # Stands for what changed since an earlier image, if there is none.
            self.no_change = nn.Parameter(torch.empty(spec.reduced))
            channels = 2 * spec.reduced
        if spec.head == "mlp":
            self.fc1, self.norm = nn.Linear(channels, d, bias=False), FrozenBatchNorm(d)
            channels = d
        self.fc2 = nn.Linear(channels, d, bias=spec.head == "mlp")
        self.spec = spec

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if self.spec.reduced:
            reduced = self.reduce(tokens)
            tokens = torch.cat([reduced, self.no_change.expand_as(reduced)], dim=2)
        if self.spec.head == "mlp":
            tokens = self.norm(self.fc1(tokens).mT).mT.relu()
        projected: Tensor = self.fc2(tokens)
        return projected.mean(dim=1), projected


class ResNetTower(nn.Module):
    """Map pixels [B, 3, H, W] to projected features."""

    deep_parts: tuple[int, ...] = ()

    def __init__(self, spec: ResNetSpec) -> None:
        super().__init__()
        self.spec = spec
        width = spec.width
        if spec.pools:
            first, self.conv3 = width // 2, _convolution(width // 2, width, 3)
            self.conv1, self.bn1 = _convolution(3, first, 3, 2), FrozenBatchNorm(first)
            self.conv2, self.bn2 = _convolution(first, first, 3), FrozenBatchNorm(first)
            self.bn3 = FrozenBatchNorm(width)
        else:
            self.conv1, self.bn1 = _convolution(3, width, 7, 2), FrozenBatchNorm(width)
        inputs = width
        for stage, depth in enumerate(spec.depths):
            inner = width * 2**stage
            blocks = []
            for block in range(depth):
                stride = 2 if stage and not block else 1
                blocks.append(Bottleneck(inputs, inner, stride, pools=spec.pools))
                inputs = 4 * inner
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.head = MapAttention(spec) if spec.head == "attention" else MapProjection(spec)

    def forward(
        self, pixels: Tensor, *, patches: bool, deep: bool = False, change: None = None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Global features [B, d] and, if wanted, patches [B, P, d]; there are no deeper ones.

        It has no blocks of tokens that a `change` could see.
        """
        values = self.bn1(self.conv1(pixels)).relu()
        if self.spec.pools:
            values = self.bn2(self.conv2(values)).relu()
            values = torch.nn.functional.avg_pool2d(self.bn3(self.conv3(values)).relu(), 2)
        else:
            values = max_pool2d(values, 3, stride=2, padding=1)
        for stage in range(len(self.spec.depths)):
            values = self.get_submodule(f"layer{stage + 1}")(values)
        image, parts = self.head(values.flatten(2).mT)
        return image, parts if patches else None, None
