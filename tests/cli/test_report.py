from __future__ import annotations

import shutil

import pytest


def test_a_report_is_written_with_the_data_check(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    outcome = ogkd("evaluate", fitted, data, "--resamples", 0, "--report", place)
    assert outcome.code == 0, outcome.err
    page = place.read_text(encoding="utf-8")
    assert "data:image/jpeg" in page
    assert "does not say which images come from the same patient" in page  # the data check ran
    assert f"ogkd evaluate {fitted.name} {data.name} --resamples 0 --report r.html" in page
    assert str(data) not in page
    assert ".png" not in page


def test_names_and_images_are_a_matter_of_options(ogkd, refused, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    words = ["--report", place, "--names", "--no-images", "--split", "train", "--resamples", 0]
    outcome = ogkd("evaluate", fitted, data, *words)
    assert outcome.code == 0, outcome.err
    page = place.read_text(encoding="utf-8")
    assert "data:image" not in page
    assert str(data) in page
    assert "learned from or was calibrated on 9 of the 9 evaluated images" in page
    for option in ("--names", "--no-images"):
        refused("evaluate", fitted, data, option)


@pytest.mark.parametrize(
    "words",
    [
        ["MODEL", "DATA", "--report", "."],
        ["MODEL", "DATA", "--split", "val", "--report", "r.html"],
        ["DATA", "DATA", "--report", "r.html"],
        ["MODEL", "nowhere/at/all", "--report", "r.html"],
        ["MODEL", "DATA", "--report", "MODEL/model.json/r.html"],
    ],
)
def test_mistakes_end_in_one_message(refused, fitted, data, words):
    refused(
        "evaluate", *(w.replace("MODEL", str(fitted)).replace("DATA", str(data)) for w in words)
    )


def test_unreadable_files_may_be_skipped_and_are_listed(ogkd, refused, fitted, data, tmp_path):
    some = shutil.copytree(data, tmp_path / "some")
    (some / "test" / "normal_lung" / "bad.png").write_bytes(b"no picture")
    place = tmp_path / "out" / "r.html"
    words = ("evaluate", fitted, some, "--report", place, "--resamples", 0, "--no-images")
    assert "bad.png" in refused(*words)
    outcome = ogkd(*words, "--on-error", "skip")
    assert outcome.code == 0
    assert "bad.png" in outcome.err
    assert "bad.png" in (place.parent / "skipped.csv").read_text()
    assert "No intervals were computed" in place.read_text()
