"""Calibration: rescaling, prediction sets, thresholds, and what each of them guarantees.

Findings are calibrated as questions of two classes: against the formulas for one finding.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mapie.classification import SplitConformalClassifier
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, logit
from scipy.stats import binom
from sklearn.base import BaseEstimator, ClassifierMixin

from ogkd.data.task import softmax
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation.confidence import ece, nll
from ogkd.model.calibration import Calibration
from ogkd.model.scaling import (
    cases_needed_for_coverage,
    conformal_limit,
    fit_temperature,
    held_out_for_risk,
    held_out_for_sensitivity,
    justified_temperature,
    split_units,
    tolerance_limit,
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
    return task.plausible(p, calibration.limits(coverage))


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


@pytest.mark.parametrize(
    ("sharpness", "nll_factor", "ece_factor", "least", "most"),
    [(1.0, 1.02, 1.3, 0.0, 0.12), (4.0, 0.7, 0.6, 0.85, 1.0)],
)
def test_calibrating_corrects_overconfidence_and_does_no_harm(
    sharpness, nll_factor, ece_factor, least, most
):
    (nll_before, nll_after, ece_before, ece_after), applied = simulate(sharpness)
    assert nll_after < nll_factor * nll_before
    assert ece_after < ece_factor * ece_before
    assert least <= applied <= most


def test_many_images_of_one_patient_are_not_taken_for_evidence():
    z, y = draw(16, sharpness=3.0, seed=1)
    temperature, reason = justified_temperature(z, y, units=16)
    assert temperature > 1
    assert reason is None
    temperature, reason = justified_temperature(z, y, units=2)
    assert temperature == 1.0
    assert reason == (
        "16 images are too few to tell whether probabilities need correcting; unchanged."
    )


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


@settings(max_examples=25)
@given(st.integers(2, 40), st.integers(2, 6), st.integers(0, 1000), st.floats(0.05, 0.95))
def test_more_coverage_never_makes_a_set_smaller(count, classes, seed, coverage):
    calibration = fitted(*draw(count, classes=classes, seed=seed), seed)
    p = probabilities(calibration, draw(20, classes=classes, seed=seed + 1)[0])
    task = task_of(classes)
    less, more = (
        task.plausible(p, calibration.limits(share)) for share in (coverage / 2, coverage)
    )
    assert (less <= more).all()


@pytest.mark.parametrize("coverage", [0.55, 0.9, 0.95])
def test_the_number_of_cases_that_sets_need_is_the_smallest_that_works(coverage):
    needed = cases_needed_for_coverage(coverage)
    calibrated(needed).require_sets(coverage)
    with pytest.raises(ConfigError) as error:
        calibrated(needed - 1).require_sets(coverage)
    assert error.value.argument == "coverage"
    assert (calibrated(needed - 1).limits(coverage)[0] == 0).all()  # all are plausible


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
    other = question.model_copy(update={"correct": tuple(not right for right in question.correct)})
    assert other._proposals(0.2) == proposals  # of the cases that fitted the temperature alone
    confidences, correct = np.array(question.confidences), np.array(question.correct)
    passes = []
    for proposal in proposals:
        kept = confidences >= proposal
        passes.append(binom.cdf((~correct[kept]).sum(), kept.sum(), 0.2) <= 0.1)
    assert proposals == sorted(proposals, reverse=True)
    last = proposals.index(question.threshold(0.2))
    assert all(passes[: last + 1])
    assert not passes[last + 1]


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


@pytest.mark.parametrize("value", [0.0, 1.0, -1, 2, float("nan")])
def test_shares_outside_0_to_1_are_refused(value):
    calibration = perfect(60)
    (question,) = calibration.questions
    for call, argument in (
        (lambda: question.threshold(value), "max_risk"),
        (lambda: question.threshold(0.1, confidence=value), "confidence"),
        (lambda: calibration.limits(value), "coverage"),
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
        lambda record: record["questions"][0].update(scale=0),
        lambda record: record["questions"][0].update(shift=[0.0]),
        lambda record: record["questions"][0].update(counts=[60, 1, 0, 0]),
        lambda record: record["questions"][0]["scores"][0].reverse(),
        b"", b"[1]",
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


TASK = Findings(("mass", "nodule"))


def drawn(images=400, seed=3, noise=1.0):
    """Log-odds and labels of a frequent and a rare finding; some labels are unknown."""
    rng = np.random.default_rng(seed)
    y = (rng.random((images, 2)) < (0.4, 0.03)).astype(np.int64)
    z = 3 * y - 1.5 + rng.normal(0, noise, y.shape)
    y[rng.random(y.shape) < 0.2] = -1
    return z, y, [f"{n:04}" for n in range(images)]


class PlainFinding:
    """One finding: rescaled log-odds, and below and above which probabilities it is answered."""

    def __init__(self, z, y, first):
        fits = first & (y >= 0)
        sign = 2.0 * y[fits] - 1

        def cost(x):
            prior = (x[0] / 0.7) ** 2 / 2 + (x[1] / 2.0) ** 2 / 2
            return np.logaddexp(0.0, -sign * (math.exp(x[0]) * z[fits] + x[1])).sum() + prior

        bounds = [(-3.0, 3.0), (-20.0, 20.0)]
        x = minimize(cost, np.zeros(2), method="L-BFGS-B", bounds=bounds).x
        self.slope, self.offset = math.exp(x[0]), x[1]
        p = self.probabilities(z)
        self.present = np.sort(p[~first & (y == 1)])
        self.absent = np.sort(p[~first & (y == 0)])

    def probabilities(self, z):
        return expit(self.slope * z + self.offset).astype(np.float32)

    def no_below(self, coverage, sensitivity=None, confidence=0.9):
        n = len(self.present)
        if sensitivity is None:
            k = math.floor((1 - coverage) * (n + 1) + 1e-9)
        else:
            k = sum(binom.cdf(i, n, 1 - sensitivity) <= 1 - confidence + 1e-12 for i in range(n))
        return float(self.present[k - 1]) if k else 0.0

    def yes_above(self, coverage):
        k = math.floor((1 - coverage) * (len(self.absent) + 1) + 1e-9)
        return float(self.absent[-k]) if k else 1.0

    def answer(self, p, no_below, yes_above):
        no, yes = p < no_below, p > yes_above
        if no and yes:
            return "yes" if p >= 0.5 else "no"
        return "yes" if yes else "no" if no else "unsure"


@pytest.mark.parametrize(
    ("coverage", "sensitivity", "confidence"),
    [(0.9, None, 0.9), (0.7, None, 0.9), (0.9, 0.9, 0.9), (0.8, 0.6, 0.95), (0.99, 0.95, 0.9)],
)
@pytest.mark.parametrize("noise", [1.0, 8.0])
def test_probabilities_limits_and_answers_are_those_of_each_finding(
    coverage, sensitivity, confidence, noise
):
    z, y, keys = drawn(noise=noise)
    calibration = Calibration.fit(TASK, z, y, keys, sensitivity=sensitivity, confidence=confidence)
    limits = calibration.limits(coverage)
    new = 3 * drawn(300, seed=8)[0]
    p = TASK.probabilities(new, calibration)
    answers = TASK.answers(p, TASK.plausible(p, limits))
    first = split_units(keys)
    for f in range(2):
        plain = PlainFinding(z[:, f], y[:, f], first)
        question = calibration.questions[f]
        np.testing.assert_allclose([question.scale, question.shift[1]], [plain.slope, plain.offset])
        np.testing.assert_allclose(p[:, f], plain.probabilities(new[:, f]), atol=1e-6)
        no_below = plain.no_below(coverage, sensitivity, confidence)
        yes_above = plain.yes_above(coverage)
        np.testing.assert_allclose(limits[f], [1 - yes_above, no_below], atol=1e-6)
        clear = np.abs(p[:, [f]] - [no_below, yes_above]).min(axis=1) > 1e-5
        words = [plain.answer(float(share), no_below, yes_above) for share in p[clear, f]]
        verdicts = [answers[row].verdicts[f] for row in np.flatnonzero(clear)]
        assert verdicts == words


@pytest.mark.parametrize("p", [0.3, 1e-30, 1.0])
def test_a_case_as_unlike_its_class_as_the_limit_is_still_plausible(p):
    """Ties count as plausible, also where the probability has been rounded to 0 or 1."""
    z = np.full((120, 2), np.clip(math.log(p) - math.log1p(-min(p, 1 - 1e-9)), -80, 80))
    y = np.tile(np.arange(120) % 2, (2, 1)).T
    calibration = Calibration.fit(TASK, z, y, [f"{n:04}" for n in range(120)])
    probabilities = TASK.probabilities(z[:1], calibration)
    assert TASK.plausible(probabilities, calibration.limits()).all()


def test_few_new_cases_lie_below_the_conformal_limit():
    rng = np.random.default_rng(0)
    below = [
        rng.random() < conformal_limit(np.sort(rng.random(19)).tolist(), 0.9) for _ in range(20_000)
    ]
    assert abs(np.mean(below) - 0.1) < 0.01  # k / (n + 1) = 2 / 20, exactly
    assert conformal_limit([0.3] * 8, 0.9) == 0.0  # 9 are needed
    assert conformal_limit([0.3] * 9, 0.9) == 0.3


def test_the_guaranteed_sensitivity_is_missed_no_more_often_than_stated():
    rng = np.random.default_rng(1)
    # Of uniform scores, the share below a limit is the limit itself.
    missed = [
        tolerance_limit(np.sort(rng.random(80)).tolist(), 0.9, 0.9) > 0.1 for _ in range(4_000)
    ]
    exact = [k for k in range(80) if binom.cdf(k, 80, 0.1) <= 0.1]
    rate = 1 - sum(math.comb(80, i) * 0.1**i * 0.9 ** (80 - i) for i in range(exact[-1] + 1, 81))
    assert rate <= 0.1
    assert abs(np.mean(missed) - rate) < 0.015


def test_the_fewest_cases_for_a_sensitivity_are_just_enough():
    needed = held_out_for_sensitivity(0.95, 0.9)
    assert needed == 45
    assert tolerance_limit([0.5] * needed, 0.95, 0.9) == 0.5
    assert tolerance_limit([0.5] * (needed - 1), 0.95, 0.9) == 0.0


@pytest.mark.parametrize(
    ("p", "no_below", "yes_above", "verdict"),
    [
        (0.1, 0.2, 0.7, "no"),
        (0.5, 0.2, 0.7, "unsure"),
        (0.9, 0.2, 0.7, "yes"),
        (0.25, 0.25, 0.75, "unsure"),
        (0.75, 0.25, 0.75, "unsure"),
        (0.6, 0.8, 0.3, "yes"),
        (0.4, 0.8, 0.3, "no"),
        (0.5, None, None, "yes"),
        (0.49, None, None, "no"),
    ],
)  # fmt: skip
def test_answers_between_the_limits_are_unsure_and_where_they_overlap_by_half(
    p, no_below, yes_above, verdict
):
    task, shares = Findings(("mass",)), np.array([[p]], dtype=np.float32)
    plausible = None
    if no_below is not None:
        plausible = task.plausible(shares, [np.array([1 - yes_above, no_below])])
    (answer,) = task.answers(shares, plausible)
    assert answer.verdicts == (verdict,)
    assert answer.prediction == ("mass" if verdict == "yes" else "none")
    assert answer.unsure == (verdict == "unsure")


def test_more_images_are_advised_only_where_they_can_help():
    """A model that is as often right as one answer to all is not made better by calibrating it."""
    logits = np.random.default_rng(3).normal(size=(300, 3)).astype(np.float32)
    guessing = fitted(logits, np.random.default_rng(4).integers(3, size=300)).questions[0]
    useful = calibrated(40, sharpness=2.0).questions[0]
    advice = {}
    for name, question in {"guessing": guessing, "useful": useful}.items():
        with pytest.raises(ConfigError) as error:
            question.threshold(0.01)
        advice[name] = str(error.value)
    assert "No number of images helps" in advice["guessing"]
    assert "No number of images helps" not in advice["useful"]
