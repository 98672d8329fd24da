"""DataFrames in and out: what a file would say, cell by cell."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import ogkd
from ogkd.data.fetch import resolve_data
from ogkd.data.read import read_dataset
from ogkd.data.tasks import Findings
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation import evaluate_predictions
from ogkd.model.table import row_writer
from tiny_data import rows_of, write_exams
from world import fit, predictions


@pytest.fixture(scope="module")
def model(bert_backbone, pictures, module_cache):
    return fit(pictures, bert_backbone, method="fused")


@pytest.fixture
def frame(pictures):
    """The pictures as a table, with patients as numbers and a missing one."""
    files = sorted(pictures.rglob("*.png"))
    return pd.DataFrame(
        {
            "Path": [str(file) for file in files],
            "label": [file.parent.name.replace("_", " ") for file in files],
            "split": [file.parts[-3] for file in files],
            "patient": [float(n) for n in range(len(files) - 1)] + [np.nan],
            "site": ["A", "B"] * (len(files) // 2),
        },
        index=range(100, 100 + len(files)),
    )


def test_a_frame_is_read_as_the_same_table_in_a_file(frame, tmp_path):
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected, dataset = read_dataset(tmp_path / "t.csv"), resolve_data(frame)
    assert rows_of(dataset.cases) == rows_of(expected.cases)
    assert dataset.task == expected.task
    assert [case.columns["site"] for case in dataset.cases] == frame["site"].tolist()


def test_models_are_fitted_and_evaluated_on_frames(bert_backbone, pictures, frame, model):
    same = fit(frame, bert_backbone, method="fused")
    files = [str(file) for file in sorted(pictures.rglob("test/*/*.png"))]
    np.testing.assert_allclose(same.predict_proba(files), model.predict_proba(files), atol=1e-6)
    result = ogkd.evaluate(same, frame, resamples=0, by=["site"])
    assert result["accuracy"] == ogkd.evaluate(model, pictures, resamples=0)["accuracy"]
    renamed = frame.rename(columns={"Path": "file"})
    assert resolve_data(renamed, columns={"path": "file"}).names == same.class_names


def test_findings_and_relative_paths_are_read_from_frames(tmp_path, monkeypatch):
    table = write_exams(tmp_path, per_class=2, findings=True)
    dataset = resolve_data(pd.read_csv(table), root=tmp_path)
    assert rows_of(dataset.cases) == rows_of(read_dataset(table).cases)
    assert dataset.names == ("spot", "streak")
    monkeypatch.chdir(tmp_path)
    here = resolve_data(pd.read_csv(table))
    assert all(image.file.is_file() for image in here.images)


def test_a_frame_that_is_no_table_of_images_is_refused(frame):
    for bad in (frame.drop(columns="Path"), frame.iloc[:0], frame.assign(label=None)):
        with pytest.raises(DataError, match="The DataFrame") as error:
            resolve_data(bad)
        assert ".csv" not in str(error.value)


class ClassLabel:
    def __init__(self, *names):
        self.names = names


class Image:
    def __init__(self, decode=True):
        self.decode = decode


class Hugging:
    """What is used of a `datasets.Dataset`, which decodes images unless told otherwise."""

    def __init__(self, rows, features):
        self.rows, self.features = rows, features

    def cast_column(self, name, feature):
        return Hugging(self.rows, {**self.features, name: feature})

    def __iter__(self):
        assert not self.features["photo"].decode
        return iter(self.rows)


@pytest.mark.parametrize("embedded", [True, False])
def test_a_hugging_face_dataset_is_read_as_the_table_of_its_rows(
    frame, bert_backbone, model, pictures, embedded
):
    names = sorted(set(frame["label"]), reverse=True)  # its own order of classes
    features = {"photo": Image(), "finding": ClassLabel(*names), "patient": object()}
    parts = {"train": [], "test": []}
    for number, row in enumerate(frame.to_dict("records")):
        path = row["Path"]
        content = Path(path).read_bytes() if embedded else None
        photo = {"bytes": content, "path": Path(path).name if embedded else path}
        finding = names.index(row["label"])
        record = {"photo": photo, "finding": finding, "patient": f"p{number}"}
        parts[row["split"]].append(record)
    parts["test"].append({**parts["test"][0], "finding": -1})
    source = {split: Hugging(rows, features) for split, rows in parts.items()}
    dataset = resolve_data(source)
    assert dataset.names == tuple(names)
    assert len(dataset.cases) == len(frame)
    assert len({case.group for case in dataset.cases}) == len(frame)
    assert "1 image of the dataset without a label" in dataset.ignored[0][0]
    assert {case.split for case in dataset.cases} == {"train", "test"}
    contents = {case.fingerprint for case in resolve_data(frame).cases}
    assert {case.fingerprint for case in dataset.cases} == contents
    fitted = fit(source, bert_backbone, method="fused")
    files = [str(file) for file in sorted(pictures.rglob("test/*/*.png"))]
    np.testing.assert_allclose(
        fitted.predict_proba(files)[:, ::-1], model.predict_proba(files), atol=1e-5
    )
    only = Hugging(parts["train"], features)
    assert {case.split for case in resolve_data(only).cases} == {""}
    with pytest.raises(DataError, match="0 columns of type Image") as error:
        resolve_data(Hugging(parts["train"], {"finding": features["finding"]}))
    assert error.value.argument == "columns"


def test_decisions_as_a_frame_are_the_table_that_predict_writes(model, pictures):
    files = [*sorted(map(str, pictures.rglob("test/*/*.png"))), "gone.png"]
    frame = model.predict_frame(files)
    text = io.StringIO()
    write = row_writer(text, model.task, "csv", joined=False)
    for decision in model.decide(files):
        write(decision)
    written = pd.read_csv(io.StringIO(text.getvalue()))
    assert list(frame.columns) == list(written.columns)
    assert len(frame) == len(files)
    for name in ("path", "prediction", "unfamiliar"):
        assert frame[name].fillna("").tolist() == written[name].fillna("").tolist()
    np.testing.assert_allclose(frame["probability"].astype(float), written["probability"])
    assert "gone.png" in frame["error"].iloc[-1]


def test_metrics_as_a_frame_are_those_of_the_evaluation(model, pictures):
    result = ogkd.evaluate(model, pictures, resamples=50)
    frame = result.to_frame().set_index(["part", "metric"])
    row = frame.loc[("", "accuracy")]
    assert row.tolist() == [result["accuracy"], *result["intervals"]["accuracy"]]
    name = model.class_names[0]
    recall = frame.loc[(f"per_class/{name}", "recall")]
    assert recall["value"] == result["per_class"][name]["recall"]
    assert frame.loc[("", "ece"), "value"] == result["ece"]
    assert frame.index.is_unique
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, (40, 2))
    judged = predictions(
        labels, labels + rng.normal(size=(40, 2)), task=Findings(("cyst", "stone"))
    )
    result = evaluate_predictions(judged, resamples=50)
    frame = result.to_frame().set_index(["part", "metric"])
    assert frame.loc[("macro", "auroc"), "value"] == result["macro"]["auroc"]
    assert (
        frame.loc[("per_finding/cyst", "auroc"), "low"]
        == (result["per_finding"]["cyst"]["intervals"]["auroc"][0])
    )


def test_without_pandas_one_sentence_says_what_is_needed(model, pictures, monkeypatch):
    result = ogkd.evaluate(model, pictures, resamples=0)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="bench"):
        result.to_frame()
