"""The pictures that a file is made of: slices of a volume, frames of a clip, tiles of a slide.

A rule says which of them: `all`, `every=4` or `N=16`, after `axis=0|1|2,` for volumes if not
axial, and for whole slides after their magnification (`x=20,`) or the side of a tile in the slide's
own pixels (`side=512,`). Slices with nothing in them and tiles of glass are left out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ogkd.errors import ConfigError, DataError
from ogkd.images.decode import read_image
from ogkd.images.dicom import frame_count
from ogkd.images.nifti import filled_slices
from ogkd.images.ref import ImageRef, SliceRule, kind_of
from ogkd.images.slide import is_slide, tiles

AXIAL = 2
MAGNIFICATION = 10.0


@dataclass(frozen=True)
class SlicesRule:
    """Which slices: every `step`-th, or `count` of them evenly spaced; along which axis.

    Of slides: tiles at which magnification, or of which `side`.
    """

    axis: int = AXIAL
    step: int = 1
    count: int | None = None
    magnification: float = MAGNIFICATION
    side: int | None = None

    @classmethod
    def parse(cls, text: str) -> SlicesRule:
        """Read "all", "every=4" or "N=16", perhaps after "axis=1,"; else a ConfigError."""
        match = re.fullmatch(
            r"(?:axis=([012]),)?(?:x=(\d{1,3}(?:\.\d{1,3})?),|side=([1-9]\d{1,5}),)?"
            r"(?:all|every=([1-9]\d{0,5})|N=([1-9]\d{0,5}))",
            text.strip(),
        )
        if match is None or float(match[2] or MAGNIFICATION) <= 0:
            raise ConfigError(
                f"'{text}' does not name slices, such as all, every=4, N=16, axis=1,all or "
                "x=20,all.",
                argument="slices",
            )
        axis, power, side, step, count = match.groups()
        return cls(
            int(axis or AXIAL),
            int(step or 1),
            None if count is None else int(count),
            float(power or MAGNIFICATION),
            None if side is None else int(side),
        )

    def __str__(self) -> str:
        which = "all" if self.step == 1 else f"every={self.step}"
        which = which if self.count is None else f"N={self.count}"
        if self.side is not None:
            which = f"side={self.side},{which}"
        elif self.magnification != MAGNIFICATION:
            which = f"x={self.magnification:g},{which}"
        return which if self.axis == AXIAL else f"axis={self.axis},{which}"

    @property
    def middle(self) -> SliceRule:
        """The slice to take where only one is wanted."""
        return SliceRule(self.axis, "middle")

    def choose(self, indices: Sequence[int]) -> list[int]:
        """Some of the places, in their order; the ends are not preferred.

        >>> SlicesRule.parse("N=2").choose(range(10, 20)), SlicesRule.parse("every=4").choose([7])
        ([12, 17], [7])
        """
        if not indices:
            return []
        if self.count is None:
            return list(indices[min(self.step // 2, len(indices) - 1) :: self.step])
        count = min(self.count, len(indices))
        return [indices[(2 * k + 1) * len(indices) // (2 * count)] for k in range(count)]


def parts_of(image: ImageRef, rule: SlicesRule) -> list[ImageRef]:
    """The pictures of a volume or clip; any other image, or a named part, is one by itself."""
    kind = "" if image.part else kind_of(image.file)
    if kind == "nifti":
        filled = filled_slices(image.file, rule.axis)
        parts = [f"axis={rule.axis},index={index}" for index in rule.choose(filled)]
    elif kind == "dicom" and (frames := frame_count(image.file)) > 1:
        chosen = [f"index={index}" for index in rule.choose(range(frames))]
        parts = [part for part in chosen if np.ptp(read_image(ImageRef(image.file, part))) > 0]
    elif kind == "slide" or (kind == "plain" and is_slide(image.file)):
        every = tiles(image.file, magnification=rule.magnification, side=rule.side)
        parts = [every[number] for number in rule.choose(range(len(every)))]
    else:
        return [image]
    if not parts:
        raise DataError(f"{image} is blank: there is nothing in any part of it.")
    return [ImageRef(image.file, part) for part in parts]
