"""Subgroups: the numbers of each are those of its cases alone, computed here in another way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

import ogkd
from ogkd.data.tasks import Findings
from ogkd.errors import ConfigError
from ogkd.evaluation import evaluate_predictions
from ogkd.images import dicom as reader
from tiny_images import SHADES, dicom
from world import fit, predictions


def with_columns(judged, **columns):
    """The same predictions of cases whose rows have these columns."""
    rows = zip(judged.cases, *columns.values(), strict=True)
    cases = [replace(case, columns=dict(zip(columns, cells, strict=True))) for case, *cells in rows]
    return replace(judged, cases=cases)


@pytest.fixture
def judged():
    """120 cases: site B is often wrong, C has nine, and one row does not name its site."""
    rng = np.random.default_rng(0)
    site = np.array(["A"] * 60 + ["B"] * 50 + ["C"] * 9 + [""])
    labels = rng.integers(0, 2, 120)
    wrong = rng.random(120) < np.where(site == "B", 0.5, 0.05)
    logits = np.where(np.eye(2, dtype=bool)[np.where(wrong, 1 - labels, labels)], 2.0, 0.0)
    sex = rng.choice(["f", "m"], 120)
    return with_columns(predictions(labels, logits), site=site.tolist(), sex=sex.tolist())


def test_each_group_has_its_own_accuracy_and_exact_interval(judged):
    result = evaluate_predictions(judged, resamples=20, by=["Site", "sex"])
    right = judged.logits.argmax(axis=1) == judged.labels
    for column, values in result["subgroups"].items():
        for value, row in values.items():
            names = [case.columns[column.lower()] or "not stated" for case in judged.cases]
            hits = right[np.array(names) == value]
            assert row["images"] == len(hits)
            if len(hits) < 10:
                assert row["group"] is None
                continue
            exact = binomtest(int(hits.sum()), len(hits)).proportion_ci(method="exact")
            assert row["group"]["accuracy"] == pytest.approx(hits.mean())
            assert row["group"]["intervals"]["accuracy"] == pytest.approx(list(exact))
    assert [len(values) for values in result["subgroups"].values()] == [4, 2]


def test_a_group_that_is_served_worse_is_named_and_small_ones_are_not_judged(judged):
    result = evaluate_predictions(judged, resamples=20, by=["site"])
    rows = result["subgroups"]["site"]
    assert [value for value, row in rows.items() if row["below_rest"]] == ["B"]
    text = result.text()
    assert "site 'B'" in text
    assert text.count("too few to tell") >= 2
    assert "Subgroups" in [section.title for section in result.sections]
    without = evaluate_predictions(judged, resamples=20)
    assert "subgroups" not in without
    assert "Subgroups" not in without.text(everything=True)


def test_images_of_few_patients_are_too_few_however_many_they_are(judged):
    few = [replace(case, group=f"p{row % 9}") for row, case in enumerate(judged.cases)]
    result = evaluate_predictions(replace(judged, cases=few), resamples=20, by=["sex"])
    assert all(row["group"] is None for row in result["subgroups"]["sex"].values())


def test_several_findings_are_measured_by_their_mean_auroc():
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, (80, 2))
    logits = (labels + rng.normal(size=(80, 2))).astype(np.float32)
    site = ["A"] * 50 + ["B"] * 30
    judged = with_columns(predictions(labels, logits, task=Findings(("cyst", "stone"))), site=site)
    result = evaluate_predictions(judged, resamples=200, by=["site"])
    for value, rows in (("A", slice(0, 50)), ("B", slice(50, 80))):
        group = result["subgroups"]["site"][value]["group"]
        assert group["macro/auroc"] == pytest.approx(
            roc_auc_score(labels[rows], logits[rows]), abs=1e-6
        )
        low, high = group["intervals"]["macro/auroc"]
        assert low < group["macro/auroc"] < high
    assert "mean AUROC" in result.text()


@pytest.mark.parametrize("names", [["hospital"], ["sex", "Manufacturer"]])
def test_unknown_columns_are_refused_with_those_that_there_are(judged, names):
    with pytest.raises(ConfigError, match="sex, site") as error:
        evaluate_predictions(judged, resamples=0, by=names)
    assert error.value.argument == "by"


def test_columns_of_measurements_or_names_are_refused(judged):
    named = with_columns(judged, name=[f"n{row}" for row in range(120)])
    with pytest.raises(ConfigError) as error:
        evaluate_predictions(named, resamples=0, by="name")
    assert error.value.argument == "by"


def test_dicom_fields_are_read_once_for_each_file(bert_backbone, tmp_path, monkeypatch):
    for label, name in enumerate(("dark", "bright")):
        for number in range(12):
            maker = {"Manufacturer": f"Maker {number % 2}"} if number else {}
            array = (SHADES.astype(int) // 2 + 100 * label + number).astype(np.uint8)
            (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
            dicom(tmp_path / "data" / name / f"{number}.dcm", array, PatientSex="F", **maker)
    model = fit(tmp_path / "data", bert_backbone, method="zero-shot-ensemble")
    read, header = [], reader._read_header

    def counted(file, tags):
        if "PatientSex" in tags:
            read.append(file)
        return header(file, tags)

    monkeypatch.setattr(reader, "_read_header", counted)
    result = ogkd.evaluate(model, tmp_path / "data", by=["Manufacturer", "PatientSex"])
    assert len(read) == len(set(read)) == 24
    counts = {value: row["images"] for value, row in result["subgroups"]["Manufacturer"].items()}
    assert counts == {"Maker 0": 10, "Maker 1": 12, "not stated": 2}
    assert list(result["subgroups"]["PatientSex"]) == ["F"]
    with pytest.raises(ConfigError):
        ogkd.evaluate(model, tmp_path / "data", by=["NoSuchKeyword"])
