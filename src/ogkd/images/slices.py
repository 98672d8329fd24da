"""The pictures that a file is made of: slices of a volume, frames of a clip.

A rule says which of them: `all`, `every=4` or `N=16`, after `axis=0|1|2,` for volumes if not
axial. Slices with nothing in them are left out.
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

AXIAL = 2


@dataclass(frozen=True)
class SlicesRule:
    """Which slices: every `step`-th, or `count` of them evenly spaced; along which axis."""

    axis: int = AXIAL
    step: int = 1
    count: int | None = None

    @classmethod
    def parse(cls, text: str) -> SlicesRule:
        """Read "all", "every=4" or "N=16", perhaps after "axis=1,"; else a ConfigError."""
        found = re.fullmatch(
            r"(?:axis=([012]),)?(?:all|every=([1-9]\d{0,5})|N=([1-9]\d{0,5}))", text.strip()
        )
        if found is None:
            raise ConfigError(
                f"'{text}' does not say which slices to take. Write all, every=4 or N=16, for "
                "other slices than axial ones after an axis: axis=1,all.",
                argument="slices",
            )
        axis, step, count = found.groups()
        return cls(int(axis or AXIAL), int(step or 1), None if count is None else int(count))

    def __str__(self) -> str:
        which = "all" if self.step == 1 else f"every={self.step}"
        which = which if self.count is None else f"N={self.count}"
        return which if self.axis == AXIAL else f"axis={self.axis},{which}"

    @property
    def middle(self) -> SliceRule:
        """The slice to take where only one is wanted."""
        return SliceRule(self.axis, "middle")

    def choose(self, places: Sequence[int]) -> list[int]:
        """Some of the places, in their order; the ends are not preferred.

        >>> SlicesRule.parse("N=2").choose(range(10, 20)), SlicesRule.parse("every=4").choose([7])
        ([12, 17], [7])
        """
        if not places:
            return []
        if self.count is None:
            return list(places[min(self.step // 2, len(places) - 1) :: self.step])
        count = min(self.count, len(places))
        return [places[(2 * k + 1) * len(places) // (2 * count)] for k in range(count)]


def parts_of(image: ImageRef, rule: SlicesRule) -> list[ImageRef]:
    """The pictures of a volume or clip; any other image, or a named part, is one by itself."""
    kind = "" if image.part else kind_of(image.file)
    if kind == "nifti":
        places = filled_slices(image.file, rule.axis)
        found = [f"axis={rule.axis},index={place}" for place in rule.choose(places)]
    elif kind == "dicom" and (frames := frame_count(image.file)) > 1:
        chosen = [f"index={place}" for place in rule.choose(range(frames))]
        found = [part for part in chosen if np.ptp(read_image(ImageRef(image.file, part))) > 0]
    else:
        return [image]
    if not found:
        raise DataError(f"{image} is blank: there is nothing in any of its slices. Remove it.")
    return [ImageRef(image.file, part) for part in found]
