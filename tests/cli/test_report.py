from __future__ import annotations

import re
import shutil

import pytest


def test_a_report_is_written_and_its_place_told(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    outcome = ogkd("report", fitted, data, "--out", place)
    assert outcome.code == 0, outcome.err
    assert outcome.out == f"Report on 6 images: {place}\n"
    page = place.read_text(encoding="utf-8")
    assert "data:image/jpeg" in page
    assert "does not say which images come from the same patient" in page  # the data check ran
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
    assert "learned from or was calibrated on 9 of the 9 evaluated images" in page


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


def test_unreadable_files_may_be_skipped_and_are_listed(ogkd, refused, fitted, data, tmp_path):
    some = shutil.copytree(data, tmp_path / "some")
    (some / "test" / "normal_lung" / "bad.png").write_bytes(b"no picture")
    place = tmp_path / "out" / "r.html"
    words = ("report", fitted, some, "--out", place, "--resamples", 0, "--no-images", "--no-check")
    assert "bad.png" in refused(*words)
    outcome = ogkd(*words, "--on-error", "skip")
    assert (outcome.code, outcome.out) == (0, f"Report on 6 images: {place}\n")
    assert "Left out 1 file that" in outcome.err
    assert "bad.png" in (place.parent / "skipped.csv").read_text()
    assert "bad.png" not in place.read_text()
    assert "No intervals were computed" in place.read_text()
    assert "slice" in refused(*words, "--slice", "nonsense")


def test_evaluate_writes_the_page_with_the_same_options(ogkd, refused, fitted, data, tmp_path):
    first, second = tmp_path / "a" / "r.html", tmp_path / "b" / "r.html"
    same = ["--resamples", 0, "--names", "--no-images"]
    assert ogkd("report", fitted, data, "--out", first, "--no-check", *same).code == 0
    assert ogkd("evaluate", fitted, data, "--report", second, *same).code == 0
    pages = [
        re.sub(r"Made on .*|ogkd (report|evaluate) .*", "", p.read_text()) for p in (first, second)
    ]
    assert pages[0] == pages[1]
    assert "data:image" not in pages[1]
    assert str(data) in second.read_text()
    assert ogkd("evaluate", fitted, data, "--report", second, "--resamples", 0).code == 0
    assert "data:image" in second.read_text()
    assert str(data) not in second.read_text()
    for option in ("--names", "--no-images"):
        assert "only apply to --report" in refused("evaluate", fitted, data, option)
