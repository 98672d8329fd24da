"""Models of bags: fitted, calibrated, evaluated, asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ogkd
from ogkd.backbones.base import ImageFeatures
from ogkd.datasets.manifest import Manifest, by_bag
from ogkd.datasets.read import read_manifest
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation import predict_labelled
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.fitting.bags import BagSupport, fit_head
from ogkd.fitting.request import FitRequest
from ogkd.methods import Support
from ogkd.model.classifier import Classifier
from ogkd.model.load import load
from ogkd.model.policy import Policy
from tiny_data import FAST, write_exams


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_exams(tmp_path_factory.mktemp("exams"), splits="train,val,test")


@pytest.fixture(scope="module")
def model(
    table: Path, bert_backbone: ogkd.Backbone, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Classifier]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield ogkd.fit(table, backbone=bert_backbone, bags="exam")


def part(table: Path, split: str) -> Manifest:
    found = read_manifest(table, bags="exam")
    return Manifest(tuple(item for item in found.items if item.split == split), found.class_names)


def test_exams_are_told_apart_by_their_one_picture(model: Classifier, table: Path) -> None:
    assert model.card.support_counts == (8, 8)
    assert model.card.bags is not None
    assert model.card.bags.pictures == 64
    found = ogkd.evaluate(model, table)
    assert (found["images"], found["unit"]) == (16, "bag")
    assert found["accuracy"] >= 0.9
    assert "16 bags" in found["verdict"]["text"]


def test_the_picture_with_the_finding_is_named(model: Classifier, table: Path) -> None:
    for said in model.decide(part(table, "test")):
        if "spot" in str(said.bag):
            place = int(str(said.bag)[-1]) % 4
            assert said.decided_by[0].image.file.stem.endswith(f"-{place}")  # type: ignore[union-attr]
            assert said.image == said.decided_by[0].image
        assert said.pictures == 4
        assert sum(one.share for one in said.decided_by) <= 1 + 1e-6


def test_bags_may_be_named_in_python(model: Classifier, table: Path) -> None:
    bags = {
        name: [item.image.file for item in mine]
        for name, mine in by_bag(part(table, "test").items).items()
    }
    some = dict(list(bags.items())[::5])
    p = model.predict_proba(some)
    whole = model.predict_proba(part(table, "test"))
    np.testing.assert_allclose(p, whole[::5], atol=1e-5)


def test_images_alone_do_not_say_their_exam(model: Classifier, table: Path) -> None:
    files = [item.image.file for item in part(table, "test").items]
    with pytest.raises(DataError, match="column 'exam'"):
        model.predict(files)


def test_predict_and_evaluate_agree(model: Classifier, table: Path) -> None:
    found = predict_labelled(model, table, split="test")
    said = model.predict_proba(part(table, "test"))
    np.testing.assert_allclose(found.probabilities(), said, atol=1e-5)
    assert [bag.name for bag in found.bags] == list(by_bag(part(table, "test").items))


def test_a_model_folder_keeps_what_makes_a_bag(
    model: Classifier, table: Path, bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", backbone=bert_backbone)
    assert again.card.bags == model.card.bags
    np.testing.assert_array_equal(
        again.predict_proba(part(table, "test")), model.predict_proba(part(table, "test"))
    )


def test_calibration_sets_and_risk_are_by_bag(model: Classifier, table: Path) -> None:
    found = ogkd.calibrate(model, table, split="val")
    assert found.images == 16
    calibrated = Classifier(
        model.backbone, model.head, model.card, calibration=found, support=model.support
    )
    policy = Policy(coverage=0.8)
    for said in calibrated.decide(part(table, "test"), policy=policy):
        assert said.set is not None
    with pytest.raises(DataError, match="All 16"):
        ogkd.calibrate(model, table, split="train")
    assert ogkd.evaluate(calibrated, table, split="val")["calibrated_on"] == 16


def test_labels_of_pictures_are_used_if_there_are_any(
    table: Path, bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    lines = table.read_text(encoding="utf-8").splitlines()
    rows = []
    for line in lines[1:]:
        path, label, exam, split = line.split(",")
        place = int(path.removesuffix(".png").rpartition("-")[2])
        own = label if place == int(exam[-1]) % 4 else "normal"
        rows.append(f"{table.parent / path},{own},{exam},{split}")
    own_labels = tmp_path / "pictures.csv"
    own_labels.write_text("\n".join([lines[0], *rows]), encoding="utf-8")
    model = ogkd.fit(own_labels, backbone=bert_backbone, bags="exam")
    assert model.card.support_counts == (8, 8)
    assert ogkd.evaluate(model, own_labels)["accuracy"] >= 0.9


@pytest.mark.parametrize("method", ["zero-shot-ensemble", "gda", "tip-adapter", "ogkd", "coop"])
def test_every_kind_of_method_learns_from_bags(
    table: Path, bert_backbone: ogkd.Backbone, method: str
) -> None:
    settings = FAST if method in ("ogkd", "coop") else None
    model = ogkd.fit(
        table, backbone=bert_backbone, bags="exam", method=method, shots=4, settings=settings
    )
    assert model.card.bags is not None
    assert len(model.predict_proba(part(table, "test"))) == 16


def test_one_bag_of_each_class_is_enough(table: Path, bert_backbone: ogkd.Backbone) -> None:
    model = ogkd.fit(table, backbone=bert_backbone, bags="exam", shots=1)
    assert model.card.bags is not None
    assert (model.card.bags.tau, model.card.bags.bias) == (1.0, ())
    assert model.card.support_counts == (1, 1)


def test_bags_of_one_picture_are_answered_as_pictures(
    bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    single = write_exams(tmp_path, pictures=1, splits="train,test")
    model = ogkd.fit(single, backbone=bert_backbone, bags="exam")
    assert ogkd.evaluate(model, single)["accuracy"] >= 0.9


def test_a_picture_alone_is_answered_as_a_bag_of_one(model: Classifier, table: Path) -> None:
    image = part(table, "test").items[0].image
    [whole] = model.decide({"one": [image.file]})
    [alone] = model.decide([image.file], patches=True)
    assert alone.probabilities == pytest.approx(whole.probabilities, abs=1e-5)
    assert alone.patches is not None


def test_a_bag_whose_pictures_cannot_be_read_is_named_and_others_are_answered(
    model: Classifier, table: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    good = part(table, "test").items[0].image.file
    bad, half, whole = model.decide(
        {"bad": [broken, broken], "half": [good, broken], "whole": [good]}
    )
    assert bad.error is not None
    assert "None of its 2 pictures" in bad.error
    assert bad.label is None
    assert half.pictures == 1
    assert half.prediction == whole.prediction
    assert any("could not be read" in reason for reason in half.reasons)


def test_an_unreadable_picture_is_skipped_on_request(
    table: Path, bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    own = write_exams(tmp_path, per_class=3)
    (tmp_path / "train" / "spot-0-1.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"spot-0-1\.png"):
        ogkd.fit(own, backbone=bert_backbone, bags="exam")
    model = ogkd.fit(own, backbone=bert_backbone, bags="exam", on_error="skip")
    assert model.card.bags is not None
    assert model.card.bags.pictures == 23


def test_a_blank_picture_is_left_out_as_a_blank_slice_is(
    bert_backbone: ogkd.Backbone, tmp_path: Path
) -> None:
    own = write_exams(tmp_path, per_class=3)
    blank = [tmp_path / "train" / f"spot-0-{number}.png" for number in range(4)]
    said: list[str] = []
    for _ in range(2):  # again, with the features of the others stored
        Image.new("RGB", (32, 32)).save(blank[1])
        model = ogkd.fit(own, backbone=bert_backbone, bags="exam", say=said.append)
        assert model.card.bags is not None
        assert model.card.bags.pictures == 23
    notes = [line for line in said if "blank" in line]
    assert notes == [f"Left out 1 blank picture:\n  {blank[1]}"] * 2
    found = predict_labelled(model, own, split="train")
    assert (len(found.labels), found.warnings[0]) == (6, notes[0])
    for file in blank:  # nothing is left of the exam
        Image.new("RGB", (32, 32)).save(file)
    with pytest.raises(DataError, match=r"spot-0-3\.png is blank"):
        ogkd.fit(own, backbone=bert_backbone, bags="exam")


def test_what_needs_single_images_is_refused(table: Path) -> None:
    for given in ({"unlabelled": table.parent}, {"slice": "axis=2,index=3"}):
        with pytest.raises(ConfigError) as error:
            FitRequest(table, slices="all", **given)
        assert [error.value.argument] == list(given)


def test_evaluation_holds_the_features_of_one_bag_at_a_time(
    model: Classifier, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    get = FeatureStore.get

    def counting(self: FeatureStore, images: list[object], *args: object, **options: object):  # type: ignore[no-untyped-def]
        asked.append(len(images))
        return get(self, images, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(FeatureStore, "get", counting)
    predict_labelled(model, table, split="test")
    assert max(asked) == 4


def test_single_images_are_fitted_as_before(pictures: Path, bert_backbone: ogkd.Backbone) -> None:
    model = ogkd.fit(pictures, backbone=bert_backbone)
    assert model.card.bags is None
    z = torch.randn(2, model.head.shape[1])
    assert model.probabilities(z).shape == (2, 3)


class _Recorder:
    """Stands for a prompt learner, and keeps what it was given."""

    needs_images = needs_training = True

    def fit(self, supports: list[Support], *_: object, **__: object) -> list[None]:
        self.support = supports[0]
        return [None]


def test_a_prompt_learner_sees_eight_images_of_each_case_with_its_label() -> None:
    bag, labels = (
        torch.arange(3).repeat_interleave(torch.tensor([20, 1, 8])),
        torch.tensor([1, 0, 1]),
    )
    rows = torch.arange(29.0).unsqueeze(1)
    support = Support(FixedViews(ImageFeatures(rows.unsqueeze(1), None)), labels[bag], bag=bag)
    recorder: Any = _Recorder()
    fit_head(recorder, BagSupport(support, rows, labels, None), None, 1)  # type: ignore[arg-type]
    seen = recorder.support
    expected = [1, 3, 6, 8, 11, 13, 16, 18, 20, *range(21, 29)]
    assert seen.views.features.rows.flatten().tolist() == expected
    assert seen.labels.tolist() == [1] * 8 + [0] + [1] * 8
