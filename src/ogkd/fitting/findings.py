"""What a fit needs to know about data with several findings: which of them can be learned."""

from __future__ import annotations

from dataclasses import replace

from ogkd.datasets.findings import findings_text
from ogkd.datasets.manifest import Manifest
from ogkd.datasets.splits import keep_classes
from ogkd.errors import ConfigError, DataError
from ogkd.fitting.request import FitRequest
from ogkd.methods import METHODS, Method


def require_findings(request: FitRequest, method: Method) -> None:
    """Refuse what several findings in one image cannot be combined with."""
    if not method.takes_findings:
        able = ", ".join(sorted(name for name, one in METHODS.items() if one.takes_findings))
        raise ConfigError(
            f"{method.name} gives each image one class, but this data lists several findings. Use "
            f"{able}, or give a table with a column label.",
            argument="method",
        )
    for name in ("unlabelled", "normal"):
        if getattr(request, name) is not None:
            raise ConfigError(
                f"{name} is for data with one class for each image, but this data lists several "
                "findings. Leave it out.",
                argument=name,
            )


def learnable(request: FitRequest, manifest: Manifest) -> Manifest:
    """The data without findings that training images do not both show and not show.

    Training images about which nothing is known are left out too. Says what was found.
    """
    train = manifest.part("train")
    request.note(findings_text(manifest, train))
    kept = []
    for f, (yes, no, unknown) in enumerate(manifest.finding_counts(train)):
        if yes and no:
            kept.append(f)
            continue
        others = f" ({no or yes} {'without' if no else 'with'} it, {unknown} unknown)"
        request.warn(
            f"'{manifest.class_names[f]}' is left out: no image to learn from is known to be "
            f"{'without' if yes else 'with'} it{others}. Add some, or remove it from the table."
        )
    if not kept:
        raise DataError(
            "No finding can be learned: each needs at least one training image that is known to "
            "show it (1) and one that is known not to (0)."
        )
    found = keep_classes(manifest, kept)
    used = tuple(item for item in found.items if item.marks or item.split not in ("", "train"))
    if lost := len(found.items) - len(used):
        request.note(f"Note: {lost} image(s) are not learned from: nothing is known about them.")
    return replace(found, items=used)
