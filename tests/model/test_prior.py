"""Class frequencies: reweighting, and which priors are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ogkd.model.policy import Policy
from ogkd.model.prior import class_shares, equal, reweighted

import ogkd
from ogkd.errors import ConfigError
from ogkd.model.calibration import Calibration
from ogkd.model.decide import Decider
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


@pytest.mark.parametrize("prior", ["estimate", 0.5, [0.5, 0.5]])
def test_a_policy_takes_shares(prior):
    with pytest.raises(ConfigError) as found:
        Policy(prior=prior)
    assert found.value.argument == "prior"


def test_max_risk_cannot_be_promised_with_a_prior():
    with pytest.raises(ConfigError) as found:
        Policy(max_risk=0.1, prior={"benign": 0.5, "malignant": 0.5})
    assert found.value.argument == "max_risk"


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
