from __future__ import annotations

import inspect
import re
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from report_world import HOSTILE, read_page

import ogkd
from ogkd.audit import audit_data
from ogkd.evaluation import evaluate_predictions
from ogkd.model.card import CAUTION
from ogkd.report import report


def build(world, **options):
    """The page, without the time at which it was made."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new folder" / "report.html"
        options = {"predictions": world.predictions, "audit": False} | options
        report(world.classifier, world.dataset, path, **options)
        return re.sub(r"Created on [^<]*", "", path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def text(world):
    return build(world)


@pytest.fixture(scope="module")
def page(text):
    return read_page(text)


def test_the_page_loads_nothing_and_runs_nothing(page, text):
    assert not page.all("script", "link", "iframe", "object", "embed", "base", "form")
    for tag, attrs in page.tags:
        assert not [name for name in attrs if name.startswith("on")], tag
        for name in ("src", "href", "action", "srcset", "poster", "data"):
            assert attrs.get(name, "#").startswith(("#", "data:image/jpeg;base64,")), (tag, attrs)
    assert "url(" not in text
    assert "@import" not in text
    assert "://" not in text
    [rules] = [a["content"] for _, a in page.all("meta") if a.get("http-equiv")]
    assert "default-src 'none'" in rules
    assert "script-src" not in rules


def test_a_hostile_class_name_is_shown_as_text(page, text):
    assert HOSTILE not in text
    assert HOSTILE in page.text
    assert len(page.all("style")) == 1
    assert not [attrs for _, attrs in page.all("img") if attrs["src"] == "x"]


def test_headings_come_in_order_and_every_link_leads_somewhere(page):
    levels = [int(tag[1]) for tag, _ in page.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(later <= before + 1 for before, later in pairwise(levels))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"].removeprefix("#") for _, attrs in page.all("a")]
    assert links == ids  # the contents name every section


def test_images_charts_and_tables_can_be_read_aloud(page):
    assert page.all("img")
    assert all(attrs["alt"].strip() for _, attrs in page.all("img"))
    drawn = [attrs for _, attrs in page.all("svg")]
    assert all(a.get("aria-label") or a.get("aria-hidden") == "true" for a in drawn)
    assert page.all("th")
    assert all(attrs["scope"] in ("row", "col") for _, attrs in page.all("th"))
    assert [attrs["lang"] for _, attrs in page.all("html")] == ["en"]


def test_the_verdict_comes_first_and_every_section_follows(page, world):
    result = evaluate_predictions(world.predictions, world.classifier)
    before = page.text[: page.text.index("Caution")].replace("\u00a0", " ")
    assert result["verdict"]["headline"] in before
    assert result["verdict"]["details"] in before
    assert all(warning in before for warning in result["warnings"])
    assert any(sign in before for sign in "\u2713\u2717?")
    ids = [attrs["id"] for _, attrs in page.all("section") if "id" in attrs]
    keys = [section.key for section in result.sections if section.key]
    assert ids == [*keys, "errors", "examples", "data", "making"]
    shown = page.text.replace("\u00a0", " ")
    for section in result.sections:
        assert section.title in shown
        for cell in (cell for row in section.table.rows for cell in row) if section.table else ():
            assert " ".join(cell.split()) in shown
    for words in ("AURC", "ECE", "Brier", "LAC"):
        assert words in shown
    for digest in (world.classifier.weights_sha256, world.classifier.card.data_sha256):
        assert digest in shown
    assert shown.index(CAUTION) < shown.index("Summary")  # above everything


def test_file_names_stay_out_unless_asked_for(world, text):
    assert "Jane-Doe" not in text
    assert str(world.predictions.images[0].file.parent) not in text
    assert "Jane-Doe-test" in build(world, show_names=True)


def test_without_images_or_errors_the_rest_is_shown(world):
    bare = build(world, images=False, show_names=True)
    assert not read_page(bare).all("img")
    assert "small copies" not in bare
    rows = [r for r, label in enumerate(world.predictions.labels) if label != 1]
    judged = world.predictions.without(world.predictions.labels == 1)
    perfect = judged.logits.copy() * 0
    perfect[range(len(rows)), judged.labels] = 9
    page = read_page(build(replace(world, predictions=replace(judged, logits=perfect))))
    ids = [attrs.get("id") for _, attrs in page.all("section")]
    assert ("errors" in ids, "examples" in ids) == (False, True)
    assert "nan" not in re.findall(r"\w+", page.text.lower())


def test_the_same_input_gives_the_same_bytes(world, text):
    assert build(world) == text


def test_problems_of_the_data_are_listed_without_files(world, images_of, text):
    assert "The data was not checked for this report" in text
    audit = audit_data(world.dataset, root=images_of)
    assert audit.findings
    page = build(world, audit=audit, images=False)
    for finding in audit.findings:
        assert finding.what in read_page(page).text
    assert "Jane-Doe" not in page
    assert "small" in page  # images of 40 x 48 pixels are worth a note


def test_a_report_is_one_call_of_the_package(world, tmp_path):
    assert list(inspect.signature(ogkd.report).parameters)[:3] == ["classifier", "data", "out"]
    path = ogkd.report(world.classifier, world.dataset, tmp_path / "page.html", images=False)
    assert HOSTILE in read_page(path.read_text(encoding="utf-8")).text
