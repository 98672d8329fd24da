"""Options of the commands that use a fitted model; the page's are alike wherever one is made."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    "GradedOption",
    "ImagesOption",
    "MovedBackbone",
    "NamesOption",
    "ResamplesOption",
    "SplitOption",
]

MovedBackbone = Annotated[
    str | None, typer.Option("--backbone", "-b", help="Where the backbone is, if it moved.")
]
SplitOption = Annotated[str, typer.Option(help="Which part, where the data has splits.")]
GradedOption = Annotated[
    bool | None,
    typer.Option(help="The classes are grades in their order: adds quadratic kappa."),
]
ResamplesOption = Annotated[
    int, typer.Option(min=0, max=100_000, help="Of the bootstrap; 0 for no intervals.")
]
NamesOption = Annotated[
    bool,
    typer.Option("--names", help="Show file names and whole paths in the report (default: none)."),
]
ImagesOption = Annotated[
    bool, typer.Option(help="Show small copies of images in the report: mistakes and examples.")
]
