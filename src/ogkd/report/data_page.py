"""The data check as one HTML page, with thumbnails of duplicates and suspicious labels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from ogkd.audit import Audit
from ogkd.errors import DataError
from ogkd.evaluation.sections import Card, Section, Table
from ogkd.files import write_text
from ogkd.images import ImageRef, data_uri, read_image
from ogkd.report.page import render

_THUMB = 176  # pixels
_MOST = 60  # pairs, sets or suspects shown; the JSON file lists all
_COPIES = 6  # images shown of one set


def write_data_check(audit: Audit, *, images: Sequence[ImageRef], out: Path) -> None:
    """Write the page; `images` are those that were checked, for their thumbnails."""

    def thumb(number: int) -> str:
        with contextlib.suppress(DataError):  # it was readable during the check
            return data_uri(Image.fromarray(read_image(images[number])), most=_THUMB)
        return ""

    write_text(out, data_check_page(audit, thumb), suffixes=(".html",))


def data_check_page(audit: Audit, thumb: Callable[[int], str]) -> str:
    """The page's text; `thumb` returns the data URI of an image by number, or ''."""
    facts, sizes = audit.facts, list(audit.facts.sizes)
    rows = [
        (name, *(str(counts[name]) for counts in facts.counts.values()))
        for name in next(iter(facts.counts.values()))
    ]
    head = ("class", *(split or "images" for split in facts.counts))
    return render(
        "data_check.html",
        title=f"Data check: {audit.data}",
        summary=[
            (len(audit.records), "images"),
            (audit.count("error"), "errors"),
            (audit.count("warning"), "warnings"),
            (audit.count("note"), "notes"),
            (sizes[0], "pixels") if len(sizes) == 1 else (len(sizes), "image sizes"),
            ("unknown" if facts.groups is None else facts.groups, "patients (groups)"),
        ],
        findings=audit.findings,
        sections=[
            Section("Images per class", table=Table(head, tuple(rows)), key="counts"),
            *_galleries(audit, thumb),
        ],
    )


def _galleries(audit: Audit, thumb: Callable[[int], str]) -> Iterator[Section]:
    """Copies and suspicious labels; copies across labels or splits come first."""

    def harm(entry: tuple[Sequence[int], str]) -> int:
        images = [audit.records[number] for number in entry[0]]
        return len({image.label for image in images}) + len({image.split for image in images})

    def picture(number: int) -> tuple[str, str, str]:
        image = audit.records[number]
        return thumb(number), image.file, ", ".join(filter(None, (image.split, image.label)))

    exact = [(members, f"{len(members)} times the same pixels") for members in audit.exact]
    near = [
        ((pair.first, pair.second), f"{pair.bits} of 64 bits differ, likeness {pair.likeness:.3f}")
        for pair in audit.near
    ]
    suspects = [
        ((each.image,), f"labelled {each.given} ({each.score:.3f}), looks like {each.suggested}")
        for each in (audit.labels.suspects if audit.labels else ())
    ]
    for title, key, entries in (
        ("Identical images", "identical", sorted(exact, key=harm, reverse=True)),
        ("Nearly identical images", "near", sorted(near, key=harm, reverse=True)),
        ("Suspicious labels", "labels", suspects),
    ):
        cards = [
            Card(words, "", tuple(map(picture, members[:_COPIES])))
            for members, words in entries[:_MOST]
        ]
        text = f"{len(cards)} of {len(entries)} shown; the JSON file lists all."
        if cards:
            shown = (text,) if len(entries) > len(cards) else ()
            yield Section(f"{title} ({len(entries)})", shown, key=key, cards=tuple(cards))
