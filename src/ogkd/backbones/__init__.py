"""Frozen vision-language models behind one contract: `load_backbone(...) -> Backbone`."""

import warnings

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

# tqdm, which transformers imports, asks for ipywidgets in a notebook; our bars need none.
warnings.filterwarnings("ignore", message="IProgress not found")
