from __future__ import annotations

import pytest


def test_a_report_is_written_and_its_place_told(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    outcome = ogkd("report", fitted, data, "--out", place)
    assert outcome.code == 0, outcome.err
    assert outcome.out == f"Report on 6 images: {place}\n"
    page = place.read_text(encoding="utf-8")
    assert "data:image/jpeg" in page
    assert "Which images come from one patient is not known" in page  # the data check ran
    assert f"ogkd report {fitted.name} {data.name} --out r.html" in page
    assert str(data) not in page
    assert ".png" not in page


def test_names_pictures_and_check_are_a_matter_of_options(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    words = ["--out", place, "--names", "--no-images", "--no-check", "--split", "train"]
    outcome = ogkd("report", fitted, data, *words)
    assert outcome.code == 0, outcome.err
    page = place.read_text(encoding="utf-8")
    assert "data:image" not in page
    assert "The data was not checked" in page
    assert str(data) in page
    assert "9 of the 9 judged images were learned from" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["MODEL", "DATA", "--out", "."], "is a folder"),
        (["MODEL", "DATA", "--split", "val", "--out", "r.html"], "There is no split 'val'"),
        (["DATA", "DATA", "--out", "r.html"], "is not a model folder"),
        (["MODEL", "nowhere/at/all", "--out", "r.html"], "Check the path"),
        (["MODEL", "DATA", "--out", "MODEL/model.json/r.html"], "Cannot write"),
    ],
)
def test_mistakes_end_in_one_message(refused, fitted, data, words, message):
    given = [w.replace("MODEL", str(fitted)).replace("DATA", str(data)) for w in words]
    assert message in refused("report", *given)
