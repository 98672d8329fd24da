"""Class frequencies: reweighting, their estimate, and what a wrong prior is told."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ogkd
from ogkd.errors import ConfigError
from ogkd.model.calibration import Calibration
from ogkd.model.decide import Decider
from ogkd.model.familiarity import Familiarity
from ogkd.model.policy import Policy
from ogkd.model.prior import WORTH, class_shares, equal, estimated, reweighted
from tiny_backbones import make_clip

NAMES = ("benign", "malignant", "normal_lung")


def dirichlet(classes, seed, count=50):
    return np.random.default_rng(seed).dirichlet([1.0] * classes, count)


@given(st.integers(2, 8), st.integers(0, 99))
def test_the_assumed_frequencies_change_nothing(classes, seed):
    p, assumed = dirichlet(classes, seed), dirichlet(classes, seed + 100, 1)[0]
    np.testing.assert_allclose(reweighted(p, assumed, assumed), p, rtol=1e-6)


@given(st.integers(2, 8), st.integers(0, 99))
def test_reweighting_is_bayes_rule_and_undone_by_its_reverse(classes, seed):
    p, prior = dirichlet(classes, seed), dirichlet(classes, seed + 100, 1)[0]
    found = reweighted(p, prior, equal(classes))
    for row, got in zip(p, found, strict=True):
        joint = [share * weight for share, weight in zip(row, prior, strict=True)]
        np.testing.assert_allclose(got, np.array(joint) / sum(joint), rtol=1e-5)
    np.testing.assert_allclose(reweighted(found, equal(classes), prior), p, rtol=1e-4, atol=1e-6)


def gaussian_batch(prior, count, rng, apart=2.0):
    """Probabilities of Gaussian classes that assume equal frequencies, and the truth."""
    truth = rng.choice(len(prior), count, p=prior)
    x = apart * np.eye(len(prior))[truth] + rng.normal(size=(count, len(prior)))
    logits = apart * x
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), truth


@pytest.mark.parametrize("prior", [(0.9, 0.1), (0.05, 0.25, 0.7), (0.25, 0.25, 0.25, 0.25)])
def test_the_estimate_is_close_to_the_truth_on_simulated_batches(prior):
    rng = np.random.default_rng(0)
    found = [estimated(gaussian_batch(prior, 2000, rng)[0], equal(len(prior))) for _ in range(10)]
    np.testing.assert_allclose(np.mean(found, axis=0), prior, atol=0.02)


def test_the_estimate_makes_more_predictions_right_where_classes_are_unequal():
    rng, right = np.random.default_rng(1), []
    for _ in range(20):
        p, truth = gaussian_batch((0.9, 0.1), 200, rng, apart=1.0)
        better = reweighted(p, estimated(p, equal(2)), equal(2))
        right.append([(q.argmax(axis=1) == truth).mean() for q in (p, better)])
    before, after = np.mean(right, axis=0)
    assert after > before + 0.05


@given(st.integers(0, 6), st.integers(2, 5), st.integers(0, 99))
def test_few_images_cannot_move_the_estimate_far(count, classes, seed):
    certain = np.eye(classes)[np.random.default_rng(seed).integers(0, classes, count)]
    found = estimated(certain, equal(classes))
    assert found.sum() == pytest.approx(1)
    expected = (certain.sum(axis=0) + WORTH) / (count + WORTH * classes)
    np.testing.assert_allclose(found, expected)


@given(st.integers(0, 99))
def test_the_estimate_is_the_most_likely_one(seed):
    """No small step from it is more likely, by the penalised likelihood written out."""
    p, start = dirichlet(3, seed, 30), equal(3)
    found = estimated(p, start)

    def likelihood(prior):
        return np.log((p * prior / start).sum(axis=1)).sum() + WORTH * np.log(prior).sum()

    for step in 0.01 * np.random.default_rng(seed).normal(size=(20, 3)):
        other = found * np.exp(step)
        assert likelihood(other / other.sum()) <= likelihood(found) + 1e-9


def test_shares_are_found_by_name_and_scaled():
    shares = class_shares({"normal lung": 0.33, "Benign": 0.33, "malignant": 0.33}, NAMES)
    np.testing.assert_allclose(shares, [1 / 3] * 3)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        ({"benign": 0.5, "malignant": 0.2, "normal lung": 0.1}, "sums to 0.8"),
        ({"benign": 0.5, "malign": 0.5}, "'malign', which the model .* Did you mean 'malignant'"),
        ({"benign": 1.1, "malignant": -0.2, "normal_lung": 0.1}, "-0.2 for 'malignant'"),
        ({"benign": 0.5, "malignant": 0.5, "normal_lung": 0}, "0 for 'normal_lung'.*above 0"),
        ({"benign": 0.5, "malignant": 0.5}, "no share for: normal_lung"),
        ({}, "no share for: benign, malignant, normal_lung"),
        ({"benign": float("nan"), "malignant": 0.5, "normal_lung": 0.5}, "not a number"),
        ({"benign": float("inf"), "malignant": 0.5, "normal_lung": 0.5}, "not a number"),
        ({"benign": "0.5", "malignant": 0.3, "normal_lung": 0.2}, "not a number"),
        ({"benign": 0.5, "BENIGN": 0.2, "malignant": 0.3}, "'benign' twice"),
    ],
)
def test_a_prior_that_cannot_be_gets_one_message(prior, message):
    with pytest.raises(ConfigError, match=message) as found:
        class_shares(prior, NAMES)
    assert found.value.argument == "prior"


@pytest.mark.parametrize("prior", ["estimated", 0.5, [0.5, 0.5]])
def test_a_policy_takes_shares_or_estimate(prior):
    with pytest.raises(ConfigError, match="shares of classes or 'estimate'") as found:
        Policy(prior=prior)
    assert found.value.argument == "prior"


@pytest.mark.parametrize(
    ("argument", "terms", "why"),
    [
        ("max_risk", {"prior": "estimate"}, "depends on how frequent the classes are"),
    ],
)
def test_what_cannot_be_promised_on_other_terms_is_refused(argument, terms, why):
    with pytest.raises(ConfigError, match=f"{argument} cannot be promised .*{why}") as found:
        Policy(**{argument: 0.1}, **terms)
    assert found.value.argument == argument


@pytest.fixture(scope="module")
def model(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("backbones") / "clip"
    make_clip(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("models") / "m"
        ogkd.fit(pictures, backbone=folder, method="fused", out=out)
        return ogkd.load(out)


@pytest.fixture
def files(pictures):
    return sorted((pictures / "test").rglob("*.png"))


@pytest.fixture
def rows(model, files):
    return np.stack([said.features for said in model.decide(files)])


def with_(model, **changes):
    """A copy of a model."""
    parts = {"calibration": model.calibration, "support": model.support, **changes}
    return type(model)(model.backbone, parts.pop("head", model.head), model.card, **parts)


def calibrated(model):
    rng = np.random.default_rng(0)
    labels, keys = rng.integers(0, 3, 60), [f"{number:016x}" for number in range(60)]
    logits = 3 * np.eye(3)[labels] + rng.normal(size=(60, 3))
    return with_(model, calibration=Calibration.fit(logits, labels, keys))


def probabilities(decisions):
    return np.array([said.probabilities for said in decisions])


def test_a_prior_reweights_and_takes_the_sets_away(model, rows):
    prior = dict(zip(model.class_names, (0.6, 0.3, 0.1), strict=True))
    ready = calibrated(model)
    assert Decider(ready).decide(rows)[0].set is not None
    decider = Decider(ready, Policy(prior=prior))
    said = decider.decide(rows)
    expected = reweighted(ready.probabilities(rows), np.array([0.6, 0.3, 0.1]), equal(3))
    np.testing.assert_allclose(probabilities(said), expected, rtol=1e-5)
    assert said[0].set is None
    assert any("no prediction sets" in note for note in decider.notes)
    same = Decider(model, Policy(prior=dict.fromkeys(model.class_names, 1 / 3))).decide(rows)
    np.testing.assert_allclose(probabilities(same), model.probabilities(rows), rtol=1e-5)


def test_an_estimate_says_from_how_many_images(model, rows):
    decider = Decider(model, Policy(prior="estimate"))
    decider.decide(rows)
    count = int((~Familiarity(model.support, model.backbone.embed_dim).unfamiliar(rows)).sum())
    assert "depends on the others" in decider.notes[0]
    assert f"from {count} images: {model.class_names[0]} " in decider.notes[-1]
    assert decider.prior.sum() == pytest.approx(1)
