"""Classes and findings, of one image and of several: the same way from data to answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ogkd
from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Dataset, case_numbers
from ogkd.data.grouping import Grouping
from ogkd.data.read import read_dataset
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation import predict_labelled
from ogkd.features.store import FeatureStore, given_batches, stored_batches
from ogkd.features.views import FixedViews
from ogkd.fitting.cases import CaseSupport, _fit_head
from ogkd.fitting.request import FitRequest
from ogkd.methods import Support
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, case_logits
from ogkd.model.load import load
from ogkd.model.policy import Policy
from tiny_data import write_exams
from world import fit


@dataclass
class World:
    """A dataset, a calibrated model of it, and what both should be."""

    data: Dataset
    model: Classifier
    findings: bool
    images: int

    def part(self, split: str = "test") -> Dataset:
        return self.data.with_cases(self.data.part(split))


@pytest.fixture(scope="module", params=["classes", "findings"])
def findings(request: pytest.FixtureRequest) -> bool:
    return request.param == "findings"


@pytest.fixture(scope="module", params=[1, 3])
def images(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def world(
    findings: bool,
    images: int,
    bert_backbone: ogkd.Backbone,
    tmp_path_factory: pytest.TempPathFactory,
    module_cache: Path,
) -> World:
    folder = tmp_path_factory.mktemp("exams")
    table = write_exams(
        folder, per_class=16, images=images, splits="train,val,test", findings=findings
    )
    by = "exam" if images > 1 else None
    model = fit(table, bert_backbone, cases=by)
    model.calibration = ogkd.calibrate(model, table)
    return World(Grouping.parse(by).apply(read_dataset(table)), model, findings, images)


def test_the_card_says_what_was_learned(world: World) -> None:
    card = world.model.card
    assert type(world.model.task) is (Findings if world.findings else OneOf)
    assert (card.learned_cases, card.images) == (32, 32 * world.images)
    assert card.support_counts == (16, 16)
    questions = 2 if world.findings else 1
    assert len(world.model.poolings) == (questions if world.images > 1 else 0)
    assert card.grouping.joins_images == (world.images > 1)


def test_exams_are_recognised(world: World) -> None:
    for decision in world.model.decide(world.part()):
        if world.images > 1 and not world.findings and "spot" in decision.case.name:
            number = int(decision.case.name.split()[-1]) % world.images
            assert decision.image.file.stem.endswith(f"-{number}")
    result = ogkd.evaluate(world.model, world.data, resamples=50)
    assert result["images"] == 32
    assert result["unit"] == ("exam" if world.images > 1 else "image")
    area = result["per_finding"]["spot"]["auroc"] if world.findings else result["auroc"]
    assert area > 0.9
    assert ogkd.evaluate(world.model, world.data, split="val", resamples=0)["calibrated_on"] == 32
    assert ogkd.evaluate(world.model, world.data, split="train", resamples=0)["learned_from"] == 32


def test_predictions_are_those_of_the_evaluation_and_of_plain_arithmetic(world: World) -> None:
    model, part = world.model, world.part()
    p = model.predict_proba(part)
    judged = predict_labelled(model, world.data)
    np.testing.assert_allclose(judged.probabilities(model.calibration), p, atol=1e-5)
    assert [case.name for case in judged.cases] == [case.name for case in part.cases]
    features = FeatureStore(model.backbone).get(part.images, deep=model.deep).rows[:, 0]
    case = torch.from_numpy(case_numbers(part.cases))
    np.testing.assert_allclose(model.probabilities(features, case), p, atol=1e-5)
    z = torch.from_numpy(model.logits(features))
    if world.images == 1:
        assert torch.equal(case_logits(model.task, model.poolings, z, case), z)
    else:
        pooled = case_logits(model.task, model.poolings, z, case)
        alone = torch.cat(
            [
                case_logits(model.task, model.poolings, z[case == n], torch.zeros(3).long())
                for n in range(len(part.cases))
            ]
        )
        torch.testing.assert_close(pooled, alone, atol=1e-5, rtol=0)


def test_decisions_are_the_same_wherever_encodings_come_from(world: World) -> None:
    model, cases = world.model, list(world.part().cases)
    store = FeatureStore(model.backbone)
    rows = store.get(world.part().images, deep=model.deep).rows[:, 0]
    decider = Decider(model)
    sources = [
        decider.decide(cases),
        decider.decide(cases, lambda images: stored_batches(store, images, deep=model.deep)),
        decider.decide(cases, lambda images: given_batches(rows, images)),
        decider.decide(cases, batch_size=5),
    ]
    for decisions in zip(*sources, strict=True):
        first, *others = decisions
        assert sum(seen.weight for seen in first.images) == pytest.approx(1)
        assert len(first.images) == first.read == world.images
        for other in others:
            assert other.case is first.case
            assert other.prediction == first.prediction
            np.testing.assert_allclose(other.probabilities, first.probabilities, atol=1e-5)
            assert other.image == first.image


def test_sets_and_verdicts_are_what_the_limits_of_the_calibration_allow(world: World) -> None:
    decider = Decider(world.model, Policy(coverage=0.8))
    limits = decider.least_probability
    assert limits is not None
    for decision in decider.decide(world.part().cases):
        assert decision.answer is not None
        p = np.float32(decision.answer.probabilities).astype(np.float64)
        if not world.findings:
            names = zip(world.data.names, p >= limits[0], strict=True)
            assert decision.set == tuple(name for name, plausible in names if plausible)
            continue
        for share, verdict, (absent, present) in zip(
            p, decision.answer.verdicts or (), limits, strict=True
        ):
            if 1 - share >= absent and share >= present:
                assert verdict == "unsure"
            elif share >= present:
                assert verdict == "yes"


def test_a_saved_model_answers_with_the_same_bits(
    world: World, bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    model = world.model
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", backbone=bert_backbone)
    assert (again.task, again.card.grouping) == (model.task, model.card.grouping)
    assert again.poolings == model.poolings
    assert again.calibration == model.calibration
    np.testing.assert_array_equal(
        again.predict_proba(world.part()), model.predict_proba(world.part())
    )


def test_an_exam_is_not_learned_from_if_one_of_its_images_is_of_a_test_patient(
    world: World, bert_backbone: ogkd.Backbone
) -> None:
    """The patient of the other images is not known."""
    last, tested = world.data.part("train")[-1], world.data.part("test")[-1]
    cases = [
        replace(
            case,
            images=(image,),
            group="p" if image in (last.images[0], *tested.images) else None,
        )
        for case in world.data.cases
        for image in case.images
    ]
    by = "exam" if world.images > 1 else None
    model = fit(world.data.with_cases(cases), bert_backbone, cases=by)
    assert (model.card.learned_cases, model.card.images) == (31, 31 * world.images)


def test_unknown_answers_are_neither_learned_nor_counted(
    world: World, bert_backbone: ogkd.Backbone
) -> None:
    if not world.findings:
        pytest.skip("a class is always known")

    def forget(case):  # type: ignore[no-untyped-def]
        return replace(case, target=(case.target[0], -1)) if case.name.endswith("0") else case

    data = world.data.map(forget)
    data = data.map(lambda case: replace(case, image_targets=None))
    model = fit(data, bert_backbone, cases="exam" if world.images > 1 else None)
    assert model.card.support_counts == (16, 16)
    result = ogkd.evaluate(model, data, resamples=0)
    unknown = {name: row["unknown"] for name, row in result["per_finding"].items()}
    assert unknown["spot"] == 0
    assert unknown["streak"] == sum(case.name.endswith("0") for case in world.part().cases)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_exams(tmp_path_factory.mktemp("exams"), splits="train,val,test")


def part(table: Path, split: str = "test") -> Dataset:
    dataset = Grouping.parse("exam").apply(read_dataset(table))
    return dataset.with_cases(dataset.part(split))


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


def test_a_blank_image_is_left_out(
    bert_backbone: ogkd.Backbone, tmp_path: Path, notes: list[str]
) -> None:
    exams = write_exams(tmp_path, per_class=3)
    blank = [tmp_path / "train" / f"spot-0-{number}.png" for number in range(4)]
    for _ in range(2):  # again, with the features of the others stored
        Image.new("RGB", (32, 32)).save(blank[1])
        model = fit(exams, bert_backbone, cases="exam")
        assert model.card.images == 23
    left_out = [line for line in notes if "blank" in line]
    assert left_out == [f"Left out 1 blank image:\n  {blank[1]}"] * 2
    judged = predict_labelled(model, exams, split="train")
    assert (len(judged.labels), judged.warnings[0]) == (6, left_out[0])
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
