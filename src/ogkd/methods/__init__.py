"""One file per method, one registry. Importing this package registers every method."""

from ogkd.methods import ogkd, zero_shot
from ogkd.methods.base import Head, Method, Support, TextSide, Workplace
from ogkd.methods.registry import METHODS, make_method, presets

__all__ = [
    "METHODS",
    "Head",
    "Method",
    "Support",
    "TextSide",
    "Workplace",
    "make_method",
    "ogkd",
    "presets",
    "zero_shot",
]
