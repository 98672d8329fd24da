"""Biomed-DPT: a learned prompt near the bank's, and zeros over four patches of the image tower."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from ogkd.backbones.base import Backbone
from ogkd.backbones.changes import BlankPatches, towers_of, with_change
from ogkd.core.optimisers import TrainConfig
from ogkd.methods import register
from ogkd.methods.promptsrc import AnchoredConfig, AnchoredMethod


class BiomedDPTConfig(AnchoredConfig):
    """The released few-shot settings."""

    lambda_l1: float = Field(default=12.5, ge=0)
    lambda_kl: float = Field(default=0.25, ge=0)
    blank: int = Field(default=4, ge=0)  # patches overwritten with zeros; 0: none
    train: TrainConfig = TrainConfig()


@register
class BiomedDPT(AnchoredMethod[BiomedDPTConfig]):
    """CE + lambda_l1 mean|T_hat - T| + lambda_kl KL(bank's zero-shot || student) / (B C).

    Before every block of the image tower tokens 1-4, which are the first four patches, are set to
    zero. The paper calls them prompts; the released code never trains them, and its dropout of
    zeros changes nothing. So image features are computed once, under a digest of their own.
    The prompt is a template with words after the class name, whose first tokens are learned.
    Named differences: the text tower's dropout is off; the bank is this project's.
    """

    name = "biomed-dpt"
    summary = "learned context near the prompt bank's texts, four patches blanked"
    citation = "Peng et al. 2025, Biomed-DPT: Dual Modality Prompt Tuning"

    def tower(self, backbone: Backbone, tensors: Mapping[str, Tensor]) -> Backbone:
        if not self.config.blank:
            return backbone
        first = towers_of(backbone).model.image.spec.first
        change = BlankPatches(first, self.config.blank)
        return with_change(backbone, change, f"blank {self.config.blank}")
