from __future__ import annotations

import pytest

import ogkd.serve.models as asking
from ogkd.errors import BackboneError, ConfigError
from ogkd.images import ImageRef, read_image
from ogkd.model import decide, explain
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.explain import EvidenceCheck
from ogkd.model.policy import Policy
from ogkd.serve.models import Model, answers, describe, load_model
from ogkd.serve.uploads import Upload
from tiny_data import write_image


def uploaded(path):
    return Upload({path: path.name}, [ImageRef(path)], read_image(path))


@pytest.fixture(scope="session")
def image(cyst):
    return uploaded(cyst)


def changed(gda, **changes):
    kept = {"calibration": gda.calibration, "support": gda.support}
    return Classifier(gda.backbone, gda.head, gda.card, **{**kept, **changes})


def model_of(classifier, name="m", *, threshold=None, policy=None):
    decider = Decider(classifier)
    if policy is not None:  # without the calibration that would promise it
        decider.policy, decider.coverage = policy, policy.coverage or decider.coverage
        decider.threshold = threshold
    return Model(name, decider)


def ask(gda, image, *, images=False, model=None, **changes):
    asked = model or model_of(changed(gda, **changes))
    return next(answers(asked, image, images=images))


def reasons(answer):
    return " ".join(answer["reasons"])


def test_a_familiar_image_is_answered_as_the_classifier_does_and_certain(gda, image):
    answer = ask(gda, image)
    expected = gda.predict_proba(image.images)[0].tolist()
    shares = dict(zip(gda.class_names, expected, strict=True))
    assert answer["probabilities"] == pytest.approx(shares, abs=1e-6)
    assert answer["prediction"] == max(shares, key=shares.get) == gda.predict(image.images)[0]
    assert answer["calibrated"]
    first, second, *_ = sorted(answer["probabilities"].values(), reverse=True)
    assert first > 0.45 > second
    assert answer["set"] == [answer["prediction"]]
    assert (answer["reasons"], answer["unfamiliar"], answer["abstain"]) == ([], False, None)


@pytest.mark.parametrize(("engine", "noted"), [(None, False), ("torch", False), ("bf16", True)])
def test_a_calibration_of_another_engine_is_noted(gda, image, by_hand, engine, noted):
    calibration = by_hand().model_copy(update={"engine": engine})
    model = model_of(changed(gda, calibration=calibration))
    answer = ask(gda, image, model=model)
    assert (bool(describe(model)["note"]), bool(answer["note"])) == (noted, noted)


@pytest.mark.parametrize("calibrated", [True, False])
def test_an_unfamiliar_image_is_uncertain_and_its_probabilities_withheld(
    gda, stranger, tmp_path, calibrated
):
    calibration = gda.calibration if calibrated else None
    answer = ask(gda, uploaded(stranger), calibration=calibration)
    assert answer["unfamiliar"]
    assert "unlike" in reasons(answer)
    # The built-in backbone also says itself that it cannot know such an image.
    noise = ask(gda, uploaded(write_image(tmp_path / "noise.png")), calibration=calibration)
    assert "knows only computer-drawn phantoms" in reasons(noise)


def test_an_answer_below_the_threshold_of_the_risk_is_withheld(gda, image):
    top = float(gda.predict_proba(image.images)[0].max())
    for threshold, uncertain in ((top + 1e-4, True), (top, False), (0.0, False)):
        model = model_of(gda, policy=Policy(max_risk=0.1), threshold=threshold)
        answer = ask(gda, image, model=model)
        assert (bool(answer["reasons"]), answer["abstain"]) == (uncertain, uncertain)


@pytest.mark.parametrize(("marked", "random", "shown"), [(0.1, 0.3, False), (0.3, 0.1, True)])
def test_a_map_that_fails_its_check_is_not_shown(gda, image, monkeypatch, marked, random, shown):
    monkeypatch.setattr(explain, "check_evidence", lambda *_: EvidenceCheck(marked, random))
    assert bool(ask(gda, image, images=True)["evidence"]["image"]) is shown
    monkeypatch.setattr(asking, "evidence_of", lambda *_: None)  # a tower that cannot be split
    assert "evidence" not in ask(gda, image, images=True)


def test_an_image_is_encoded_once_for_its_answer_and_its_map(gda, image, monkeypatch):
    calls = []
    encode = decide.encode_files
    monkeypatch.setattr(decide, "encode_files", lambda *a, **o: calls.append(1) or encode(*a, **o))
    assert "evidence" in ask(gda, image, images=True)
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("name", "options", "kind", "argument"),
    [
        ("zero", {"policy": Policy(max_risk=0.1)}, ConfigError, "max_risk"),
        ("gda", {"policy": Policy(coverage=0.999)}, ConfigError, "coverage"),
        ("gda", {"backbone": "no/such/backbone/folder"}, BackboneError, "backbone"),
    ],
)
def test_options_that_a_model_cannot_meet_are_refused(folders, name, options, kind, argument):
    with pytest.raises(kind) as raised:
        load_model(folders / name, **options)
    assert raised.value.argument == argument
