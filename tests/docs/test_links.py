"""Links of README.md and docs/ lead somewhere; no network is used."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
GENERATED = {ROOT / "docs" / "reference" / "cli.md"}  # made when the site is built

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
SOURCE = re.compile(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|toml|txt))`")
OWN_PAGE = re.compile(r"docs/[\w/-]+\.md")


def text_of(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page):
    """The anchors that GitHub and the site give to headings."""
    titles = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in HEADING.findall(text_of(page))]
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title.lower()).strip()) for title in titles}


def broken_links(page, text):
    for target in LINK.findall(text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() and file not in GENERATED:
            yield f"{target}: there is no such file"
        elif anchor and anchor not in anchors_of(file):
            yield f"{target}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page):
    assert list(broken_links(page, text_of(page))) == []


def test_pages_that_the_source_cites_exist():
    files = [
        file
        for folder in ("src", "tests", "benchmarks", "tools", "examples")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".toml", ".md", ".mjs") and file != Path(__file__)
    ]
    cited = {
        (file.relative_to(ROOT).as_posix(), name)
        for file in files
        for name in OWN_PAGE.findall(file.read_text(encoding="utf-8"))
    }
    gone = sorted(f"{file} cites {name}" for file, name in cited if not (ROOT / name).exists())
    assert not gone, "\n".join(gone)
    assert cited


def test_source_files_that_a_page_names_exist():
    named = {
        (page.relative_to(ROOT).as_posix(), name)
        for page in PAGES
        if page.name != "CHANGELOG.md"
        for name in SOURCE.findall(page.read_text(encoding="utf-8"))
    }
    places = (ROOT, ROOT / "src" / "ogkd")
    gone = sorted(
        f"{page} names {name}"
        for page, name in named
        if any((place / name.split("/")[0]).is_dir() for place in places)
        and not any((place / name).exists() for place in places)
    )
    assert not gone, "\n".join(gone)
    assert named


def test_every_page_is_reached_from_the_index():
    index = ROOT / "docs" / "index.md"
    seen, waiting = set(), [index]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md" or not page.exists():
            continue
        seen.add(page)
        names = (target.partition("#")[0] for target in LINK.findall(text_of(page)))
        waiting += [(page.parent / name).resolve() for name in names if name and ":" not in name]
    assert sorted(set((ROOT / "docs").rglob("*.md")) - seen) == []


def test_the_readme_is_short_and_its_picture_small():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120
    assert (ROOT / "docs" / "pictures" / "overview.png").stat().st_size < 200_000


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    pytest.importorskip("properdocs", reason='pip install ".[docs]"')
    done = subprocess.run(
        [sys.executable, "-m", "properdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "site" / "reference" / "cli.html").read_text(encoding="utf-8")
    assert "ogkd predict" in commands
    assert "--max-risk" in commands
    python = (tmp_path / "site" / "reference" / "python.html").read_text(encoding="utf-8")
    assert 'id="ogkd.fit"' in python or 'id="ogkd.fitting' in python
    pages = "".join(
        page.read_text(encoding="utf-8") for page in (tmp_path / "site").rglob("*.html")
    )
    assert not re.findall(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)"', pages)
