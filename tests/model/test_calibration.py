from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from ogkd.model.temperature import fit_temperature, softmax
from scipy.special import expit, log_softmax, logit
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin

from ogkd.errors import ConfigError
from ogkd.model.calibration import (
    Calibration,
    aps_scores,
    held_out_for_risk,
    images_needed_for_coverage,
    split_units,
)
from tiny_data import edit_sealed


def draw(count, *, classes=4, sharpness=1.0, seed=0):
    """Logits that are `sharpness` times too sure, and labels drawn from what they should say."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 2, (count, classes))
    p = np.exp(log_softmax(honest, axis=1))
    labels = (p.cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
    return sharpness * honest, labels


def names(count, seed=0):
    return [f"{value:016x}" for value in np.random.default_rng(seed).integers(0, 2**60, count)]


def calibrated(count, **how):
    logits, labels = draw(count, **how)
    return Calibration.fit(logits, labels, names(count))


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 5.0])
def test_the_temperature_undoes_too_much_or_too_little_certainty(sharpness):
    logits, labels = draw(20_000, sharpness=sharpness)
    assert fit_temperature(logits, labels) == pytest.approx(sharpness, rel=0.05)


def test_no_other_temperature_has_a_smaller_loss():
    logits, labels = draw(300, sharpness=3.0, seed=4)
    found = fit_temperature(logits, labels)

    def loss(t):
        fit = -log_softmax(logits / t, axis=1)[np.arange(300), labels].mean()
        return fit + (np.log(t) / 0.7) ** 2 / 2 / 300  # the prior

    others = np.geomspace(0.05, 20, 2000)
    assert loss(found) <= min(map(loss, others)) + 1e-9


def test_its_text_says_how_many_images_were_right():
    found = calibrated(120, sharpness=3.0)
    right = 100 * np.mean(found.correct)
    assert f"on 120 images: temperature {found.temperature:.3f}, {right:.1f} % of 80" in repr(found)


@pytest.mark.parametrize("coverage", [0.5, 0.8, 0.95])
def test_a_class_is_in_the_set_from_the_least_probability_on(coverage):
    found = calibrated(120)
    p = found.probabilities(draw(300, seed=5)[0]).astype(np.float64)
    least = found.least_probability(coverage)
    assert np.array_equal(found.sets(p, coverage=coverage), p >= least)
    assert 0 < (p >= least).mean() < 1
    assert calibrated(12).least_probability(0.99) is None


def test_the_number_of_further_images_is_what_the_same_answers_would_need():
    logits, _ = draw(30)
    found = Calibration.fit(logits, logits.argmax(axis=1), names(30))
    assert len(found.correct) == 20
    with pytest.raises(ConfigError, match=r"About (\d+) more are needed") as error:
        found.threshold(0.05)
    # 45 right answers are needed, as 0.95^45 < 0.1 < 0.95^44: 2.25 times as many as there are.
    growth = min(g for g in np.geomspace(1, 1000, 200) if 20 * g >= 45)
    assert f"About {np.ceil(30 * growth) - 30:.0f} more" in str(error.value)


def test_the_fewest_images_are_those_of_exact_arithmetic():
    assert held_out_for_risk(0.05) == held_out_for_risk(0.05, confidence=0.9) == 45
    assert images_needed_for_coverage(0.5) == 2  # one fits the temperature, one is held out
    assert held_out_for_risk(0.9) == 1  # one right answer, which 0.1 of such models would give


def test_images_that_are_all_right_say_nothing_about_the_temperature():
    logits, _ = draw(50)
    assert fit_temperature(logits, logits.argmax(axis=1)) == 1.0


def test_calibrated_probabilities_keep_the_order_of_the_classes():
    logits, _ = draw(200, sharpness=6.0)
    found = calibrated(300, sharpness=6.0)
    p = found.probabilities(logits)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(p.argmax(axis=1), logits.argmax(axis=1))
    np.testing.assert_allclose(
        p, np.exp(log_softmax(logits / found.temperature, axis=1)), atol=1e-6
    )


def test_what_is_kept_is_of_the_images_that_did_not_fit_the_temperature():
    logits, labels = draw(90, sharpness=4.0)
    keys = names(90)
    found = Calibration.fit(logits, labels, keys)
    first = split_units(keys)
    assert first.sum() == 30
    p = np.exp(log_softmax(logits[~first] / found.temperature, axis=1))
    assert found.temperature == pytest.approx(fit_temperature(logits[first], labels[first]))
    assert list(found.confidences) == sorted(found.confidences, reverse=True)
    np.testing.assert_allclose(sorted(found.confidences), np.sort(p.max(axis=1)), atol=1e-6)
    assert sum(found.correct) == (p.argmax(axis=1) == labels[~first]).sum()
    rows = np.arange(60)
    np.testing.assert_allclose(np.sort(found.lac), np.sort(1 - p[rows, labels[~first]]), atol=1e-6)
    assert found.counts == tuple(np.bincount(labels, minlength=4))


def test_neither_the_order_nor_the_labels_of_images_decide_who_fits_the_temperature():
    logits, labels = draw(60, sharpness=2.0)
    keys = names(60)
    order = np.random.default_rng(1).permutation(60)
    again = Calibration.fit(logits[order], labels[order], [keys[row] for row in order])
    first = Calibration.fit(logits, labels, keys)
    assert (again.image_keys, again.data_sha256) == (first.image_keys, first.data_sha256)
    for field in ("confidences", "correct", "lac", "aps", "first_confidences"):
        assert getattr(again, field) == pytest.approx(getattr(first, field), abs=1e-5)
    assert again.temperature == pytest.approx(first.temperature)
    assert np.array_equal(split_units([keys[row] for row in order]), split_units(keys)[order])


@given(st.lists(st.sampled_from([None, *"abcdefgh"]), min_size=2, max_size=60), st.integers(0, 99))
def test_a_patient_is_on_one_side_only_and_neither_side_is_empty(groups, seed):
    keys = names(len(groups), seed)
    first = split_units(keys, groups)
    for group in set(groups) - {None}:
        rows = [row for row, name in enumerate(groups) if name == group]
        assert len(set(first[rows].tolist())) == 1
    units = len(set(groups) - {None}) + groups.count(None)
    if units > 1:
        assert 0 < first.sum() < len(groups)


def test_about_a_third_fits_the_temperature_with_or_without_patients():
    keys = names(300)
    assert split_units(keys).sum() == 100
    groups = [f"patient {row // 5}" for row in range(300)]
    assert split_units(keys, groups).sum() == pytest.approx(100, abs=5)


class Answers(ClassifierMixin, BaseEstimator):
    """An estimator whose input already is what it says."""

    def __init__(self, classes=4):
        self.classes = classes
        self.classes_ = np.arange(classes)
        self.is_fitted_ = True

    def fit(self, X, y):
        return self

    def predict_proba(self, X):
        return X

    def predict(self, X):
        return X.argmax(axis=1)


class Still(np.random.RandomState):
    """MAPIE randomises APS, ours does not: without noise both must agree."""

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.zeros(size)


@pytest.mark.parametrize("kind", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.7, 0.9])
@pytest.mark.parametrize("count", [60, 301])
def test_sets_are_those_of_mapie(kind, coverage, count):
    logits, labels = draw(count, sharpness=2.0, seed=count)
    keys = names(count)
    ours = Calibration.fit(logits, labels, keys)
    held = ~split_units(keys)
    # MAPIE wants rows that add up to 1 to the last digit of float64.
    p = np.exp(log_softmax(logits / ours.temperature, axis=1))
    theirs = SplitConformalClassifier(
        Answers(),
        confidence_level=coverage,
        conformity_score=kind,
        prefit=True,
        random_state=Still(0),
    ).conformalize(p[held], labels[held])
    new = np.exp(log_softmax(draw(500, sharpness=2.0, seed=7)[0] / ours.temperature, axis=1))
    expected = theirs.predict_set(new)[1][:, :, 0]
    if kind == "aps":
        # Theirs add the class that crosses the limit, which the promise does not need.
        ranks = (-new).argsort(axis=1).argsort(axis=1)
        expected = ranks < np.maximum(expected.sum(axis=1, keepdims=True) - 1, 1)
    found = ours.sets(new, coverage=coverage, kind=kind)
    assert 0 < found.mean() < 1
    assert (found != expected).any(axis=1).mean() <= 0.002  # one image may lie on the limit


@pytest.mark.parametrize("kind", ["lac", "aps"])
def test_sets_hold_the_true_class_as_often_as_promised(kind):
    coverages = []
    for seed in range(200):
        logits, labels = draw(60, sharpness=4.0, seed=seed)
        found = Calibration.fit(logits, labels, names(60, seed))
        new, truth = draw(200, sharpness=4.0, seed=10_000 + seed)
        sets = found.sets(found.probabilities(new), coverage=0.9, kind=kind)
        coverages.append(sets[np.arange(200), truth].mean())
    noise = 3 * np.std(coverages) / np.sqrt(len(coverages))
    assert np.mean(coverages) >= 0.9 - noise
    if kind == "lac":  # and no more than its theory allows: 1 / (n + 1) more
        assert np.mean(coverages) <= 0.9 + 1 / 41 + noise


def test_an_empty_set_may_be_lac_but_never_aps():
    # Wrong three times in ten, always quite sure: a hesitant new image fits no class.
    logits = np.where(np.eye(4)[np.zeros(60, int)] > 0, 4.0, 0.0)
    labels = np.array([0] * 57 + [1] * 3)
    found = Calibration.fit(logits, labels, names(60))
    hesitant = np.full((1, 4), 0.25)
    assert not found.sets(hesitant, coverage=0.5).any()
    assert found.sets(hesitant, coverage=0.5, kind="aps").any()


def test_aps_counts_classes_of_equal_probability_together():
    p = np.array([[0.4, 0.2, 0.2, 0.2], [0.1, 0.5, 0.3, 0.1], [0.25, 0.25, 0.25, 0.25]])
    expected = [[0.4, 1, 1, 1], [1, 0.5, 0.8, 1], [1, 1, 1, 1]]
    np.testing.assert_allclose(aps_scores(p), expected)
    order = [3, 1, 0, 2]
    np.testing.assert_allclose(aps_scores(p[:, order]), np.array(expected)[:, order])


@pytest.mark.parametrize("coverage", [0.55, 0.9, 0.95])
def test_the_number_of_images_that_sets_need_is_the_smallest_that_works(coverage):
    needed = images_needed_for_coverage(coverage)
    p = softmax(draw(5)[0])
    calibrated(needed).sets(p, coverage=coverage)
    with pytest.raises(ConfigError, match=f"has {needed - 1}, .* at least 1 more is needed"):
        calibrated(needed - 1).sets(p, coverage=coverage)


def test_more_images_are_asked_for_by_number():
    words = r"at least 99 .* has 30, of which 20 count: at least 118 more are needed"
    with pytest.raises(ConfigError, match=words):
        calibrated(30).sets(softmax(draw(5)[0]), coverage=0.99)


def perfect(count):
    logits = np.eye(3)[np.arange(count) % 3] * 5 + np.random.default_rng(0).random((count, 3))
    return Calibration.fit(logits, logits.argmax(axis=1), names(count))


@pytest.mark.parametrize(("risk", "confidence"), [(0.1, 0.9), (0.05, 0.9), (0.2, 0.99)])
def test_a_model_without_errors_needs_the_stated_number_of_images(risk, confidence):
    held_out = held_out_for_risk(risk, confidence=confidence)
    needed = next(count for count in range(3, 99) if not perfect(count).missing(held_out))
    assert perfect(needed).threshold(risk, confidence=confidence) == 0.0
    with pytest.raises(ConfigError, match="more are needed"):
        perfect(needed - 3).threshold(risk, confidence=confidence)


def test_a_threshold_passes_the_exact_binomial_test_and_so_do_all_tested_before_it():
    found = calibrated(600, sharpness=3.0, seed=5)
    threshold = found.threshold(0.2)
    proposals = found._proposals(0.2)
    confidences, correct = np.array(found.confidences), np.array(found.correct)
    passes = []
    for proposal in proposals:
        kept = confidences >= proposal
        passes.append(binom.cdf((~correct[kept]).sum(), kept.sum(), 0.2) <= 0.1)
    assert proposals == sorted(proposals, reverse=True)
    place = proposals.index(threshold)
    assert all(passes[: place + 1])
    assert not passes[place + 1]


def test_proposals_come_from_the_images_that_fitted_the_temperature_alone():
    found = calibrated(600, sharpness=3.0, seed=5)
    other = found.model_copy(update={"correct": tuple(not value for value in found.correct)})
    assert found._proposals(0.2) == other._proposals(0.2)


class TwoClasses:
    """Images whose certainty and error rate are known, so that the true risk is too."""

    def __init__(self, bad_tail):
        rng = np.random.default_rng(0)
        # Margin m: right with probability sigmoid(m / 3), unless a tail is sure and wrong.
        m, labels = self.sample(rng, 200_000, bad_tail)
        wrong = labels == 1
        order = np.argsort(-m)
        self.margins = m[order]
        self.risks = wrong[order].cumsum() / np.arange(1, len(m) + 1)
        self.bad_tail = bad_tail

    @staticmethod
    def sample(rng, count, bad_tail):
        m = rng.exponential(6, count) + 1e-3
        p_wrong = 1 - expit(m / 3)
        p_wrong = np.where(m > 15, bad_tail, p_wrong) if bad_tail else p_wrong
        return m, (rng.random(count) < p_wrong).astype(int)

    def risk(self, threshold, temperature):
        if threshold <= 0.5:
            return self.risks[-1]
        kept = np.searchsorted(-self.margins, -temperature * logit(threshold), side="right")
        return self.risks[kept - 1] if kept else 0.0


@pytest.mark.parametrize(("bad_tail", "risk", "count"), [(0.0, 0.15, 200), (0.2, 0.15, 150)])
def test_the_promised_risk_is_broken_no_more_often_than_stated(bad_tail, risk, count):
    world = TwoClasses(bad_tail)
    broken = promised = 0
    draws = 200
    for seed in range(draws):
        m, labels = world.sample(np.random.default_rng([1, seed]), count, bad_tail)
        found = Calibration.fit(np.stack([m, 0 * m], 1), labels, names(count, seed))
        try:
            threshold = found.threshold(risk, confidence=0.9)
        except ConfigError:
            continue
        promised += 1
        broken += world.risk(threshold, found.temperature) > risk
    # Three standard deviations of chance above the ten per cent that are allowed.
    assert broken / draws <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / draws)
    if not bad_tail:
        assert promised > 0.5 * draws  # the promise is not kept by never making it


def test_a_good_model_abstains_on_little():
    logits, labels = draw(900, seed=3)
    logits[np.arange(900), labels] += 6
    found = Calibration.fit(logits, labels, names(900))
    kept = np.array(found.confidences) >= found.threshold(0.05)
    assert kept.mean() > 0.8


def test_a_model_that_errs_where_it_is_sure_is_told_apart_from_too_few_images():
    logits, _ = draw(300)
    labels = (logits.argmax(axis=1) + (np.arange(300) % 2)) % 4  # half are wrong at any certainty
    with pytest.raises(ConfigError, match="Allow a larger risk, or use a better model"):
        Calibration.fit(logits, labels, names(300)).threshold(0.05)
    with pytest.raises(ConfigError, match=r"too few to promise .* About \d+ more"):
        perfect(60).threshold(0.001)


@pytest.mark.parametrize("value", [0.0, 1.0, -1, 2, float("nan")])
def test_shares_outside_0_to_1_are_refused(value):
    found = perfect(60)
    with pytest.raises(ConfigError, match="max_risk"):
        found.threshold(value)
    with pytest.raises(ConfigError, match="confidence"):
        found.threshold(0.1, confidence=value)
    with pytest.raises(ConfigError, match="coverage"):
        found.sets(np.eye(3), coverage=value)
    with pytest.raises(ConfigError, match="'lac' or 'aps'"):
        found.sets(np.eye(3), kind="raps")


def test_a_file_gives_the_same_calibration_back(tmp_path):
    found = calibrated(60).model_copy(update={"weights_sha256": "abc"})
    found.write(tmp_path / "c.json")
    assert Calibration.read(tmp_path / "c.json", weights_sha256="abc") == found
    assert Calibration.read(tmp_path / "none.json") is None
    with pytest.raises(ConfigError, match="other weights"):
        Calibration.read(tmp_path / "c.json", weights_sha256="abd")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "newer ogkd"),
        ({"temperature": 0}, "temperature"),
        ({"temperature": "NaN"}, "temperature"),
        ({"lac": [0.5]}, "different length"),
        ({"confidences": []}, "confidences"),
        ({"images": 61}, "add up to 61"),
        ({"aps": [2.0] * 40}, "aps"),
        (None, "damaged"),
    ],
)
def test_a_file_that_cannot_be_right_is_refused(tmp_path, change, message):
    path = tmp_path / "c.json"
    calibrated(60).write(path)
    if change is None:
        path.write_text("[1]")
    else:
        edit_sealed(path, lambda content: content.update(change))
    with pytest.raises(ConfigError, match=message):
        Calibration.read(path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_not_json_is_refused(tmp_path, content):
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(ConfigError, match="damaged"):
        Calibration.read(tmp_path / "c.json")


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_more_coverage_never_makes_a_set_smaller(count, classes, seed, coverage):
    logits, labels = draw(count, classes=classes, seed=seed)
    found = Calibration.fit(logits, labels, names(count, seed))
    p = found.probabilities(draw(20, classes=classes, seed=seed + 1)[0])
    for kind in ("lac", "aps"):
        sets = []
        for wanted in (coverage / 2, coverage):
            try:
                sets.append(found.sets(p, coverage=wanted, kind=kind))
            except ConfigError:
                return
        assert (sets[0] <= sets[1]).all()


def test_a_file_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "c.json"
    calibrated(60).write(path)
    path.write_text(path.read_text().replace('"images": 60', '"images":  60'))
    assert Calibration.read(path) is not None  # the same content
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"temperature": content["temperature"] + 1e-9}))
    with pytest.raises(ConfigError, match="does not match its checksum"):
        Calibration.read(path)


@pytest.mark.parametrize("temperature", [0.01, 50.0, 1e308])
def test_a_temperature_that_no_fit_gives_is_refused(tmp_path, temperature):
    path = tmp_path / "c.json"
    calibrated(60).write(path)
    edit_sealed(path, lambda content: content.update(temperature=temperature))
    with pytest.raises(ConfigError, match="temperature"):
        Calibration.read(path)
