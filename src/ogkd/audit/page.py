"""The check as one HTML file: no scripts, nothing loaded from elsewhere, thumbnails inside."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from html import escape
from pathlib import Path

from PIL import Image

from ogkd.audit.result import Audit, Finding, NearPair, Suspect
from ogkd.audit.style import STYLE
from ogkd.errors import DataError
from ogkd.files import write_text
from ogkd.images import ImageRef, read_image
from ogkd.progress import progress_bar

__all__ = ["page", "write_page"]

_THUMB = 176  # pixels
_MOST = 60  # pairs, sets or suspects shown; the JSON has all
_CASES = 12  # files listed under a finding
_COPIES = 6  # images shown of one set

Thumbs = Callable[[int], str]


def write_page(audit: Audit, *, paths: Sequence[ImageRef], out: Path) -> None:
    """Write the page; `paths` are the images that were checked, for their thumbnails."""
    shown = _shown(audit)
    thumbs: dict[int, str] = {}
    with progress_bar("Drawing thumbnails", len(shown)) as bar:
        for number in shown:
            thumbs[number] = _thumb(paths[number])
            bar.advance()
    write_text(out, page(audit, thumbs.__getitem__))


def page(audit: Audit, thumb: Thumbs) -> str:
    """The page's text; `thumb` gives the data URI of an image by number ('' if it has none)."""
    title = f"Data check: {audit.data}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>",
            f"<h1>{escape(title)}</h1>",
            _summary(audit),
            _section("Findings", "".join(map(_finding, audit.findings))),
            _section("Images of each class", _counts(audit)),
            *_exact(audit, thumb),
            *_near(audit, thumb),
            *_suspects(audit, thumb),
            "<footer>This page holds small copies of your images: treat it as you treat them."
            "</footer></main></body></html>\n",
        ]
    )


def _shown(audit: Audit) -> list[int]:
    """The images whose thumbnails the page needs, each once."""
    members = [number for one in _first_sets(audit) for number in one[:_COPIES]]
    members += [number for pair in _first_pairs(audit) for number in (pair.first, pair.second)]
    if audit.labels is not None:
        members += [suspect.image for suspect in audit.labels.suspects[:_MOST]]
    return list(dict.fromkeys(members))


def _thumb(path: ImageRef) -> str:
    try:
        image = Image.fromarray(read_image(path))
    except DataError:
        return ""  # it was there a minute ago; the page can do without
    image.thumbnail((_THUMB, _THUMB))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _summary(audit: Audit) -> str:
    facts = audit.facts
    sizes = list(facts.sizes.items())
    size = f"{sizes[0][0]} px" if len(sizes) == 1 else f"{len(sizes)} sizes"
    counts = [
        (str(len(audit.records)), "images"),
        (str(audit.count("error")), "errors"),
        (str(audit.count("warning")), "warnings"),
        (str(audit.count("note")), "notes"),
        (size if sizes else "none", "size"),
        (str(facts.groups or "not known"), "patients"),
    ]
    cells = "".join(f"<li><b>{escape(value)}</b>{name}</li>" for value, name in counts)
    return f'<ul class="summary">{cells}</ul>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body or '<p>None.</p>'}</section>"


def _finding(finding: Finding) -> str:
    cases = "".join(
        f"<li>{' = '.join(f'<code>{escape(file)}</code>' for file in case.files[:_COPIES])}"
        f"{' ...' if len(case.files) > _COPIES else ''} <small>{escape(case.note)}</small></li>"
        for case in finding.where[:_CASES]
    )
    more = len(finding.where) - _CASES
    rest = f"<li>and {more} more (in the JSON)</li>" if more > 0 else ""
    listed = f"<details><summary>where</summary><ul>{cases}{rest}</ul></details>" if cases else ""
    return (
        f'<article class="{finding.severity}"><p><strong>{finding.severity}</strong> '
        f"{escape(finding.what)}</p><p>{escape(finding.next)}</p>{listed}</article>"
    )


def _counts(audit: Audit) -> str:
    splits = audit.facts.counts
    head = "".join(f'<th scope="col">{escape(split or "images")}</th>' for split in splits)
    rows = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{counts[name]}</td>" for counts in splits.values())
        + "</tr>"
        for name in next(iter(splits.values()))
    )
    return f'<div class="wide"><table><tr><th scope="col">class</th>{head}</tr>{rows}</table></div>'


def _exact(audit: Audit, thumb: Thumbs) -> Iterable[str]:
    if audit.exact:
        cards = [
            _card(audit, thumb, members[:_COPIES], f"{len(members)} times the same pixels")
            for members in _first_sets(audit)
        ]
        yield _gallery("Equal images", cards, len(audit.exact))


def _near(audit: Audit, thumb: Thumbs) -> Iterable[str]:
    if audit.near:
        cards = [
            _card(
                audit,
                thumb,
                (pair.first, pair.second),
                f"{pair.bits} of 64 bits differ, likeness {pair.likeness:.3f}",
            )
            for pair in _first_pairs(audit)
        ]
        yield _gallery("Nearly equal images", cards, len(audit.near))


def _suspects(audit: Audit, thumb: Thumbs) -> Iterable[str]:
    if audit.labels is not None and audit.labels.suspects:
        shown: Sequence[Suspect] = audit.labels.suspects[:_MOST]
        cards = [
            _card(
                audit,
                thumb,
                (one.image,),
                f"labelled {one.given} (probability {one.score:.3f}), looks like {one.suggested}",
            )
            for one in shown
        ]
        yield _gallery("Suspicious labels", cards, len(audit.labels.suspects))


def _gallery(title: str, cards: Sequence[str], count: int) -> str:
    more = f"<p>{len(cards)} of {count} shown; the JSON has all.</p>" if count > len(cards) else ""
    return _section(f"{title} ({count})", f'{more}<div class="gallery">{"".join(cards)}</div>')


def _card(audit: Audit, thumb: Thumbs, members: Sequence[int], words: str) -> str:
    pictures = []
    for number in members:
        record = audit.records[number]
        place = f"{record.split}, {record.label}" if record.split else record.label
        source = thumb(number)
        image = (
            f'<img src="{escape(source)}" alt="{escape(record.file)}" loading="lazy">'
            if source
            else "<p>cannot be shown</p>"
        )
        pictures.append(
            f"<figure>{image}<figcaption><b>{escape(place)}</b><br>"
            f"<code>{escape(record.file)}</code></figcaption></figure>"
        )
    apart = {(audit.records[n].split, audit.records[n].label) for n in members}
    mark = " apart" if len(apart) > 1 else ""
    return (
        f'<div class="card{mark}"><div class="pictures">{"".join(pictures)}</div>'
        f"<p>{escape(words)}</p></div>"
    )


def _first_sets(audit: Audit) -> list[tuple[int, ...]]:
    return sorted(audit.exact, key=lambda members: -_weight(audit, members))[:_MOST]


def _first_pairs(audit: Audit) -> list[NearPair]:
    ordered = sorted(audit.near, key=lambda pair: -_weight(audit, (pair.first, pair.second)))
    return ordered[:_MOST]


def _weight(audit: Audit, members: Sequence[int]) -> int:
    """Copies across labels or splits come first: they do the harm."""
    labels = {audit.records[number].label for number in members}
    splits = {audit.records[number].split for number in members}
    return (len(labels) > 1) + (len(splits) > 1)
