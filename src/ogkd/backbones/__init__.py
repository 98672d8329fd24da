"""Frozen vision-language models behind one protocol: `load_backbone(...) -> Backbone`."""

from ogkd.backbones._load import load_backbone
from ogkd.backbones.base import Backbone, ImageFeatures, TextDropout, Tokens
from ogkd.backbones.catalog import Record, catalog

__all__ = [
    "Backbone",
    "ImageFeatures",
    "Record",
    "TextDropout",
    "Tokens",
    "catalog",
    "load_backbone",
]
