"""Frozen vision-language models behind one contract: `load_backbone(...) -> Backbone`."""

from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.backbones.catalog import Record, catalog, register_backbone
from ogkd.backbones.loading import load_backbone

__all__ = [
    "Backbone",
    "ImageFeatures",
    "Record",
    "TextDropout",
    "Tokens",
    "catalog",
    "load_backbone",
    "register_backbone",
]
