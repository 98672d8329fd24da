"""Models of cases of several images: fitted, calibrated, evaluated, asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import ogkd
from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Dataset
from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation import predict_labelled
from ogkd.features.views import FixedViews
from ogkd.fitting.cases import CaseSupport, _fit_head
from ogkd.fitting.request import FitRequest
from ogkd.methods import Support
from ogkd.model.classifier import Classifier
from ogkd.model.policy import Policy
from tiny_data import write_exams
from world import fit


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_exams(tmp_path_factory.mktemp("exams"), splits="train,val,test")


@pytest.fixture(scope="module")
def model(table: Path, bert_backbone: ogkd.Backbone, module_cache: Path) -> Classifier:
    return fit(table, bert_backbone, cases="exam")


def part(table: Path, split: str = "test") -> Dataset:
    dataset = Grouping.parse("exam").apply(read_dataset(table))
    return dataset.with_cases(dataset.part(split))


def test_the_image_with_the_finding_is_named(model: Classifier, table: Path) -> None:
    for decision in model.decide(part(table)):
        if "spot" in decision.case.name:
            number = int(decision.case.name[-1]) % 4
            assert decision.deciding[0].image.file.stem.endswith(f"-{number}")
            assert decision.image == decision.deciding[0].image
        assert decision.read == 4
        assert sum(image.weight for image in decision.deciding) <= 1 + 1e-6


def test_calibration_sets_and_risk_are_by_case(model: Classifier, table: Path) -> None:
    calibration = ogkd.calibrate(model, table, split="val")
    assert calibration.cases == 16
    assert len(calibration.image_keys) == 64
    calibrated = Classifier(
        model.backbone, model.head, model.card, calibration=calibration, support=model.support
    )
    for decision in calibrated.decide(part(table), policy=Policy(coverage=0.8)):
        assert decision.set is not None
    with pytest.raises(DataError) as error:
        ogkd.calibrate(model, table, split="train")
    assert error.value.argument == "split"
    assert ogkd.evaluate(calibrated, table, split="val")["calibrated_on"] == 16


def test_labels_of_images_are_used_if_there_are_any(
    table: Path, bert_backbone: ogkd.Backbone
) -> None:
    dataset = read_dataset(table)
    normal = dataset.names.index("normal")

    def own_label(case: Any) -> Any:
        number = int(case.image.file.stem[-1])
        shown = number == int(case.columns["exam"][-1]) % 4
        return case if shown else replace(case, target=normal)

    labelled = dataset.map(own_label)
    model = fit(labelled, bert_backbone, cases="exam")
    assert model.card.support_counts == (8, 8)
    assert ogkd.evaluate(model, labelled)["accuracy"] >= 0.9


@pytest.mark.parametrize("method", ["zero-shot-ensemble", "gda", "tip-adapter", "ogkd", "coop"])
def test_every_kind_of_method_learns_from_cases(
    table: Path, bert_backbone: ogkd.Backbone, method: str
) -> None:
    model = fit(table, bert_backbone, cases="exam", method=method, shots=4)
    assert len(model.poolings) == 1
    assert len(model.predict_proba(part(table))) == 16


def test_a_blank_image_is_left_out(bert_backbone: ogkd.Backbone, tmp_path: Path) -> None:
    exams = write_exams(tmp_path, per_class=3)
    blank = [tmp_path / "train" / f"spot-0-{number}.png" for number in range(4)]
    messages: list[str] = []
    for _ in range(2):  # again, with the features of the others stored
        Image.new("RGB", (32, 32)).save(blank[1])
        model = fit(exams, bert_backbone, cases="exam", say=messages.append)
        assert model.card.images == 23
    notes = [line for line in messages if "blank" in line]
    assert notes == [f"Left out 1 blank image:\n  {blank[1]}"] * 2
    judged = predict_labelled(model, exams, split="train")
    assert (len(judged.labels), judged.warnings[0]) == (6, notes[0])
    for file in blank:  # nothing is left of the exam
        Image.new("RGB", (32, 32)).save(file)
    with pytest.raises(DataError, match=r"spot-0-3\.png is blank"):
        fit(exams, bert_backbone, cases="exam")


def test_options_for_single_images_are_refused(table: Path) -> None:
    for given in ({"unlabelled": table.parent}, {"slice": "axis=2,index=3"}):
        with pytest.raises(ConfigError) as error:
            FitRequest(table, slices="all", **given)
        assert [error.value.argument] == list(given)


class _Recorder:
    """Stands for a prompt learner, and keeps what it was given."""

    needs_images = needs_training = True

    def fit(self, support: Support, *_: object, **__: object) -> None:
        self.support = support


def test_a_prompt_learner_sees_eight_images_of_each_case_with_its_label() -> None:
    case = torch.arange(3).repeat_interleave(torch.tensor([20, 1, 8]))
    labels = torch.tensor([1, 0, 1])
    rows = torch.arange(29.0).unsqueeze(1)
    support = Support(FixedViews(ImageFeatures(rows.unsqueeze(1), None)), labels[case])
    given = CaseSupport(support, rows, case, labels, None).question(OneOf(("a", "b")), 0)
    recorder: Any = _Recorder()
    _fit_head(recorder, given, None, 1)  # type: ignore[arg-type]
    seen = recorder.support
    expected = [1, 3, 6, 8, 11, 13, 16, 18, 20, *range(21, 29)]
    assert seen.views.features.rows.flatten().tolist() == expected
    assert seen.labels.tolist() == [1] * 8 + [0] + [1] * 8
    assert seen.case.tolist() == [0] * 8 + [1] + [2] * 8
