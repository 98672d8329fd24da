"""Calibration: temperature, prediction sets, thresholds, and what each of them guarantees."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from scipy.special import expit, log_softmax, logit
from scipy.stats import binom, chi2
from sklearn.base import BaseEstimator, ClassifierMixin

from ogkd.data.task import softmax
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation.confidence import ece, nll
from ogkd.model.calibration import Calibration
from ogkd.model.scaling import (
    cases_needed_for_coverage,
    fit_temperature,
    held_out_for_risk,
    justified_temperature,
    split_units,
)
from tiny_data import edit_sealed


def task_of(classes):
    return OneOf(tuple(f"class {number}" for number in range(classes)))


def draw(count, *, classes=4, sharpness=1.0, seed=0):
    """Logits that are `sharpness` times too large, and labels drawn from what they should be."""
    rng = np.random.default_rng(seed)
    honest = rng.normal(0, 2, (count, classes))
    p = np.exp(log_softmax(honest, axis=1))
    labels = (p.cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
    return sharpness * honest, labels


def keys_of(count, seed=0):
    return [f"{value:016x}" for value in np.random.default_rng(seed).integers(0, 2**60, count)]


def fitted(logits, labels, seed=0, **options):
    keys = keys_of(len(labels), seed)
    return Calibration.fit(task_of(logits.shape[1]), logits, labels, keys, **options)


def calibrated(count, **how):
    return fitted(*draw(count, **how))


def perfect(count):
    logits = np.eye(3)[np.arange(count) % 3] * 5 + np.random.default_rng(0).random((count, 3))
    return fitted(logits, logits.argmax(axis=1))


def probabilities(calibration, logits):
    return task_of(logits.shape[1]).probabilities(logits, calibration)


def sets(calibration, p, coverage=0.9):
    task = task_of(p.shape[1])
    calibration.require_sets(coverage)
    return task.plausible(p, calibration.limits(task, coverage))


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 5.0])
def test_the_temperature_undoes_too_much_or_too_little_certainty(sharpness):
    assert fit_temperature(*draw(20_000, sharpness=sharpness)) == pytest.approx(sharpness, rel=0.05)


def test_without_a_split_all_cases_fit_the_scale_and_give_the_sets():
    logits, labels = draw(48, sharpness=3.0, seed=2)  # overconfident, and few
    whole, parted = (fitted(logits, labels, split=split) for split in (False, True))
    [question], [third] = whole.questions, parted.questions
    assert question.temperature == fit_temperature(logits, labels) > 1.5
    assert (whole.split, len(question.confidences)) == (False, 48)
    assert (parted.split, len(third.confidences)) == (True, 32)
    assert whole.questions[0].threshold(0.5, confidence=0.5) >= 0
    assert sets(whole, probabilities(whole, logits)).any(axis=1).mean() >= 0.9


def test_no_other_temperature_has_a_smaller_loss():
    logits, labels = draw(300, sharpness=3.0, seed=4)

    def loss(t):
        fit = -log_softmax(logits / t, axis=1)[np.arange(300), labels].mean()
        return fit + (np.log(t) / 0.7) ** 2 / 2 / 300  # the prior

    others = np.geomspace(0.05, 20, 2000)
    assert loss(fit_temperature(logits, labels)) <= min(map(loss, others)) + 1e-9


@pytest.mark.parametrize(("sharpness", "bound"), [(1e3, 20.0), (1e-3, 0.05)])
def test_a_temperature_stays_within_its_bounds(sharpness, bound):
    logits, labels = draw(2000, sharpness=sharpness)
    assert fit_temperature(logits, labels) == pytest.approx(bound, rel=1e-3)


def simulate(sharpness, draws=120):
    """Mean NLL and ECE before and after calibrating on 48 cases, and how often it is applied."""
    scores, applied = [], 0
    for seed in range(draws):
        calibration = fitted(*draw(48, sharpness=sharpness, seed=seed), seed)
        new, truth = draw(500, sharpness=sharpness, seed=10_000 + seed)
        before, after = softmax(new), probabilities(calibration, new)
        scores.append([metric(truth, p) for metric in (nll, ece) for p in (before, after)])
        (question,) = calibration.questions
        applied += question.applied
        assert question.applied == (question.reason is None)
    return np.mean(scores, axis=0), applied / draws


def test_calibrating_a_calibrated_model_does_no_harm():
    (nll_before, nll_after, ece_before, ece_after), applied = simulate(1.0)
    assert nll_after < nll_before + 0.02
    assert ece_after < ece_before + 0.012
    assert applied < 0.12


def test_strong_overconfidence_is_corrected():
    (nll_before, nll_after, ece_before, ece_after), applied = simulate(4.0)
    assert nll_after < 0.7 * nll_before
    assert ece_after < 0.6 * ece_before
    assert applied > 0.85


def test_rescaling_is_applied_from_a_chance_of_one_in_twenty_on():
    chances, applied = [], []
    for seed in range(60):
        z, y = draw(48, sharpness=1.4, seed=seed)
        gain = 48 * (nll(y, softmax(z)) - nll(y, softmax(z / fit_temperature(z, y))))
        chances.append(chi2.sf(2 * gain, 1))
        applied.append(justified_temperature(z, y, units=48)[1] is None)
    pairs = list(zip(chances, applied, strict=True))
    clear = [rescaled for chance, rescaled in pairs if 0.026 < chance < 0.049]
    assert clear
    assert all(clear)
    assert not any(rescaled for chance, rescaled in pairs if chance > 0.051)


def test_many_images_of_one_patient_are_not_taken_for_evidence():
    z, y = draw(16, sharpness=3.0, seed=1)
    temperature, reason = justified_temperature(z, y, units=16)
    assert temperature > 1
    assert reason is None
    temperature, reason = justified_temperature(z, y, units=2)
    assert temperature == 1.0
    assert reason


def test_cases_without_an_error_leave_the_temperature_and_still_give_sets_and_thresholds():
    logits, _ = draw(300)
    labels = logits.argmax(axis=1)
    assert fit_temperature(logits, labels) == 1.0
    calibration = fitted(logits, labels)
    assert not calibration.questions[0].applied
    assert sets(calibration, softmax(logits)).any()
    assert calibration.questions[0].threshold(0.1) >= 0


def test_calibrated_probabilities_keep_the_order_of_the_classes():
    logits, _ = draw(200, sharpness=6.0)
    calibration = calibrated(300, sharpness=6.0)
    p = probabilities(calibration, logits)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert np.array_equal(p.argmax(axis=1), logits.argmax(axis=1))
    temperature = calibration.questions[0].temperature
    np.testing.assert_allclose(p, np.exp(log_softmax(logits / temperature, axis=1)), atol=1e-6)


def test_logits_of_any_size_give_probabilities():
    extreme = np.array([[1e4, 0.0], [-1e4, 1e4], [-1e4, -2e4]])
    assert softmax(extreme).tolist() == [[1, 0], [0, 1], [1, 0]]


def test_what_is_kept_is_of_the_cases_that_did_not_fit_the_temperature():
    logits, labels = draw(90, sharpness=4.0)
    first = split_units(keys_of(90))
    (question,) = fitted(logits, labels).questions
    assert first.sum() == 30
    temperature = fit_temperature(logits[first], labels[first])
    assert question.temperature == pytest.approx(temperature)
    p = np.exp(log_softmax(logits[~first] / temperature, axis=1))
    truth = labels[~first]
    assert list(question.confidences) == sorted(question.confidences, reverse=True)
    np.testing.assert_allclose(sorted(question.confidences), np.sort(p.max(axis=1)), atol=1e-6)
    assert sum(question.correct) == (p.argmax(axis=1) == truth).sum()
    for c, scores in enumerate(question.scores):
        np.testing.assert_allclose(scores, np.sort(p[truth == c, c]), atol=1e-6)
    assert question.counts == tuple(np.bincount(labels, minlength=4))


def test_neither_the_order_nor_the_labels_of_cases_decide_which_fit_the_temperature():
    logits, labels = draw(60, sharpness=2.0)
    keys = keys_of(60)
    order = np.random.default_rng(1).permutation(60)
    shuffled = [keys[row] for row in order]
    again = Calibration.fit(task_of(4), logits[order], labels[order], shuffled)
    first = fitted(logits, labels)
    assert (again.image_keys, again.data_sha256) == (first.image_keys, first.data_sha256)
    for field in ("confidences", "correct", "first_confidences"):
        values = (getattr(each.questions[0], field) for each in (again, first))
        np.testing.assert_allclose(*values, atol=1e-5)
    assert again.questions[0].temperature == pytest.approx(first.questions[0].temperature)
    assert np.array_equal(split_units(shuffled), split_units(keys)[order])


@given(st.lists(st.sampled_from([None, *"abcdefgh"]), min_size=2, max_size=60), st.integers(0, 99))
def test_a_patient_is_on_one_side_only_and_neither_side_is_empty(groups, seed):
    first = split_units(keys_of(len(groups), seed), groups)
    for group in set(groups) - {None}:
        rows = [row for row, name in enumerate(groups) if name == group]
        assert len(set(first[rows].tolist())) == 1
    if len(set(groups) - {None}) + groups.count(None) > 1:
        assert 0 < first.sum() < len(groups)


def test_about_a_third_fits_the_temperature_with_or_without_patients():
    assert split_units(keys_of(300)).sum() == 100
    groups = [f"patient {row // 5}" for row in range(300)]
    assert split_units(keys_of(300), groups).sum() == pytest.approx(100, abs=5)


class Answers(ClassifierMixin, BaseEstimator):
    """An estimator whose input already is its answer."""

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


@pytest.mark.parametrize("coverage", [0.7, 0.9])
@pytest.mark.parametrize("count", [60, 301])
def test_sets_are_those_of_mapie(coverage, count):
    logits, labels = draw(count, sharpness=2.0, seed=count)
    ours = fitted(logits, labels)
    held, temperature = ~split_units(keys_of(count)), ours.questions[0].temperature
    # MAPIE wants rows that add up to 1 to the last digit of float64.
    p = np.exp(log_softmax(logits / temperature, axis=1))
    theirs = SplitConformalClassifier(
        Answers(), confidence_level=coverage, conformity_score="lac", prefit=True
    ).conformalize(p[held], labels[held])
    new = np.exp(log_softmax(draw(500, sharpness=2.0, seed=7)[0] / temperature, axis=1))
    expected = theirs.predict_set(new)[1][:, :, 0]
    plausible = sets(ours, new, coverage)
    assert 0 < plausible.mean() < 1
    assert (plausible != expected).any(axis=1).mean() <= 0.002  # one image may lie on the limit


def test_sets_contain_the_true_class_as_often_as_guaranteed():
    coverages = []
    for seed in range(200):
        calibration = fitted(*draw(60, sharpness=4.0, seed=seed), seed)
        new, truth = draw(200, sharpness=4.0, seed=10_000 + seed)
        plausible = sets(calibration, probabilities(calibration, new))
        coverages.append(plausible[np.arange(200), truth].mean())
    noise = 3 * np.std(coverages) / np.sqrt(len(coverages))
    # No more than its theory allows either: 1 / (n + 1) more.
    assert 0.9 - noise <= np.mean(coverages) <= 0.9 + 1 / 41 + noise


def test_sets_of_a_calibration_cover_less_where_a_hard_class_is_frequent():
    """Why they are refused with a prior; sets by class (test_ranking.py) keep their coverage."""
    rng, covered = np.random.default_rng(0), []

    def drawn(images, shares):
        labels = rng.choice(2, images, p=shares)
        first = rng.normal(np.where(labels == 0, 3.0, 0.0), 1.0)  # the second class is harder
        return np.stack([first, np.zeros(images)], axis=1), labels

    for shares in ((0.9, 0.1), (0.1, 0.9)):  # as at calibration, and the other way round
        calibration = fitted(*drawn(2000, (0.9, 0.1)))
        new, truth = drawn(4000, shares)
        plausible = sets(calibration, probabilities(calibration, new))
        covered.append(plausible[np.arange(4000), truth].mean())
    assert covered[0] > 0.88
    assert covered[1] < 0.8


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_more_coverage_never_makes_a_set_smaller(count, classes, seed, coverage):
    calibration = fitted(*draw(count, classes=classes, seed=seed), seed)
    p = probabilities(calibration, draw(20, classes=classes, seed=seed + 1)[0])
    task = task_of(classes)
    less, more = (
        task.plausible(p, calibration.limits(task, share)) for share in (coverage / 2, coverage)
    )
    assert (less <= more).all()


@pytest.mark.parametrize("coverage", [0.55, 0.9, 0.95])
def test_the_number_of_cases_that_sets_need_is_the_smallest_that_works(coverage):
    needed = cases_needed_for_coverage(coverage)
    calibrated(needed).require_sets(coverage)
    with pytest.raises(ConfigError) as error:
        calibrated(needed - 1).require_sets(coverage)
    assert error.value.argument == "coverage"
    task = task_of(4)
    assert (calibrated(needed - 1).limits(task, coverage)[0] == 0).all()  # all are plausible


@pytest.mark.parametrize(("sizes", "held_out"), [((16,), 0), ((12, 4), 9), ((4, 12), 9)])
def test_missing_cases_are_counted_beside_those_that_fit_the_temperature(sizes, held_out):
    """Of two patients one fits the temperature: the images of the other count."""
    groups = [f"patient {n}" for n, size in enumerate(sizes) for _ in range(size)]
    calibration = fitted(*draw(16), groups=groups if len(sizes) > 1 else None)
    beside = len(calibration.questions[0].confidences)
    assert calibration.missing(beside) == 0
    assert calibration.missing(beside + 5) >= 5
    assert calibration.missing(held_out) == max(0, held_out - beside)


@pytest.mark.parametrize(("risk", "confidence"), [(0.1, 0.9), (0.05, 0.9), (0.2, 0.99)])
def test_a_model_without_errors_needs_the_stated_number_of_cases(risk, confidence):
    held_out = held_out_for_risk(risk, confidence=confidence)
    assert (1 - risk) ** held_out <= 1 - confidence < (1 - risk) ** (held_out - 1)
    needed = next(count for count in range(3, 99) if not perfect(count).missing(held_out))
    assert perfect(needed).questions[0].threshold(risk, confidence=confidence) == 0.0
    with pytest.raises(ConfigError) as error:
        perfect(needed - 3).questions[0].threshold(risk, confidence=confidence)
    assert error.value.argument == "max_risk"


def test_a_threshold_passes_the_exact_binomial_test_and_so_do_all_tested_before_it():
    (question,) = calibrated(600, sharpness=3.0, seed=5).questions
    proposals = question._proposals(0.2)
    confidences, correct = np.array(question.confidences), np.array(question.correct)
    passes = []
    for proposal in proposals:
        kept = confidences >= proposal
        passes.append(binom.cdf((~correct[kept]).sum(), kept.sum(), 0.2) <= 0.1)
    assert proposals == sorted(proposals, reverse=True)
    last = proposals.index(question.threshold(0.2))
    assert all(passes[: last + 1])
    assert not passes[last + 1]


def test_proposals_come_from_the_cases_that_fitted_the_temperature_alone():
    (question,) = calibrated(600, sharpness=3.0, seed=5).questions
    other = question.model_copy(update={"correct": tuple(not right for right in question.correct)})
    assert question._proposals(0.2) == other._proposals(0.2)


class TwoClasses:
    """Cases whose certainty and error rate are known, so that the true risk is too."""

    def __init__(self, bad_tail):
        # Margin m: right with probability sigmoid(m / 3), unless a tail is sure and wrong.
        m, labels = self.sample(np.random.default_rng(0), 200_000, bad_tail)
        order = np.argsort(-m)
        self.margins = m[order]
        self.risks = (labels == 1)[order].cumsum() / np.arange(1, len(m) + 1)

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
def test_the_guaranteed_risk_is_exceeded_no_more_often_than_stated(bad_tail, risk, count):
    world = TwoClasses(bad_tail)
    exceeded = guaranteed = 0
    draws = 200
    for seed in range(draws):
        m, labels = world.sample(np.random.default_rng([1, seed]), count, bad_tail)
        (question,) = fitted(np.stack([m, 0 * m], 1), labels, seed).questions
        try:
            threshold = question.threshold(risk, confidence=0.9)
        except ConfigError:
            continue
        guaranteed += 1
        exceeded += world.risk(threshold, question.temperature) > risk
    # Three standard deviations of chance above the ten per cent that are allowed.
    assert exceeded / draws <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / draws)
    if not bad_tail:
        assert guaranteed > 0.5 * draws


def test_a_good_model_abstains_on_little():
    logits, labels = draw(900, seed=3)
    logits[np.arange(900), labels] += 6
    (question,) = fitted(logits, labels).questions
    assert (np.array(question.confidences) >= question.threshold(0.05)).mean() > 0.8


def test_a_model_that_errs_where_it_is_sure_has_no_threshold():
    logits, _ = draw(300)
    labels = (logits.argmax(axis=1) + (np.arange(300) % 2)) % 4  # half are wrong at any certainty
    for question, risk in (
        (fitted(logits, labels).questions[0], 0.05),
        (perfect(60).questions[0], 0.001),
    ):
        with pytest.raises(ConfigError) as error:
            question.threshold(risk)
        assert error.value.argument == "max_risk"


@pytest.mark.parametrize("value", [0.0, 1.0, -1, 2, float("nan")])
def test_shares_outside_0_to_1_are_refused(value):
    calibration = perfect(60)
    (question,) = calibration.questions
    for call, argument in (
        (lambda: question.threshold(value), "max_risk"),
        (lambda: question.threshold(0.1, confidence=value), "confidence"),
        (lambda: calibration.limits(task_of(3), value), "coverage"),
        (lambda: fitted(*draw(30), sensitivity=value), "sensitivity"),
    ):
        with pytest.raises(ConfigError) as error:
            call()
        assert error.value.argument == argument


def test_a_file_gives_the_same_calibration_back_and_belongs_to_its_weights(tmp_path):
    calibration = calibrated(60).model_copy(update={"weights_sha256": "abc"})
    path = tmp_path / "c.json"
    calibration.write(path)
    assert Calibration.read(path, task_of(4), weights_sha256="abc") == calibration
    assert Calibration.read(tmp_path / "none.json", task_of(4)) is None
    for task, digest in ((task_of(4), "abd"), (task_of(5), "abc")):
        with pytest.raises(ConfigError):
            Calibration.read(path, task, weights_sha256=digest)
    path.write_text(path.read_text().replace('"cases": 60', '"cases": 61'))  # but not its checksum
    with pytest.raises(ConfigError):
        Calibration.read(path, task_of(4))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(schema_version=4),
        lambda record: record.update(schema_version=2),
        lambda record: record.update(cases=1),
        lambda record: record.update(questions=[]),
        lambda record: record["questions"][0].update(scale=0),
        lambda record: record["questions"][0].update(scale="NaN"),
        lambda record: record["questions"][0].update(shift=[0.0]),
        lambda record: record["questions"][0].update(confidences=[]),
        lambda record: record["questions"][0].update(counts=[60, 1, 0, 0]),
        lambda record: record["questions"][0].update(counts=[60]),
        lambda record: record["questions"][0]["scores"][0].reverse(),
        lambda record: record["questions"][0]["scores"][0].append(2.0),
        b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_right_is_refused(tmp_path, change):
    path = tmp_path / "c.json"
    calibrated(60).write(path)
    assert Calibration.read(path, task_of(4)) is not None
    if isinstance(change, bytes):
        path.write_bytes(change)
    else:
        edit_sealed(path, change)
    with pytest.raises(ConfigError):
        Calibration.read(path, task_of(4))
