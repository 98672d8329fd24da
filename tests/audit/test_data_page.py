from __future__ import annotations

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from ogkd.audit import audit_data
from ogkd.audit.result import (
    Audit,
    Facts,
    Finding,
    LabelReport,
    NearPair,
    Occurrence,
    Record,
    Suspect,
)
from ogkd.data.read import read_dataset
from ogkd.report import data_check_page, write_data_check

EVIL = '<script>alert("x")</script>&'
VOID = {"meta", "img", "br"}


class Reader(HTMLParser):
    """Tags as a browser opens and closes them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def evil_audit() -> Audit:
    records = tuple(Record(f"{EVIL}{n}.png", EVIL, EVIL, EVIL) for n in range(2))
    facts = Facts({EVIL: {EVIL: 2}}, 1.0, {"3 x 4": 2}, 2, 0, 1, 0)
    finding = Finding("kind", "error", EVIL, EVIL, (Occurrence((EVIL,), EVIL),))
    suspects = LabelReport((Suspect(0, EVIL, EVIL, 0.1),), 2, 0.5)
    return Audit(EVIL, records, facts, (finding,), ((0, 1),), (NearPair(0, 1, 2, 0.99),), suspects)


def test_names_from_outside_never_become_markup() -> None:
    text = data_check_page(evil_audit(), lambda number: "data:image/jpeg;base64,AA==")
    seen = Reader(text)
    assert seen.open == []
    assert not [tag for tag, _ in seen.tags if tag == "script"]
    assert sum(EVIL in words for words in seen.words) >= 10
    images = [attributes for tag, attributes in seen.tags if tag == "img"]
    assert len(images) == 5
    assert images[0]["alt"] == f"{EVIL}0.png"


def test_the_page_stands_alone_and_names_no_folder_above_the_data(
    data: Path, tmp_path: Path
) -> None:
    folders = sorted((data / "train").iterdir())
    source = sorted(folders[0].glob("*.png"))[0]
    shutil.copy(source, data / "test" / folders[1].name / "copy.png")
    (folders[0] / "bad.png").write_text("words")
    dataset = read_dataset(data)
    out = tmp_path / "check.html"
    write_data_check(audit_data(dataset, root=data), images=dataset.images, out=out)
    text = out.read_text(encoding="utf-8")
    seen = Reader(text)
    assert seen.open == []
    assert str(tmp_path) not in text
    assert "://" not in text
    assert "url(" not in text
    sources = [attributes["src"] or "" for tag, attributes in seen.tags if tag == "img"]
    assert len(sources) == 2
    assert all(re.match(r"data:image/jpeg;base64,[A-Za-z0-9+/=]+$", source) for source in sources)
    assert {tag for tag, _ in seen.tags}.isdisjoint({"script", "link", "iframe"})


def test_thousands_of_pairs_keep_the_page_small() -> None:
    audit = evil_audit()
    many = replace(audit, exact=(), labels=None, near=audit.near * 5000)
    text = data_check_page(many, lambda number: "data:image/jpeg;base64,AA==")
    assert "60 of 5000 shown" in text
    assert len(text) < 200_000
