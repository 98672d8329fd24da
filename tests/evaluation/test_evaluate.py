from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from ogkd.datasets.manifest import Manifest
from PIL import Image
from sklearn.metrics import cohen_kappa_score

from ogkd import evaluate, fit
from ogkd.datasets.catalog import benchmark
from ogkd.datasets.read import read_manifest
from ogkd.errors import DataError
from ogkd.evaluation import (
    evaluate_predictions,
    predict_labelled,
    summary_metrics,
)
from ogkd.evaluation.evaluate import grade_order
from ogkd.evaluation.metrics import class_columns, confusion_matrix
from ogkd.model.calibration import Calibration
from ogkd.model.card import ModelCard
from tiny_data import item_of, write_image


@pytest.fixture(scope="module")
def model(bert_backbone, pictures, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        return fit(pictures, backbone=bert_backbone, method="zero-shot-ensemble")


def test_the_metrics_are_those_of_the_models_own_predictions(model, pictures):
    items = read_manifest(pictures).part("test")
    said = model.predict([item.image for item in items])
    right = [model.class_names[item.label] == name for item, name in zip(items, said, strict=True)]
    found = evaluate(model, pictures)
    assert found["images"] == len(items) == 12
    assert found["accuracy"] == pytest.approx(sum(right) / len(right))
    assert evaluate(model, pictures, split="train", resamples=0)["images"] == 18


def test_classes_are_matched_by_name_whatever_their_order_and_case(model, pictures):
    manifest = read_manifest(pictures)
    shuffled = Manifest(
        tuple(item_of(item.image, (2, 0, 1)[item.label], item.split) for item in manifest.items),
        ("Dark_Field", "striped tissue", "BRIGHT SPOT"),
    )
    found, expected = (evaluate(model, data, resamples=0) for data in (shuffled, manifest))
    assert found == expected


def test_a_class_the_model_does_not_know_is_refused_with_those_it_knows(model, pictures):
    manifest = read_manifest(pictures)
    strange = Manifest(manifest.items, ("bright spot", "cyst", "stone"))
    with pytest.raises(DataError, match="cyst, stone") as error:
        evaluate(model, strange)
    assert "bright spot, dark field, striped tissue" in str(error.value)


def test_data_may_lack_classes_of_the_model(model, pictures):
    manifest = read_manifest(pictures)
    some = Manifest(tuple(i for i in manifest.items if i.label != 1), manifest.class_names)
    found = evaluate(model, some, resamples=20)
    assert found["images"] == 8
    assert found["per_class"]["dark field"]["images"] == 0
    assert found["per_class"]["dark field"]["recall"] is None
    assert found["per_class"]["dark field"]["intervals"]["recall"] is None
    json.dumps(found, allow_nan=False)


def test_all_files_that_are_missing_or_broken_are_named(model, tmp_path):
    good = write_image(tmp_path / "good.png")
    gone = Manifest(
        (item_of(tmp_path / "no1", 0), item_of(good, 0), item_of(tmp_path / "no2", 1)),
        ("bright spot", "dark field"),
    )
    with pytest.raises(DataError, match="no1") as error:
        evaluate(model, gone)
    assert "no2" in str(error.value)
    for name in ("bad1.png", "bad2.png"):
        (tmp_path / name).write_bytes(b"no picture")
    broken = Manifest(
        tuple(item_of(tmp_path / name, 0) for name in ("bad1.png", "good.png", "bad2.png")),
        ("bright spot", "dark field"),
    )
    with pytest.raises(DataError, match=r"bad1\.png") as error:
        evaluate(model, broken)
    assert "bad2.png" in str(error.value)


def test_what_is_described_is_what_each_measure_says_alone(model, pictures):
    judged = predict_labelled(model, pictures)
    p = model.probabilities(judged.features)
    found = evaluate_predictions(judged, resamples=50, graded=True)
    summary = summary_metrics(judged.labels, p, graded=True)
    for key in set(summary) - {"aurc"}:
        assert found[key] == pytest.approx(summary[key], abs=1e-6), key
    assert found["selective"]["aurc"] == pytest.approx(summary["aurc"])
    table = confusion_matrix(judged.labels, p.argmax(axis=1), len(model.class_names))
    columns = {key: np.nan_to_num(values) for key, values in class_columns(table).items()}
    for label, name in enumerate(model.class_names):
        for key in ("precision", "recall", "f1"):
            assert (found["per_class"][name][key] or 0.0) == pytest.approx(columns[key][label])
    low, high = found["intervals"]["accuracy"]
    assert low <= found["accuracy"] <= high
    assert np.sum(found["confusion"]) == 12
    assert np.trace(found["confusion"]) == round(12 * found["accuracy"])
    assert found["screening"] is None
    assert found["calibration"] is found["sets"] is found["abstain"] is None


def test_the_same_seed_gives_the_same_intervals_and_another_does_not(model, pictures):
    judged = predict_labelled(model, pictures)
    first, again, other = (
        evaluate_predictions(judged, resamples=50, seed=seed)["intervals"]["nll"]
        for seed in (0, 0, 1)
    )
    assert first == again != other


def test_patients_are_resampled_where_they_are_known(model, pictures):
    judged = replace(predict_labelled(model, pictures), groups=["p", "q", None] * 4)
    found = evaluate_predictions(judged, resamples=10)
    assert (found["groups"], found["bootstrap"]["by"]) == (2, "group")


def test_screening_is_shown_where_a_class_is_normal(model, pictures):
    judged = replace(predict_labelled(model, pictures), normal=(1,))
    found = evaluate_predictions(judged, resamples=10)["screening"]
    assert (found["normal"], found["diseased_images"], found["normal_images"]) == (
        ["dark field"],
        8,
        4,
    )
    assert found["missed"] == round(8 * (1 - found["sensitivity"]))
    assert found["false_positives"] == round(4 * (1 - found["specificity"]))


def test_calibration_changes_probabilities_but_no_prediction(model, pictures):
    judged = predict_labelled(model, pictures)
    many = np.tile(judged.logits, (5, 1)), np.tile(judged.labels, 5)
    calibration = Calibration.fit(*many, [*judged.keys, *(f"other {n}" for n in range(48))])
    calibration = calibration.model_copy(update={"temperature": 2.0, "reason": None})
    before, after = (
        evaluate_predictions(judged, each, resamples=0) for each in (None, calibration)
    )
    assert after["accuracy"] == before["accuracy"]
    assert after["nll"] != before["nll"]
    assert after["calibration"]["before"]["nll"] == before["nll"]
    assert after["calibration"]["after"]["nll"] == after["nll"]
    assert [(row["kind"], row["wanted"]) for row in after["sets"]][:2] == [
        ("lac", 0.9),
        ("aps", 0.9),
    ]
    assert all("coverage" in row or "note" in row for row in after["sets"])
    assert all("threshold" in row or "note" in row for row in after["abstain"])
    assert (before["calibrated_on"], after["calibrated_on"]) == (0, 12)


def test_images_that_were_learned_from_are_counted(bert_backbone, pictures):
    model = fit(pictures, backbone=bert_backbone, method="linear-probe", shots=2)
    assert len(model.card.support_images) == 6
    assert evaluate(model, pictures, split="train", resamples=0)["learned_from"] == 6
    assert evaluate(model, pictures, resamples=0)["learned_from"] == 0


def test_the_same_pixels_in_another_file_format_are_a_leak(bert_backbone, pictures, tmp_path):
    model = fit(pictures, backbone=bert_backbone, method="logistic", shots=2)
    train = read_manifest(pictures).part("train")
    learned = [i for i in train if i.image.fingerprint in model.card.support_images][:3]
    items = list(read_manifest(pictures).part("test"))
    for number, item in enumerate(learned):
        place = tmp_path / f"{number}.tif"
        Image.open(item.image.file).save(place)
        items.append(item_of(place, item.label, "test"))
    data = Manifest(tuple(items), model.class_names)
    found = evaluate(model, data, resamples=0)
    assert (found["images"], found["learned_from"], found["left_out"]) == (15, 3, 0)
    assert found["verdict"]["headline"] == "No verdict: the model learned from these images"
    found = evaluate(model, data, resamples=0, leave_out_used=True)
    assert (found["images"], found["learned_from"], found["left_out"]) == (12, 0, 3)
    assert "No verdict" not in found["verdict"]["text"]
    with pytest.raises(DataError, match="all of these 3 images"):
        evaluate(model, Manifest(tuple(items[-3:]), model.class_names), leave_out_used=True)
    older = model.card.model_dump()  # written before pixels were noted
    del older["support_pixels"]
    assert ModelCard.model_validate(older).seen == set(model.card.support_images)


def test_the_result_says_where_calibration_made_probabilities_worse(model, pictures):
    judged = predict_labelled(model, pictures)
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 600)
    logits = rng.normal(size=(600, 3)).astype(np.float32)
    logits[np.arange(600), labels] += 2
    many = replace(
        judged,
        labels=labels,
        logits=logits,
        features=np.zeros((600, 2), np.float32),
        images=judged.images * 50,
        groups=[None] * 600,
        keys=[str(n) for n in range(600)],
    )
    fitted = Calibration.fit(logits, labels, many.keys)
    texts = {}
    for temperature in (1.0, 0.1, fitted.temperature):
        reason = "probabilities stay as they are." if temperature == 1 else None
        changed = fitted.model_copy(
            update={"temperature": temperature, "reason": reason, "image_keys": ()}
        )
        texts[temperature] = evaluate_predictions(many, changed, resamples=0)["calibration"]["text"]
    assert texts[1.0] == "probabilities stay as they are."
    assert "more confident" in texts[0.1]
    assert "got worse: calibrate again" in texts[0.1]
    assert fitted.applied
    assert texts[fitted.temperature].endswith("its probabilities improved.")


def test_grades_are_known_from_the_catalogue_in_any_order_and_spelling():
    grades = benchmark("kneexray").class_names
    assert grade_order(grades) == (0, 1, 2, 3, 4)
    in_a_folder = sorted(name.replace(" ", "_").title() for name in grades)
    assert grade_order(in_a_folder) == (1, 0, 2, 3, 4)  # "doubtful" goes before "healthy"
    assert grade_order(grades[:3]) == grade_order((*grades[:4], grades[0])) == ()
    assert grade_order((*grades, "Healthy_Knee")) == ()
    assert grade_order(benchmark("busi").class_names) == ()


def test_kappa_of_a_folder_is_that_of_its_grades(model, pictures):
    rng = np.random.default_rng(4)
    names = benchmark("kneexray").class_names
    grades = np.arange(12) % 5
    logits = rng.normal(size=(12, 5)).astype(np.float32)
    logits[np.arange(12), grades] += 1
    judged = predict_labelled(model, pictures)
    listed = replace(judged, labels=grades, logits=logits, class_names=names)
    place = np.array([1, 0, 2, 3, 4])  # of each grade among the sorted names
    folder = replace(
        judged, labels=place[grades], logits=logits[:, place], class_names=tuple(sorted(names))
    )
    expected, found = (evaluate_predictions(each, resamples=100) for each in (listed, folder))
    kappa = cohen_kappa_score(grades, logits.argmax(axis=1), weights="quadratic")
    assert found["graded"] is True
    assert found["kappa"] == pytest.approx(expected["kappa"]) == pytest.approx(kappa)
    assert found["intervals"]["kappa"] == pytest.approx(expected["intervals"]["kappa"])
    assert list(found["per_class"]) == sorted(names)  # the rest keeps the model's order
    as_given = evaluate_predictions(folder, resamples=0, graded=True)
    order = cohen_kappa_score(folder.labels, folder.logits.argmax(axis=1), weights="quadratic")
    assert as_given["kappa"] == pytest.approx(order) != pytest.approx(kappa)
    assert "kappa" not in evaluate_predictions(folder, resamples=0, graded=False)
    json.dumps(found, allow_nan=False)
