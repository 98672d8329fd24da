from __future__ import annotations

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics import cohen_kappa_score

from ogkd import evaluate
from ogkd.data.case import Dataset
from ogkd.data.catalog import benchmark
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import DataError
from ogkd.evaluation import evaluate_predictions, predict_labelled, summary_metrics
from ogkd.evaluation.evaluate import grade_order
from ogkd.evaluation.metrics import class_columns, confusion_matrix
from ogkd.model.calibration import Calibration
from tiny_data import case_of, write_image
from world import fit, predictions


@pytest.fixture(scope="module")
def model(bert_backbone, pictures, module_cache):
    return fit(pictures, bert_backbone, method="zero-shot-ensemble")


@pytest.fixture
def judged(model, pictures):
    return predict_labelled(model, pictures)


def calibrated(calibration, temperature, reason=None):
    question = calibration.questions[0].model_copy(
        update={"scale": 1 / temperature, "reason": reason}
    )
    return calibration.model_copy(update={"questions": (question,)})


def test_the_metrics_are_those_of_the_models_own_predictions(model, pictures):
    cases = read_dataset(pictures).part("test")
    answers = model.predict([case.image for case in cases])
    right = [model.task.text(c.target) == name for c, name in zip(cases, answers, strict=True)]
    result = evaluate(model, pictures)
    assert result["images"] == len(cases) == 12
    assert result["accuracy"] == pytest.approx(sum(right) / len(right))
    assert evaluate(model, pictures, split="train", resamples=0)["images"] == 18


def test_classes_are_matched_by_name_whatever_their_order_and_case(model, pictures):
    dataset = read_dataset(pictures)
    shuffled = replace(
        dataset.map(lambda case: replace(case, target=(2, 0, 1)[case.target])),
        task=OneOf(("Dark_Field", "striped tissue", "BRIGHT SPOT")),
    )
    first, second = (evaluate(model, data, resamples=0) for data in (shuffled, dataset))
    assert first == second
    with pytest.raises(DataError, match="cyst, stone"):
        evaluate(model, replace(dataset, task=OneOf(("bright spot", "cyst", "stone"))))


@pytest.mark.parametrize("written", [False, True])
def test_all_files_that_are_missing_or_broken_are_named(model, tmp_path, written):
    good = write_image(tmp_path / "good.png")
    bad = [tmp_path / "bad1.png", tmp_path / "bad2.png"]
    for path in bad if written else []:
        path.write_bytes(b"not an image")
    cases = tuple(case_of(path, 0) for path in (bad[0], good, bad[1]))
    with pytest.raises(DataError, match=r"(?s)bad1\.png.*bad2\.png"):
        evaluate(model, Dataset(cases, OneOf(("bright spot", "dark field"))))


def test_what_is_described_is_what_each_measure_says_alone(model, judged):
    p = model.probabilities(judged.features)
    result = evaluate_predictions(judged, resamples=50)
    summary = summary_metrics(judged.labels, p)
    for key in set(summary) - {"aurc"}:
        assert result[key] == pytest.approx(summary[key], abs=1e-6), key
    assert result["selective"]["aurc"] == pytest.approx(summary["aurc"])
    table = confusion_matrix(judged.labels, p.argmax(axis=1), len(model.class_names))
    columns = {key: np.nan_to_num(values) for key, values in class_columns(table).items()}
    for label, name in enumerate(model.class_names):
        for key in ("precision", "recall", "f1"):
            assert (result["per_class"][name][key] or 0.0) == pytest.approx(columns[key][label])
    low, high = result["intervals"]["accuracy"]
    assert low <= result["accuracy"] <= high
    assert np.sum(result["confusion"]) == 12
    assert np.trace(result["confusion"]) == round(12 * result["accuracy"])
    assert result["screening"] is None
    assert result["calibration"] is result["sets"] is result["abstain"] is None


def test_patients_are_resampled_where_they_are_known(judged):
    patients = ["p", "q", None] * 4
    pairs = zip(judged.cases, patients, strict=True)
    grouped = replace(judged, cases=[replace(case, group=patient) for case, patient in pairs])
    result = evaluate_predictions(grouped, resamples=10)
    assert (result["groups"], result["bootstrap"]["by"]) == (2, "group")


def test_calibration_changes_probabilities_but_no_prediction(judged):
    many = np.tile(judged.logits, (5, 1)), np.tile(judged.labels, 5)
    keys = [*judged.keys, *(f"other {n}" for n in range(48))]
    calibration = calibrated(Calibration.fit(judged.task, *many, keys), 2.0)
    before, after = (
        evaluate_predictions(judged, calibration=each, resamples=0) for each in (None, calibration)
    )
    assert after["accuracy"] == before["accuracy"]
    assert after["nll"] != before["nll"]
    assert after["calibration"]["before"]["nll"] == before["nll"]
    assert after["calibration"]["text"].endswith("less confident (temperature 2.00).")
    assert [(row["kind"], row["wanted"]) for row in after["sets"]] == [("lac", 0.9), ("lac", 0.95)]
    assert all("coverage" in row or "note" in row for row in after["sets"])
    assert all("threshold" in row or "note" in row for row in after["abstain"])
    assert (before["calibrated_on"], after["calibrated_on"]) == (0, 12)


def test_the_same_pixels_in_another_file_format_are_a_leak(bert_backbone, pictures, tmp_path):
    model = fit(pictures, bert_backbone, method="clap", shots=2)
    dataset = read_dataset(pictures)
    train = dataset.part("train")
    learned = [c for c in train if c.image.fingerprint in model.card.support_images][:3]
    copies = []
    for number, case in enumerate(learned):
        path = tmp_path / f"{number}.tif"
        Image.open(case.image.file).save(path)
        copies.append(case_of(path, case.target, "test"))
    data = dataset.with_cases([*dataset.part("test"), *copies])
    assert evaluate(model, pictures, split="train", resamples=0)["learned_from"] == 6
    result = evaluate(model, data, resamples=20)
    assert (result["images"], result["learned_from"]) == (15, 3)
    assert set(result["intervals"].values()) == {None}
    assert "interval" not in result["verdict"]["text"]
    assert result["verdict"]["better_than_guessing"] is None
    assert re.search("learned from 3 of these 15 .* no bounds", result["warnings"][0])
    result = evaluate(model, data, resamples=0, leave_out_used=True)
    assert (result["images"], result["learned_from"], result["left_out"]) == (12, 0, 3)
    with pytest.raises(DataError) as error:
        evaluate(model, data.with_cases(copies), leave_out_used=True)
    assert error.value.argument == "split"
    held_out = replace(predict_labelled(model, pictures, split="train"), held_out=True)
    assert evaluate_predictions(held_out, model, resamples=0)["learned_from"] == 0


def test_a_calibration_that_made_probabilities_worse_is_warned_of():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    logits = rng.normal(size=(600, 3)).astype(np.float32)
    logits[np.arange(600), labels] += 2
    many = predictions(labels, logits)
    fitted = Calibration.fit(many.task, logits, labels, many.keys)
    fitted = fitted.model_copy(update={"image_keys": (), "image_pixels": ()})
    assert fitted.questions[0].applied
    worse, better, same = (
        evaluate_predictions(many, calibration=each, resamples=0)
        for each in (calibrated(fitted, 0.1), fitted, calibrated(fitted, 1.0, "stay as they are."))
    )
    assert "calibrate again" in worse["warnings"][0]
    assert better["warnings"] == same["warnings"] == []
    titles = [chart.title for section in better.sections for chart in section.charts]
    assert titles[1:] == ["Before calibration", "After calibration"]
    assert same["calibration"]["text"] == "stay as they are."


def test_grades_are_known_from_the_catalogue_in_any_order_and_spelling():
    grades = benchmark("kneexray").class_names
    assert grade_order(grades) == (0, 1, 2, 3, 4)
    in_a_folder = sorted(name.replace(" ", "_").title() for name in grades)
    assert grade_order(in_a_folder) == (1, 0, 2, 3, 4)  # "doubtful" goes before "healthy"
    assert grade_order(grades[:3]) == grade_order((*grades[:4], grades[0])) == ()
    assert grade_order((*grades, "Healthy_Knee")) == ()
    assert grade_order(benchmark("busi").class_names) == ()


def test_kappa_of_a_folder_is_that_of_its_grades():
    rng = np.random.default_rng(4)
    names = benchmark("kneexray").class_names
    grades = np.arange(12) % 5
    logits = rng.normal(size=(12, 5)).astype(np.float32)
    logits[np.arange(12), grades] += 1
    listed = predictions(grades, logits, task=OneOf(names))
    position = np.array([1, 0, 2, 3, 4])  # of each grade among the sorted names
    folder = predictions(position[grades], logits[:, position], task=OneOf(tuple(sorted(names))))
    expected, result = (evaluate_predictions(each, resamples=100) for each in (listed, folder))
    kappa = cohen_kappa_score(grades, logits.argmax(axis=1), weights="quadratic")
    assert result["graded"] is True
    assert result["kappa"] == pytest.approx(expected["kappa"]) == pytest.approx(kappa)
    assert result["intervals"]["kappa"] == pytest.approx(expected["intervals"]["kappa"])
    assert list(result["per_class"]) == sorted(names)  # the rest keeps the model's order
    json.dumps(result, allow_nan=False)
