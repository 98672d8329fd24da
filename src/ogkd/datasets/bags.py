"""Bags: pictures that share one answer, such as the images of an exam or the slices of a volume.

`BagRule` says which pictures belong together, `in_bags` applies it to labelled images and
`grouped` to others. A bag has one label. Where its pictures have labels of their own, it is the
one class among them beside the normal ones.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ogkd.datasets.manifest import Item, Manifest, by_bag, first_lines
from ogkd.datasets.tables import NOT_COLUMNS
from ogkd.errors import ConfigError, DataError, OgkdWarning
from ogkd.images import ImageRef
from ogkd.images.dicom import Series
from ogkd.images.ref import Broken, kind_of
from ogkd.images.slices import SlicesRule, parts_of
from ogkd.progress import progress_bar

Named = tuple[str, ImageRef]  # a picture and its bag


@dataclass(frozen=True)
class BagRule:
    """What makes a bag.

    `by` is a column of the table, `folder` (the folder that a file is in), or `study` or `series`
    (of DICOM files); without it each file is a bag by itself. `slices` of volumes and clips are
    pictures; without it a file is one picture.
    """

    by: str | None = None
    slices: SlicesRule | None = None

    @classmethod
    def of(cls, by: str | None, slices: str | None) -> BagRule | None:
        """Read two options; None if neither is given."""
        if by is None and slices is None:
            return None
        if by is not None and not by.strip():
            raise ConfigError("The name of what makes a bag is empty.", argument="bags")
        name = None if by is None else by.strip().lower()
        return cls(name, None if slices is None else SlicesRule.parse(slices))

    @property
    def column(self) -> str | None:
        """The column of a table that has the bags; None if the files themselves define them."""
        return None if self.by in NOT_COLUMNS else self.by


def in_bags(manifest: Manifest, rule: BagRule, *, normal: Sequence[int] = ()) -> Manifest:
    """The dataset picture by picture, each with its bag and the bag's label.

    The pictures of a bag are next to each other, in their order. Applied again, nothing changes.
    """
    whole = with_bags(manifest, rule, normal=normal).items
    answers = _answered(whole, manifest.class_names, normal)
    of = {(item.bag, item.image): item for item in answers}
    parts = _parts([(str(item.bag), item.image) for item in whole], rule.slices)
    items = [replace(of[bag, image], image=part) for bag, image, part in parts]
    return replace(manifest, items=tuple(items))


def with_bags(manifest: Manifest, rule: BagRule, *, normal: Sequence[int] = ()) -> Manifest:
    """The dataset file by file, each with its bag; what contradicts itself is refused."""
    manifest.require_classes("A bag")
    if rule.column is not None and any(item.bag is None for item in manifest.items):
        manifest = replace(manifest, items=tuple(_by_patient(manifest.items, rule.column)))
    if nameless := [str(item.image) for item in manifest.items if item.bag == ""]:
        raise DataError(
            f"{len(nameless)} image(s) have no bag:\n{first_lines(nameless)}\n"
            f"Fill in the column '{rule.by}', or leave these images out.",
            argument="bags",
        )
    of = {(item.bag, item.image): item for item in manifest.items}
    found = _bags([(item.image, item.bag) for item in manifest.items], rule)
    whole = [
        replace(of.get((bag, image)) or of[None, image], bag=bag)  # named here, or by the file
        for bag, image in found
    ]
    _answered(whole, manifest.class_names, normal)
    return replace(manifest, items=tuple(whole))


def grouped(images: Sequence[tuple[ImageRef, str | None]], rule: BagRule) -> list[Named]:
    """Pictures bag by bag; `images` come with the name of their bag if they have one."""
    if rule.column is not None and not all(bag for _, bag in images):
        raise DataError(
            f"Bags are defined by the column '{rule.column}', but no table was given. Give a table "
            f"with that column, or group by something else: {', '.join(NOT_COLUMNS)}.",
            argument="bags",
        )
    return [(bag, part) for bag, _, part in _parts(_bags(images, rule), rule.slices)]


def _by_patient(items: Sequence[Item], column: str) -> Iterator[Item]:
    """Where no table was read, the only column that is known is that of patients."""
    for item in items:
        if item.bag is None and (column != "patient" or item.group is None):
            raise DataError(
                f"This data has no column '{column}'. Give a table with such a column, or group "
                f"by something else: {', '.join(NOT_COLUMNS)}.",
                argument="bags",
            )
        yield item if item.bag is not None else replace(item, bag=item.group)


def _bags(images: Sequence[tuple[ImageRef, str | None]], rule: BagRule) -> list[Named]:
    """Images with their bags: bags in the order of their first image, images in their own."""
    series: dict[ImageRef, Series] = {}
    if rule.by in ("study", "series"):
        for image, _ in images:
            if kind_of(image.file) != "dicom":
                raise DataError(
                    f"{image} is not a DICOM file, so its {rule.by} is unknown. Group by something "
                    "else, such as folder.",
                    argument="bags",
                )
            try:
                series[image] = Series.of(image.file)
            except DataError:  # reading the picture will say why
                continue
        _warn_of_series(series)
    bags: dict[str, list[ImageRef]] = defaultdict(list)
    for image, bag in images:
        bags[bag or _name(image, rule, series.get(image))].append(image)
    _warn_of_mixed(bags, series)

    def order(image: ImageRef) -> tuple[str, float, int]:
        known = series.get(image)
        return (known.series, known.along, known.number or 0) if known else ("", 0.0, 0)

    return [(bag, image) for bag, mine in bags.items() for image in sorted(mine, key=order)]


def _name(image: ImageRef, rule: BagRule, series: Series | None) -> str:
    if rule.by == "folder":
        return str(image.file.parent)
    if series is not None:
        uid = series.study if rule.by == "study" else series.series
        if not uid:
            raise DataError(
                f"The header of {image} has no {rule.by}. Group by something else, such as folder.",
                argument="bags",
            )
        return uid
    return str(image.file)


def _parts(
    images: Sequence[Named], rule: SlicesRule | None
) -> list[tuple[str, ImageRef, ImageRef]]:
    """Bag, image and picture of it, for every picture."""
    if rule is None:
        return [(bag, image, image) for bag, image in images]
    found: list[tuple[str, ImageRef, ImageRef]] = []
    unfit: DataError | None = None  # the rule does not fit a file
    with progress_bar("Looking for slices", len(images)) as bar:
        for bag, image in images:
            try:
                parts = parts_of(image, rule)
            except DataError as error:
                unfit = error if error.argument else unfit
                parts = [Broken(image.file, image.part, str(error))]
            found += [(bag, image, part) for part in parts]
            bar.advance()
    if unfit is not None and all(isinstance(part, Broken) for _, _, part in found):
        raise unfit  # another rule is needed; of some files, what remains is used
    return found


def _answered(
    items: Sequence[Item], class_names: Sequence[str], normal: Sequence[int]
) -> list[Item]:
    """Give each item the label of its bag, and what it shows itself if labels differ anywhere."""
    bags = by_bag(items)
    labels: dict[str, int] = {}
    own = differ = False
    complaints = []
    for bag, mine in bags.items():
        for what, values in (
            ("splits", {item.split for item in mine}),
            ("patients", {item.group for item in mine if item.group is not None}),
        ):
            if len(values) > 1:
                complaints.append(f"{bag}: {what} {', '.join(sorted(values))}")
        classes = {item.label for item in mine}
        findings = classes - set(normal) if len(classes) > 1 else classes
        if len(findings) > 1:
            names = ", ".join(class_names[label] for label in sorted(findings))
            complaints.append(f"{bag}: labels {names}")
            differ = True
        labels[bag] = min(findings or classes)
        own = own or len(classes) > 1 or any(item.shows is not None for item in mine)
    if complaints:
        less = (
            " Pictures may show less than their bag: give these the label of a class that means "
            "'nothing found', and name the normal classes."
        )
        raise DataError(
            f"{len(complaints)} bag(s) contradict themselves:\n{first_lines(complaints)}\n"
            f"A bag has one answer, one patient and one split.{less if differ else ''}",
            argument="bags",
        )
    return [
        replace(
            item,
            label=labels[str(item.bag)],
            shows=(item.label if item.shows is None else item.shows) if own else None,
        )
        for item in items
    ]


def _warn_of_series(found: Mapping[ImageRef, Series]) -> None:
    """Warn about irregular series; their images are used all the same."""
    by_series: dict[str, list[Series]] = defaultdict(list)
    for one in found.values():
        by_series[one.series].append(one)
    odd = []
    for uid, mine in by_series.items():
        numbers = Counter(one.number for one in mine if one.number is not None)
        lost = sorted(set(range(min(numbers), max(numbers) + 1)) - set(numbers)) if numbers else []
        twice = sorted(number for number, times in numbers.items() if times > 1)
        if lost:
            odd.append(f"series {uid}: instance {_short(lost)} is missing")
        if twice:
            odd.append(f"series {uid}: instance {_short(twice)} occurs more than once")
        if len({one.normal for one in mine if one.normal}) > 1:
            odd.append(f"series {uid}: slices of more than one orientation")
    _warn(odd, "These DICOM series are irregular")


def _warn_of_mixed(
    bags: Mapping[str, Sequence[ImageRef]], series: Mapping[ImageRef, Series]
) -> None:
    odd = []
    for bag, images in bags.items():
        kinds = {kind_of(image.file) for image in images}
        if len(kinds) > 1:
            odd.append(f"{bag}: files of different kinds ({', '.join(sorted(kinds))})")
        known = [series[image] for image in images if image in series]
        for what, values in (
            ("modalities", {one.modality for one in known}),
            ("sizes", {"{} x {}".format(*one.size) for one in known}),
        ):
            if len(values) > 1:
                odd.append(f"{bag}: different {what} ({', '.join(sorted(values))})")
    _warn(odd, "These bags mix pictures of different kinds, but each gets one answer")


def _warn(lines: Sequence[str], what: str) -> None:
    if lines:
        text = f"{what}; all pictures are used:\n{first_lines(lines)}"
        warnings.warn(text, OgkdWarning, stacklevel=3)


def _short(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return ", ".join(map(str, numbers[:5])) + more
