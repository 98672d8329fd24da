from __future__ import annotations

import json
import shutil

import ogkd as library
from tiny_data import write_dataset


def test_json_is_what_the_library_says(ogkd, fitted, data, tmp_path):
    out = tmp_path / "new" / "r.json"
    outcome = ogkd("evaluate", fitted, data, "--json", "--out", out, "--resamples", 50)
    expected = library.evaluate(library.load(fitted), data, resamples=50)
    warnings = "".join(f"WARNING: {warning}\n" for warning in expected["warnings"])
    assert (outcome.code, outcome.err) == (0, warnings)
    assert json.loads(outcome.out) == json.loads(out.read_text()) == expected
    assert {"images", "accuracy", "macro_f1", "per_class"} < set(expected)


def test_the_verdict_comes_first_and_the_statistics_only_if_asked_for(ogkd, fitted, data):
    result = library.evaluate(library.load(fitted), data, resamples=0)
    out = ogkd("evaluate", fitted, data, "--resamples", 0).out
    assert out.startswith(result.text())
    assert " ".join(out.split()).startswith(result["verdict"]["text"])
    assert "AURC" not in out
    assert "More: --all" in out
    out = ogkd("evaluate", fitted, data, "--resamples", 0, "--all").out
    assert out == result.text(everything=True) + "\n"
    assert "AURC" in out


def test_images_that_were_used_can_be_left_out(ogkd, refused, fitted, tmp_path):
    data = write_dataset(tmp_path / "d", splits={"": 4})  # nine of twelve are those of train
    words = ("evaluate", fitted, data, "--resamples", 0, "--leave-out-used")
    outcome = ogkd(*words, "--json", "--report", tmp_path / "r.html")
    assert outcome.code == 0, outcome.err
    assert "Left out 9 images that the model learned from or was calibrated on; 3" in outcome.err
    assert "learned from 9" not in outcome.err
    found = json.loads(outcome.out)
    assert (found["images"], found["left_out"], found["learned_from"]) == (3, 9, 0)
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "of 3 images correctly" in page
    assert "Left out: 9 images that the model learned from" in page


def test_data_that_does_not_fit_is_refused(refused, fitted, data, tmp_path):
    write_dataset(tmp_path / "d", ["benign tumor", "stone"], {"test": 1})
    assert "does not know: stone" in refused("evaluate", fitted, tmp_path / "d")
    assert "no split 'val'" in refused("evaluate", fitted, data, "--split", "val")
    assert "no folder or table" in refused("evaluate", fitted, tmp_path / "gone")
    assert "not a model folder" in refused("evaluate", data, data)
    for option in ("--out", "--report"):
        assert f"{option} {tmp_path} is a folder" in refused(
            "evaluate", fitted, data, option, tmp_path
        )


def test_a_place_that_cannot_be_written_is_named_with_its_option(ogkd, fitted, data, tmp_path):
    (tmp_path / "file").write_text("x")
    for option in ("--out", "--report"):
        words = ("evaluate", fitted, data, "--resamples", 0, option, tmp_path / "file" / "below")
        outcome = ogkd(*words)
        assert outcome.code == 2
        assert outcome.err.endswith(f"Choose another place (option {option}).\n")


def test_a_report_is_written_with_the_data_check(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    outcome = ogkd("evaluate", fitted, data, "--resamples", 0, "--report", place)
    assert outcome.code == 0, outcome.err
    page = place.read_text(encoding="utf-8")
    assert "data:image/jpeg" in page
    assert "does not say which images come from the same patient" in page  # the data check ran
    assert str(data) not in page
    assert ".png" not in page


def test_names_and_images_are_a_matter_of_options(ogkd, fitted, data, tmp_path):
    place = tmp_path / "r.html"
    words = ["--report", place, "--names", "--no-images", "--split", "train", "--resamples", 0]
    outcome = ogkd("evaluate", fitted, data, *words)
    assert outcome.code == 0, outcome.err
    page = place.read_text(encoding="utf-8")
    assert "data:image" not in page
    assert ".png" in page
    assert "learned from 9 of these 9 images" in page


def test_unreadable_files_are_listed_all_at_once_or_skipped(ogkd, refused, fitted, data, tmp_path):
    some = shutil.copytree(data, tmp_path / "some")
    for name in ("bad.png", "worse.png"):
        (some / "test" / "normal_lung" / name).write_bytes(b"no picture")
    page = tmp_path / "out" / "r.html"
    words = ("evaluate", fitted, some, "--report", page, "--resamples", 0, "--no-images")
    message = refused(*words)
    assert "2 file(s) could not be read" in message
    assert "bad.png" in message
    assert "worse.png" in message
    outcome = ogkd(*words, "--on-error", "skip")
    assert outcome.code == 0
    assert "bad.png" in outcome.err
    assert "No intervals were computed" in page.read_text()
    assert "Left out: 2 files that cannot be read." in page.read_text()


def test_subgroups_are_columns_of_the_table(ogkd, refused, fitted, data, tmp_path):
    lines = ["path,label,Sex"]
    for number, file in enumerate(sorted((data / "test").rglob("*.png"))):
        lines.append(f"{file},{file.parent.name.replace('_', ' ')},{'mf'[number % 2]}")
    table = tmp_path / "table.csv"
    table.write_text("\n".join(lines), encoding="utf-8")
    place = tmp_path / "r.html"
    words = ("evaluate", fitted, table, "--resamples", 50, "--report", place, "--by")
    out = ogkd(*words, "sex").out
    assert "Subgroups" in out
    assert "sex: m" in out
    assert "sex: m" in place.read_text(encoding="utf-8")
    assert "sex (option --by)" in refused(*words, "sex,site")
