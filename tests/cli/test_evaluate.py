from __future__ import annotations

import csv
import json
import re

import ogkd as library
from tiny_data import CLASSES, write_dataset, write_image


def test_json_is_what_the_library_says(ogkd, fitted, data, tmp_path):
    out = tmp_path / "new" / "r.json"
    outcome = ogkd("evaluate", fitted, data, "--json", "--out", out, "--resamples", 50)
    assert (outcome.code, outcome.err) == (0, "")
    expected = library.evaluate(library.load(fitted), data, resamples=50)
    assert json.loads(outcome.out) == json.loads(out.read_text()) == expected
    assert {"images", "accuracy", "macro_f1", "per_class"} < set(expected)


def test_the_table_has_a_line_for_each_class_and_each_measure(ogkd, fitted, data):
    outcome = ogkd("evaluate", fitted, data, "--resamples", 0, "--graded")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0] == "6 images"
    expected = library.evaluate(library.load(fitted), data, resamples=0, graded=True)

    def line(start):
        return next(line for line in lines if line.startswith(start))[len(start) :].split()

    assert line("accuracy") == [f"{100 * expected['accuracy']:.1f}", "%"]
    assert line("quadratic kappa") == [f"{100 * expected['kappa']:.1f}", "%"]
    for number, name in enumerate(CLASSES):
        row = expected["per_class"][name]
        keys = ("recall", "specificity", "precision", "f1", "auroc")
        shown = ["-" if row[key] is None else f"{100 * row[key]:.1f}" for key in keys]
        assert line(name) == ["2", *shown]
        counts = [str(count) for count in expected["confusion"][number]]
        assert line(f"{'ABC'[number]} {name}") == counts
    missed = expected["screening"]["missed"]
    assert f"{missed} of 4 diseased images are predicted as normal" in outcome.out
    assert "not calibrated" in outcome.out


def test_intervals_are_shown_where_there_are_resamples(ogkd, fitted, data):
    out = ogkd("evaluate", fitted, data, "--resamples", 40).out
    assert "95 % intervals, 40 resamples of images" in out
    accuracy = next(line for line in out.splitlines() if line.startswith("accuracy"))
    assert re.search(r"\[\d+-\d+\]$", accuracy)


def test_images_that_the_model_learned_from_are_counted_in_a_warning(ogkd, fitted, data, tmp_path):
    outcome = ogkd("evaluate", fitted, data, "--split", "train", "--json", "--resamples", 0)
    assert "learned from 9 of these 9 images" in outcome.err
    write_dataset(tmp_path / "d", splits={"": 4})  # the first three of each are those of train
    outcome = ogkd("evaluate", fitted, tmp_path / "d", "--json", "--resamples", 0)
    assert outcome.code == 0
    assert json.loads(outcome.out)["images"] == 12
    assert "learned from 9 of these 12 images" in outcome.err


def test_rows_name_no_file_unless_asked(ogkd, fitted, data, tmp_path):
    words = ("evaluate", fitted, data, "--json", "--resamples", 0, "--csv", tmp_path / "r.csv")
    assert ogkd(*words).code == 0
    with (tmp_path / "r.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 6
    assert ".png" not in (tmp_path / "r.csv").read_text()
    right = sum(row["truth"] == row["prediction"] for row in rows) / 6
    assert right == library.evaluate(library.load(fitted), data, resamples=0)["accuracy"]
    assert ogkd(*words, "--paths").code == 0
    assert (tmp_path / "r.csv").read_text().count(".png") == 6


def test_data_that_does_not_fit_is_refused(refused, fitted, data, tmp_path):
    write_dataset(tmp_path / "d", ["benign tumor", "stone"], {"test": 1})
    assert "does not know: stone" in refused("evaluate", fitted, tmp_path / "d")
    assert "no split 'val'" in refused("evaluate", fitted, data, "--split", "val")
    assert "no folder or table" in refused("evaluate", fitted, tmp_path / "gone")
    assert "not a model folder" in refused("evaluate", data, data)
    for option in ("--out", "--csv", "--report"):
        assert f"{option} {tmp_path} is a folder" in refused(
            "evaluate", fitted, data, option, tmp_path
        )


def test_a_place_that_cannot_be_written_is_named_with_its_option(ogkd, fitted, data, tmp_path):
    (tmp_path / "file").write_text("x")
    for option in ("--out", "--csv", "--report"):
        words = ("evaluate", fitted, data, "--resamples", 0, option, tmp_path / "file" / "below")
        outcome = ogkd(*words)
        assert outcome.code == 2
        assert outcome.err.endswith(f"Choose another place (option {option}).\n")


def test_unreadable_images_are_listed_all_at_once(refused, fitted, tmp_path):
    for name in CLASSES:
        write_image(tmp_path / "d" / name / "0.png")
        (tmp_path / "d" / name / "bad.png").write_bytes(b"")
    path = tmp_path / "t.csv"
    path.write_text("path,label,split\ngone1.png,normal lung,test\ngone2.png,benign tumor,test\n")
    message = refused("evaluate", fitted, path)
    assert "gone1.png" in message
    assert "gone2.png" in message


def test_broken_images_are_listed_all_at_once(ogkd, fitted, tmp_path):
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "bad.png").write_bytes(b"")
    outcome = ogkd("evaluate", fitted, tmp_path)
    assert outcome.code == 2
    assert "3 file(s) could not be read" in outcome.err
    assert "Traceback" not in outcome.err
