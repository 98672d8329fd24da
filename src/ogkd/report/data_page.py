"""The data check as one HTML page, with thumbnails of duplicates and suspicious labels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from ogkd.audit import Audit
from ogkd.errors import DataError
from ogkd.files import write_text
from ogkd.images import ImageRef, data_uri, read_image
from ogkd.progress import progress_bar
from ogkd.report.page import render

_THUMB = 176  # pixels
_MOST = 60  # pairs, sets or suspects shown; the JSON file lists all
_CASES = 12  # files listed under a finding
_COPIES = 6  # images shown of one set

Card = tuple[Sequence[int], str]  # image numbers, words below them


def write_data_check(audit: Audit, *, images: Sequence[ImageRef], out: Path) -> None:
    """Write the page; `images` are those that were checked, for their thumbnails."""
    numbers = dict.fromkeys(
        number for _, _, cards in _galleries(audit) for members, _ in cards for number in members
    )
    thumbs: dict[int, str] = {}
    with progress_bar("Drawing thumbnails", len(numbers)) as bar:
        for number in numbers:
            with contextlib.suppress(DataError):  # it was readable during the check
                image = Image.fromarray(read_image(images[number]))
                thumbs[number] = data_uri(image, most=_THUMB)
            bar.advance()
    write_text(
        out, data_check_page(audit, lambda number: thumbs.get(number, "")), suffixes=(".html",)
    )


def data_check_page(audit: Audit, thumb: Callable[[int], str]) -> str:
    """The page's text; `thumb` returns the data URI of an image by number, or ''."""
    facts, sizes = audit.facts, list(audit.facts.sizes)
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
        cases=_CASES,
        copies=_COPIES,
        counts=facts.counts,
        class_names=list(next(iter(facts.counts.values()))),
        galleries=[
            (title, count, [_card(audit, members, words, thumb) for members, words in cards])
            for title, count, cards in _galleries(audit)
        ],
    )


def _galleries(audit: Audit) -> list[tuple[str, int, list[Card]]]:
    """Title, number of all cases and the cards shown, for each gallery that has any."""
    exact = [(members, f"{len(members)} times the same pixels") for members in audit.exact]
    near = [
        ((pair.first, pair.second), f"{pair.bits} of 64 bits differ, likeness {pair.likeness:.3f}")
        for pair in audit.near
    ]
    suspects = [
        ((each.image,), f"labelled {each.given} ({each.score:.3f}), looks like {each.suggested}")
        for each in (audit.labels.suspects if audit.labels else ())
    ]

    def harm(card: Card) -> int:
        """Copies across labels or splits come first."""
        images = [audit.records[number] for number in card[0]]
        return len({image.label for image in images}) + len({image.split for image in images})

    galleries: dict[str, list[Card]] = {
        "Identical images": sorted(exact, key=harm, reverse=True),
        "Nearly identical images": sorted(near, key=harm, reverse=True),
        "Suspicious labels": list(suspects),
    }
    return [
        (title, len(cards), [(members[:_COPIES], words) for members, words in cards[:_MOST]])
        for title, cards in galleries.items()
        if cards
    ]


def _card(
    audit: Audit, members: Sequence[int], words: str, thumb: Callable[[int], str]
) -> Mapping[str, Any]:
    images = [audit.records[number] for number in members]
    names = [", ".join(filter(None, (image.split, image.label))) for image in images]
    return {
        "apart": len(set(names)) > 1,
        "words": words,
        "images": list(
            zip(names, (image.file for image in images), map(thumb, members), strict=True)
        ),
    }
