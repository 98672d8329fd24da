"""The one decision: a case of one image is that image, a case of several is pooled."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ogkd.core.pooling import Pooling
from ogkd.data.case import Case
from ogkd.data.tasks import Findings, OneOf
from ogkd.errors import ConfigError
from ogkd.features.encode import EncodedBatch
from ogkd.features.store import given_batches
from ogkd.images import ImageRef
from ogkd.methods import LinearHead
from ogkd.model.calibration import Calibration
from ogkd.model.card import BackboneCard, ModelCard, PoolingCard
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.policy import Policy, class_shares

D = 6
CLASSES = OneOf(("normal", "cyst", "stone"), (0,))
FINDINGS = Findings(("mass", "edema"))
POOLINGS = {
    CLASSES: [Pooling(0.5, 1.3, (0.1, -0.2, 0.3), (0,), 0.4)],
    FINDINGS: [Pooling(0.0, 0.8, (0.2, -0.1), (0,), 0.2), Pooling(np.inf, 1.0, (), (0,), 0.0)],
}


def model_of(task, *, pooled=False, calibration=None, support=None):
    """A linear model of made-up features."""
    rng = torch.Generator().manual_seed(0)
    head = LinearHead(
        3 * torch.randn(len(task.names), D, generator=rng), torch.zeros(len(task.names))
    )
    backbone = SimpleNamespace(
        embed_dim=D, engine="torch", digest="d", name="toy", out_of_domain=lambda rows: None
    )
    card = ModelCard(
        method="gda",
        config={},
        asks=task.as_json(),
        backbone=BackboneCard(name="toy", digest="d", embed_dim=D, preprocessing={}),
        logit_scale=1.0,
        versions={},
        poolings=tuple(map(PoolingCard.of, POOLINGS[task])) if pooled else (),
    )
    return Classifier(backbone, head, card, calibration=calibration, support=support)


def calibration_of(task, cases=90):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, cases)
    logits = 2 * np.eye(3)[labels] + rng.normal(size=(cases, 3))
    if task is FINDINGS:
        labels = rng.integers(0, 2, (cases, 2))
        logits = 2.0 * labels - 1 + rng.normal(size=(cases, 2))
    return Calibration.fit(task, logits, labels, [f"{n:016x}" for n in range(cases)])


def rows_of(count, seed=0):
    return torch.randn(count, D, generator=torch.Generator().manual_seed(seed))


def cases_of(sizes):
    images = iter(range(sum(sizes)))
    return [
        Case(f"case {n}", tuple(ImageRef.of(f"{next(images)}.png") for _ in range(size)))
        for n, size in enumerate(sizes)
    ]


def decide(model, sizes, rows, policy=None):
    cases = cases_of(sizes)
    return list(Decider(model, policy).decide(cases, lambda images: given_batches(rows, images)))


@pytest.mark.parametrize("task", [CLASSES, FINDINGS], ids=["classes", "findings"])
@pytest.mark.parametrize("calibrated", [False, True])
def test_a_case_of_one_image_is_answered_as_the_image(task, calibrated):
    calibration = calibration_of(task) if calibrated else None
    model, rows = model_of(task, calibration=calibration), rows_of(20)
    decisions = decide(model, [1] * 20, rows)
    p = task.probabilities(model.head.logits(rows).numpy(), calibration)
    plausible = None
    if calibration is not None:
        plausible = task.plausible(p, calibration.limits())
    for decision, expected, row in zip(decisions, task.answers(p, plausible), rows, strict=True):
        np.testing.assert_allclose(decision.probabilities, expected.probabilities, atol=1e-6)
        assert replace(decision.answer, probabilities=(), probability=None) == replace(
            expected, probabilities=(), probability=None
        )
        np.testing.assert_array_equal(decision.features, row)
        assert [(each.image, each.weight) for each in decision.deciding] == [(decision.image, 1.0)]
    np.testing.assert_allclose(model.probabilities(rows), p, atol=1e-6)


@pytest.mark.parametrize("task", [CLASSES, FINDINGS], ids=["classes", "findings"])
@pytest.mark.parametrize("pooled", [False, True])
def test_a_case_of_several_images_is_pooled_question_by_question(task, pooled):
    model, sizes = model_of(task, pooled=pooled), [3, 1, 2]
    rows = rows_of(6)
    z = model.head.logits(rows).double()
    decisions = decide(model, sizes, rows)
    poolings = POOLINGS[task] if pooled else [Pooling(normal=(0,))] * len(task.question_names())
    start = 0
    for decision, size in zip(decisions, sizes, strict=True):
        images = z[start : start + size]
        start += size
        tables = [torch.as_tensor(table) for table in task.questions(images.numpy())]
        case = torch.zeros(size, dtype=torch.long)
        expected = task.combine([p.logits(t, case) for p, t in zip(poolings, tables, strict=True)])
        np.testing.assert_allclose(
            decision.probabilities, task.probabilities(expected.numpy())[0], atol=1e-6
        )
        question, column = task.locate(task.evidence_label(decision.probabilities))
        weights = poolings[question].weights(tables[question], column).numpy()
        np.testing.assert_allclose([i.weight for i in decision.images], weights, atol=1e-6)
        assert decision.deciding[0].weight == pytest.approx(weights.max(), abs=1e-6)
        assert decision.image == decision.case.images[int(weights.argmax())]
    number = torch.arange(3).repeat_interleave(torch.tensor(sizes))
    expected = model.probabilities(rows, number)
    np.testing.assert_allclose([d.probabilities for d in decisions], expected, atol=1e-6)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(1, 7))
def test_batches_that_cut_cases_change_nothing(sizes, batch_size):
    model, rows = model_of(CLASSES, pooled=True), rows_of(sum(sizes))

    def in_batches(images):
        refs = list(images)
        for start in range(0, len(refs), batch_size):
            part = slice(start, start + batch_size)
            yield from given_batches(rows[part], refs[part])

    whole = decide(model, sizes, rows)
    parts = list(Decider(model).decide(cases_of(sizes), in_batches))
    assert [d.case for d in parts] == [d.case for d in whole]
    for part, expected in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part.probabilities, expected.probabilities, atol=1e-6)


def test_images_that_cannot_be_read_are_left_out_of_their_case():
    model, rows = model_of(CLASSES, pooled=True), rows_of(6)

    def with_errors(images):
        (batch,) = given_batches(rows[:3], list(images))
        yield EncodedBatch(batch.images, batch.features, {1: "damaged", 3: "gone", 4: "gone"})

    cases = cases_of([3, 2, 1])
    first, second, third = Decider(model).decide(cases, with_errors)
    assert (first.read, first.error) == (2, None)
    assert first.errors == ((cases[0].images[1], "damaged"),)
    assert first.reasons
    expected = decide(model, [2, 1], rows[:3])
    for decision, same in ((first, expected[0]), (third, expected[1])):
        np.testing.assert_allclose(decision.probabilities, same.probabilities, atol=1e-6)
    assert second.answer is None
    assert second.error
    assert (second.read, second.prediction, second.set) == (0, None, None)


def test_neither_none_nor_all_of_several_cases_are_lost_if_one_has_no_image():
    model, rows = model_of(CLASSES), rows_of(2)
    cases = [Case("first", (ImageRef.of("0.png"),)), Case("empty", ()),
             Case("last", (ImageRef.of("1.png"),)), Case("end", ())]  # fmt: skip
    decisions = list(Decider(model).decide(cases, lambda images: given_batches(rows, images)))
    assert [decision.case.name for decision in decisions] == ["first", "empty", "last", "end"]
    assert [decision.answer is None for decision in decisions] == [False, True, False, True]
    assert decisions[1].error


def test_a_prior_is_bayes_rule_and_takes_the_sets_of_a_calibration_away():
    model, rows = model_of(CLASSES, calibration=calibration_of(CLASSES)), rows_of(9)
    prior = dict(zip(CLASSES.names, (0.6, 0.3, 0.1), strict=True))
    decisions = decide(model, [1] * 9, rows, Policy(prior=prior))
    p = model.probabilities(rows).astype(np.float64) * (0.6, 0.3, 0.1)
    expected = p / p.sum(axis=1, keepdims=True)
    np.testing.assert_allclose([d.probabilities for d in decisions], expected, rtol=1e-5)
    thirds = class_shares({"Normal": 0.33, "cyst": 0.33, "stone": 0.33}, CLASSES.names)
    np.testing.assert_allclose(thirds, [1 / 3] * 3)  # by name, and scaled
    assert {decision.set for decision in decisions} == {None}
    assert None not in {decision.set for decision in decide(model, [1] * 9, rows)}
    with pytest.raises(ConfigError) as error:
        Decider(model, Policy(prior=prior, coverage=0.9))
    assert error.value.argument == "coverage"


@pytest.mark.parametrize(
    "prior",
    [
        {"normal": 0.5, "cyst": 0.2, "stone": 0.1},
        {"normal": 0.5, "cysts": 0.5},
        {"normal": 1.1, "cyst": -0.2, "stone": 0.1},
        {"normal": 0.5, "cyst": 0.5},
        {"normal": float("nan"), "cyst": 0.5, "stone": 0.5},
        {"normal": 0.5, "NORMAL": 0.2, "cyst": 0.3},
    ],
)
def test_an_invalid_prior_is_refused(prior):
    with pytest.raises(ConfigError) as error:
        Decider(model_of(CLASSES), Policy(prior=prior))
    assert error.value.argument == "prior"


@pytest.mark.parametrize(
    ("task", "policy", "argument"),
    [
        (CLASSES, {"max_risk": 0.1, "prior": {"normal": 1.0}}, "max_risk"),
        (CLASSES, {"coverage": 1.5}, "coverage"),
        (CLASSES, {"coverage": 0.999}, "coverage"),
        (CLASSES, {"max_risk": 0.0001}, "max_risk"),
        (FINDINGS, {"max_risk": 0.1}, "max_risk"),
        (FINDINGS, {"prior": {"mass": 1.0}}, "prior"),
    ],
)
def test_guarantees_that_cannot_be_given_are_refused(task, policy, argument):
    model = model_of(task, calibration=calibration_of(task))
    with pytest.raises(ConfigError) as error:
        Decider(model, Policy(**policy))
    assert error.value.argument == argument


@pytest.mark.parametrize("task", [CLASSES, FINDINGS], ids=["classes", "findings"])
def test_guarantees_need_a_calibration(task):
    for argument in task.guarantees - {"prior", "sensitivity"}:
        with pytest.raises(ConfigError) as error:
            Decider(model_of(task), Policy(**{argument: 0.9}))
        assert error.value.argument == argument


def test_abstaining_is_below_the_threshold_of_the_calibration():
    calibration = calibration_of(CLASSES)
    model, rows = model_of(CLASSES, calibration=calibration), rows_of(50)
    threshold = calibration.questions[0].threshold(0.3)
    decisions = decide(model, [1] * 50, rows, Policy(max_risk=0.3))
    assert [d.abstain for d in decisions] == [d.probability < threshold for d in decisions]
    assert {d.abstain for d in decide(model, [1], rows)} == {None}
    [note, *_] = Decider(model, Policy(max_risk=0.999)).notes
    assert note.startswith("No answer needs to be withheld: with 90 % confidence")


def test_more_sensitivity_never_makes_an_unsure_answer_a_no():
    calibration, rows = calibration_of(FINDINGS, 400), rows_of(60)
    words = []
    for wanted in (0.6, 0.9):
        promised = calibration.model_copy(update={"sensitivity": wanted})
        decisions = decide(model_of(FINDINGS, calibration=promised), [1] * 60, rows)
        words.append([decision.answer.verdicts for decision in decisions])
    for less, more in zip(np.array(words[0]).flat, np.array(words[1]).flat, strict=True):
        assert more != "no" or less == "no"
    assert words[0] != words[1]
