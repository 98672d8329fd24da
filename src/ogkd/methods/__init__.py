"""One file per method, one registry. Importing this package registers every method."""

from importlib import import_module
from pkgutil import iter_modules

from ogkd.methods.base import Method, Support, TextSide, Workplace
from ogkd.methods.heads import Head, KernelHead, LinearHead, TextHead
from ogkd.methods.registry import METHODS, make_method, presets

__all__ = [
    "METHODS",
    "Head",
    "KernelHead",
    "LinearHead",
    "Method",
    "Support",
    "TextHead",
    "TextSide",
    "Workplace",
    "make_method",
    "presets",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
