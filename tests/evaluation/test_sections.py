"""What an evaluation says: sections, warnings, and their plain text."""

from __future__ import annotations

import copy
import json

import numpy as np

from ogkd.data.tasks import Findings, OneOf
from ogkd.evaluation import Evaluation, evaluate_predictions
from ogkd.evaluation.sections import cell, in_units, join_words, name_columns, percent
from ogkd.model.calibration import Calibration
from world import predictions

NAMES = ("cyst", "mass", "normal", "stone")


def outcome(counts, normal=(), **options):
    """The evaluation of images that are classified in this way."""
    classes = len(counts)
    cells = [(a, b) for a in range(classes) for b in range(classes) for _ in range(counts[a][b])]
    truth, answers = np.array(cells).T
    p = np.full((len(cells), classes), (1 - 0.8) / (classes - 1))
    p[np.arange(len(cells)), answers] = 0.8
    task = OneOf(NAMES[:classes], tuple(normal))
    return evaluate_predictions(
        predictions(truth, np.log(p), task=task), **{"resamples": 0, **options}
    )


def section(result, title):
    """The text and the rows of a section by the start of its title."""
    [made] = [each for each in result.sections if each.title.startswith(title)]
    return " ".join(made.text), made.table and made.table.rows


def test_the_summary_speaks_of_counts_that_a_reader_can_check():
    result = outcome([[40, 10, 0], [5, 45, 0], [5, 5, 40]], normal=(2,))
    text, _ = section(result, "Summary")
    assert "cyst mistaken for mass (10 of 50), mass mistaken for cyst (5 of 50)" in text
    text, rows = section(result, "Screening")
    assert "100 of 100 images with a finding are detected, with false alarms on 10 of 50" in text
    assert "Flagging as many images by chance would detect 73 %" in text
    assert dict(rows)["Specificity"] == "80.0"
    _, rows = section(result, "Confusion matrix")
    assert rows[0] == ("cyst", "40 (80 %)", "10 (20 %)", "0 (0 %)")


def test_few_images_do_not_make_a_model_overconfident():
    few, many = [[6, 4], [3, 7]], [[60, 40], [30, 70]]  # 65 % right where 80 % are stated
    assert "may be chance with so few images" in section(outcome(few, resamples=20), "Summary")[0]
    assert "it is overconfident" in section(outcome(many, resamples=20), "Summary")[0]


def test_a_spread_that_is_no_evidence_is_not_shown():
    result = outcome([[4, 0], [0, 4]], resamples=20)
    assert "Few images of cyst (4) and mass (4)" in result["warnings"][0]
    _, rows = section(result, "Performance")
    shown = {name: interval for name, _, interval in rows}
    assert shown["Macro-F1 (%)"] == shown["AUROC (%)"] == "too few to tell"
    assert shown["Accuracy (%)"] == "63.1 to 100.0"
    assert shown["ECE (%)"] == ""
    assert not any(row[2] for row in section(outcome([[4, 0], [0, 4]]), "Performance")[1])


def test_cases_of_several_images_are_called_by_their_unit():
    result = outcome([[30, 2], [3, 20]])
    result["unit"] = "exam"
    assert "The fewer exams it keeps" in section(result, "Referring")[0]
    assert result.sections[1].table.head[1] == "exams"
    assert in_units("3 images", {"unit": "exam", "class_names": ["no image"]}) == "3 images"


def test_findings_have_their_own_sections():
    y = np.tile([[1, 0], [0, 1], [1, 1], [0, -1]], (10, 1))
    judged = predictions(y, 2.0 * y - 1, task=Findings(("edema", "noise")))
    result = evaluate_predictions(judged, resamples=20)
    assert [each.key for each in result.sections] == ["findings", "answers"]
    _, rows = section(result, "Each finding")
    assert rows[1][:5] == ("noise", "20", "10", "10", "100.0 [69-100]")
    assert "not calibrated" in section(result, "Answers")[0]


def test_a_result_is_a_plain_dictionary_that_shows_its_verdict():
    result = outcome([[30, 2], [3, 20]], resamples=20)
    assert isinstance(result, Evaluation)
    assert json.loads(json.dumps(result)) == result == copy.deepcopy(result)
    text = repr(result)
    assert text.startswith("Evaluation on 55 images\n")
    assert " ".join(result["verdict"]["text"].split()) in " ".join(text.split())
    assert "AURC" not in text
    assert "AURC" in result.text(everything=True)
    result["warnings"].append("The model learned from 3 of these images.")
    assert "Warning: The model learned from 3" in repr(result)


def test_lines_fit_the_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = outcome([[30, 2, 1], [3, 20, 1], [0, 0, 30]], normal=(2,), resamples=20)
    names = ["an invasive carcinoma of no special type, grade three", *NAMES[1:3]]
    result["class_names"] = names
    result["per_class"] = dict(zip(names, result["per_class"].values(), strict=True))
    text = result.text(everything=True)
    assert max(map(len, text.splitlines())) <= 80
    assert all(word in text for word in ("recall", "specificity", "precision", "F1", "AUROC"))


def test_an_interval_in_whole_percents_never_excludes_its_value():
    values = {"npv": 0.998, "recall": 0.61, "f1": None}
    values["intervals"] = {"npv": (0.996, 0.999), "recall": (0.452, 0.758)}
    shown = [cell(values, key) for key in ("npv", "recall", "f1")]
    assert shown == ["99.8 [99.6-99.9]", "61.0 [45-76]", "-"]


def test_words_numbers_and_columns():
    assert [join_words(list("abc"[:n])) for n in range(4)] == ["", "a", "a and b", "a, b and c"]
    assert [percent(value) for value in (0.2, 0.996, 1, 0.0004)] == [
        "20 %",
        "99.6 %",
        "100 %",
        "0.0 %",
    ]
    assert name_columns(("a", "b")) == (("a", "b"), ("a", "b"))
    columns, rows = name_columns([f"class {letter}" for letter in "abcdefghij"])
    assert (columns[9], rows[9]) == ("10", "10 class j")


def test_sets_and_thresholds_are_not_called_guaranteed_where_all_cases_fit_the_scale():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    judged = predictions(labels, rng.normal(size=(60, 3)) + 2 * np.eye(3)[labels])
    texts = {}
    for split in (True, False):
        keys = [f"{row:04}" for row in range(60)]
        calibration = Calibration.fit(judged.task, judged.logits, labels, keys, split=split)
        result = evaluate_predictions(judged, calibration=calibration, resamples=0)
        texts[split] = result.text(everything=True)
    assert "guaranteed" in texts[True]
    assert "guaranteed" not in texts[False]
    assert "an estimate, not a guarantee" in " ".join(texts[False].split())
