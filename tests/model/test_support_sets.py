"""Prediction sets of a model that was never calibrated, from its folder to its answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import ogkd
from ogkd.data.case import Case
from ogkd.errors import ConfigError
from ogkd.evaluation import evaluate_predictions, predict_labelled
from ogkd.features.store import given_batches
from ogkd.images import ImageRef
from ogkd.model.calibration import Calibration
from ogkd.model.decide import Decider
from ogkd.model.policy import Policy
from ogkd.model.support_sets import SupportSets
from tiny_data import CLASSES, write_dataset

PRIOR = dict(zip(CLASSES, (0.9, 0.05, 0.05), strict=True))


pytestmark = pytest.mark.usefixtures("module_cache")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("data"), splits={"train": 9, "test": 4})


@pytest.fixture(scope="module")
def fitted(clip, data, tmp_path_factory, module_cache):
    out = tmp_path_factory.mktemp("models") / "m"
    return ogkd.fit(data, backbone=clip, method="fused", out=out), out


@pytest.fixture(scope="module")
def rows(fitted, data):
    """Features of the test images."""
    return predict_labelled(fitted[0], data).features


def decide(decider, rows):
    """Decisions about images by their features."""
    cases = [Case.single(ImageRef.of(f"{n}.png")) for n in range(len(rows))]
    return list(decider.decide(cases, lambda images: given_batches(torch.as_tensor(rows), images)))


def test_sets_need_no_calibration_and_survive_the_folder(fitted, rows):
    model, out = fitted
    again = ogkd.load(out)
    before, after = (decide(Decider(each), rows) for each in (model, again))
    assert [decision.set for decision in before] == [decision.set for decision in after]
    assert all(decision.set is not None for decision in before)
    first, second = (SupportSets.of(each)._ranked.p_values for each in (model, again))
    halved = np.float16(rows).astype(np.float32)
    torch.testing.assert_close(first(torch.as_tensor(halved)), second(torch.as_tensor(halved)))


def test_sets_grow_with_coverage(fitted, rows):
    model = fitted[0]
    mixed = replace(model.support, labels=np.arange(27) % 3)  # classes that nobody can tell apart
    support_sets = SupportSets.of(
        ogkd.Classifier(model.backbone, model.head, model.card, support=mixed)
    )
    less, more = (support_sets.members(None, rows, share) for share in (0.3, 0.9))
    assert np.all(less <= more)
    assert less.sum() < more.sum()


def test_classes_with_too_few_images_are_always_in_the_set(fitted, rows):
    model = fitted[0]
    kept = np.flatnonzero((model.support.labels != 1) | (np.cumsum(model.support.labels == 1) <= 4))
    support = replace(
        model.support, features=model.support.features[kept], labels=model.support.labels[kept]
    )
    few = ogkd.Classifier(model.backbone, model.head, model.card, support=support)
    decider = Decider(few)
    assert f"fewer than 9 images are always in the set: {CLASSES[1]}." in decider.notes[0]
    assert all(CLASSES[1] in decision.set for decision in decide(decider, rows))


def test_more_than_the_support_allows_is_refused(fitted, rows):
    with pytest.raises(ConfigError) as error:
        Decider(fitted[0], Policy(coverage=0.95))
    assert error.value.argument == "coverage"
    with pytest.raises(ConfigError, match="max_risk needs a calibrated model"):
        Decider(fitted[0], Policy(max_risk=0.1))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"method": "fused", "shots": 4}, "at least 9 images"), ({"method": "gda"}, None)],
)
def test_too_few_images_and_other_methods_have_no_sets(clip, data, rows, options, words):
    model = ogkd.fit(data, backbone=clip, **options)
    decider = Decider(model)
    assert {decision.set for decision in decide(decider, rows)} == {None}
    if words is None:
        assert (SupportSets.of(model), decider.notes) == (None, [])
    else:
        assert words in decider.notes[0]
    for policy in (Policy(coverage=0.9), Policy(coverage=0.9, prior=PRIOR)):
        with pytest.raises(ConfigError) as error:
            Decider(model, policy)
        assert error.value.argument == "coverage"


def test_a_calibration_stays_the_source_of_sets(fitted, data, rows):
    model = calibrated(fitted[0])
    p = model.probabilities(rows)
    expected = model.task.plausible(p, model.calibration.limits())
    plausible = [
        [name in decision.set for name in CLASSES] for decision in decide(Decider(model), rows)
    ]
    np.testing.assert_array_equal(plausible, expected)


def calibrated(model):
    """The same with a calibration on other images."""
    rng = np.random.default_rng(0)
    copy = ogkd.Classifier(model.backbone, model.head, model.card, support=model.support)
    keys = [f"{number:016x}" for number in range(60)]
    copy.calibration = Calibration.fit(
        model.task, rng.normal(0, 1, (60, 3)), rng.integers(0, 3, 60), keys
    )
    return copy


def test_sets_that_hold_for_every_class_are_the_same_at_all_class_frequencies(fitted, rows):
    model = fitted[0]
    wanted = Policy(coverage=0.8, prior=PRIOR)
    expected = [decision.set for decision in decide(Decider(model, Policy(coverage=0.8)), rows)]
    assert [decision.set for decision in decide(Decider(model, wanted), rows)] == expected
    # Those of a calibration do not hold there: the support's take their place.
    decider = Decider(calibrated(model), wanted)
    assert [decision.set for decision in decide(decider, rows)] == expected
    assert not any("no prediction sets" in note for note in decider.notes)


def test_a_calibration_on_the_support_itself_gives_way_to_exact_sets(fitted, rows):
    model = fitted[0]
    logits = model.logits(model.support.features)
    on_support = Calibration.fit(
        model.task, logits, model.support.labels, list(model.card.support_images)
    )
    both = ogkd.Classifier(model.backbone, model.head, model.card, support=model.support)
    both.calibration = on_support
    exact = [decision.set for decision in decide(Decider(model), rows)]
    assert [decision.set for decision in decide(Decider(both), rows)] == exact
    assert Decider(both).least_probability is None
    few = replace(
        model.support, features=model.support.features[1:], labels=model.support.labels[1:]
    )
    both.support = few  # eight images of one class
    names = model.class_names
    task = model.task
    p = task.probabilities(model.logits(rows), on_support)
    plain = task.plausible(p, on_support.limits())
    expected = [tuple(n for n, inside in zip(names, row, strict=True) if inside) for row in plain]
    assert [decision.set for decision in decide(Decider(both), rows)] == expected
    assert expected != exact


def test_evaluation_measures_them(fitted, data):
    result = ogkd.evaluate(fitted[0], data, resamples=0)
    at_90, at_95 = result["sets"]
    assert (at_90["kind"], at_90["wanted"]) == ("support", 0.9)
    judged = predict_labelled(fitted[0], data)
    sets = SupportSets.of(fitted[0]).members(None, judged.features, 0.9)
    assert at_90["coverage"] == sets[np.arange(12), judged.labels].mean()
    assert "at least 19 images" in at_95["note"]
    assert evaluate_predictions(judged, resamples=0)["sets"] is None


def test_as_many_images_as_a_coverage_needs_are_enough_to_leave_a_class_out(fitted, rows):
    support_sets = SupportSets.of(fitted[0])
    halved = torch.as_tensor(np.float16(rows).astype(np.float32))
    lowest = np.isclose(support_sets._ranked.p_values(halved).numpy(), 0.1)  # 1 / (9 + 1)
    assert lowest.any()
    assert not support_sets.members(None, rows, 0.9)[lowest].any()


def test_a_case_of_several_images_has_no_set_of_its_first_one(fitted, data):
    files = sorted((data / "test").rglob("*.png"))[:2]
    single, several = fitted[0].decide({"single": files[:1], "several": files})
    assert single.set is not None
    assert several.set is None
