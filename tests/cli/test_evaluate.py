from __future__ import annotations

import csv
import json
import re

import pytest

import ogkd as library
from ogkd.cli.output import evaluation_lines
from tiny_data import CLASSES, write_dataset, write_image


def test_json_is_what_the_library_says(ogkd, fitted, data, tmp_path):
    out = tmp_path / "new" / "r.json"
    outcome = ogkd("evaluate", fitted, data, "--json", "--out", out, "--resamples", 50)
    assert (outcome.code, outcome.err) == (0, "")
    expected = library.evaluate(library.load(fitted), data, resamples=50)
    assert json.loads(outcome.out) == json.loads(out.read_text()) == expected
    assert {"images", "accuracy", "macro_f1", "per_class"} < set(expected)


def test_the_table_has_a_line_for_each_class_and_each_measure(ogkd, fitted, data):
    outcome = ogkd("evaluate", fitted, data, "--resamples", 0, "--all")
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.split("For statisticians\n")[1].splitlines()
    assert lines[0] == "6 images"
    expected = library.evaluate(library.load(fitted), data, resamples=0)

    def line(start):
        return next(line for line in lines if line.startswith(start))[len(start) :].split()

    assert line("accuracy") == [f"{100 * expected['accuracy']:.1f}", "%"]
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
    out = ogkd("evaluate", fitted, data, "--resamples", 40, "--all").out
    assert "95 % intervals by images" in out
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


def test_images_that_were_used_can_be_left_out(ogkd, refused, fitted, tmp_path):
    data = write_dataset(tmp_path / "d", splits={"": 4})  # nine of twelve are those of train
    words = ("evaluate", fitted, data, "--resamples", 0, "--leave-out-used")
    outcome = ogkd(*words, "--json", "--report", tmp_path / "r.html")
    assert outcome.code == 0, outcome.err
    assert "Left out 9 images that the model learned from or was calibrated on; 3" in outcome.err
    assert "Warning" not in outcome.err
    found = json.loads(outcome.out)
    assert (found["images"], found["left_out"], found["learned_from"]) == (3, 9, 0)
    assert "of 3 images correctly" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_the_verdict_comes_first_and_the_statistics_only_if_asked_for(ogkd, fitted, data):
    out = ogkd("evaluate", fitted, data, "--resamples", 0).out
    said = library.evaluate(library.load(fitted), data, resamples=0)["verdict"]["text"]
    assert " ".join(out.split()).startswith(said)
    assert "AURC" not in out
    assert "More: --all" in out


@pytest.mark.parametrize("everything", [True, False])
def test_lines_fit_a_terminal_of_80_columns(ogkd, fitted, data, monkeypatch, everything):
    result = library.evaluate(library.load(fitted), data, resamples=30)
    long = "an invasive carcinoma of no special type, grade three"
    names = [long, *result["class_names"][1:]]
    result["class_names"] = names
    result["per_class"] = dict(zip(names, result["per_class"].values(), strict=True))
    monkeypatch.setenv("COLUMNS", "80")
    lines = "\n".join(evaluation_lines(result, everything=everything)).splitlines()
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "an invasive carcinoma of\u2026" in text or "an invasive carcinoma of \u2026" in text
    if everything:
        assert all(word in text for word in ("recall", "specificity", "precision", "F1", "AUROC"))


def test_what_cannot_be_guaranteed_is_one_sentence(ogkd, model, tmp_path):
    others = write_dataset(tmp_path, splits={"train": 1, "val": 8, "test": 2})
    assert ogkd("calibrate", model, others).code == 0
    out = ogkd("evaluate", model, others, "--resamples", 0, "--all").out
    assert "None for at most 1 %, 2 %, 5 %" in out
    assert not [line for line in out.splitlines() if line.split()[2:3] == ["none"]]


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


def test_a_prevalence_adds_a_row_of_predictive_values(ogkd, fitted, data, tmp_path):
    page = tmp_path / "report.html"
    outcome = ogkd("evaluate", fitted, data, "--prevalence", "0.07", "--all", "--report", page)
    assert outcome.code == 0
    evaluation = library.evaluate(library.load(fitted), data, prevalence=0.07)
    row = evaluation["screening"]["at_prevalence"][2]
    assert row["prevalence"] == 0.07
    assert f"{100 * row['accuracy']:.1f}" in outcome.out
    assert "7 %" in page.read_text(encoding="utf-8")


def test_an_interval_in_whole_percents_never_excludes_its_value():
    from ogkd.cli.output import _share

    values = {"npv": 0.998, "recall": 0.61, "intervals": {"npv": (0.996, 0.999)}}
    values["intervals"]["recall"] = (0.452, 0.758)  # type: ignore[index]
    assert _share(values, "npv") == "99.8 [99.6-99.9]"
    assert _share(values, "recall") == "61.0 [45-76]"
