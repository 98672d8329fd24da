from __future__ import annotations

from dataclasses import replace

import pytest
from app_models import by_hand

import ogkd.serve.models as asking
from ogkd.errors import BackboneError, ConfigError
from ogkd.images import ImageRef, read_image
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.evidence_check import EvidenceCheck
from ogkd.model.policy import Policy
from ogkd.serve.models import Model, answers, as_json, load_models, with_support_images
from ogkd.serve.uploads import Upload
from ogkd.serve.web import describe
from tiny_data import write_image


def picture(path):
    return Upload(path.name, ImageRef(path), read_image(path))


@pytest.fixture(scope="session")
def image(phantoms):
    return picture(phantoms / "test" / "simple_cyst" / "0000.png")


def changed(gda, **changes):
    kept = {"calibration": gda.calibration, "support": gda.support}
    return Classifier(gda.backbone, gda.head, gda.card, **{**kept, **changes})


def model_of(classifier, name="m", *, threshold=None, policy=None):
    decider = Decider(classifier)
    if policy is not None:  # without the calibration that would promise it
        decider.policy, decider.coverage = policy, policy.coverage or decider.coverage
        decider.threshold = threshold
    return Model(name, decider)


def ask(gda, image, *, pictures=False, model=None, **changes):
    asked = model or model_of(changed(gda, **changes))
    return answers([asked], image, pictures=pictures)[0]


def test_the_answer_ranks_what_the_classifier_says(gda, image):
    answer = ask(gda, image)
    expected = gda.predict_proba([image.image])[0]
    assert [value for _, value in answer.ranked] == sorted(expected.tolist(), reverse=True)
    assert dict(answer.ranked) == dict(zip(gda.class_names, expected.tolist(), strict=True))
    assert answer.ranked[0][0] == gda.predict([image.image])[0]
    assert answer.calibrated


def test_an_image_that_the_builtin_model_cannot_know_is_referred(gda, tmp_path):
    answer = ask(gda, picture(write_image(tmp_path / "noise.png")))
    assert answer.uncertain
    assert "knows only computer-drawn phantoms" in answer.reasons[0]


def test_one_plausible_class_of_a_familiar_image_is_no_reason_to_abstain(gda, image):
    answer = ask(gda, image)
    assert answer.ranked[0][1] > 0.45 > answer.ranked[1][1]
    assert answer.plausible == (answer.ranked[0][0],)
    assert not answer.uncertain


@pytest.mark.parametrize(("limit", "plausible"), [(1.0, 4), (0.0, 0)])
def test_no_or_several_plausible_classes_are_uncertain(gda, image, limit, plausible):
    answer = ask(gda, image, calibration=by_hand(limit))
    assert len(answer.plausible) == plausible
    assert answer.uncertain
    assert "90%" in answer.reasons[0]


def test_shares_are_shown_as_they_were_asked_for(gda, image):
    policy = Policy(max_risk=0.005, coverage=0.975)
    asked = model_of(changed(gda, calibration=by_hand(1.0)), policy=policy, threshold=1.1)
    answer = ask(gda, image, model=asked)
    assert "at most 0.5%." in answer.reasons[0]
    assert "At 97.5% coverage" in answer.reasons[1]
    assert as_json(image, [answer], pictures=False)["models"][0]["coverage"] == 0.975


@pytest.mark.parametrize(("engine", "noted"), [(None, False), ("torch", False), ("bf16", True)])
def test_a_calibration_of_another_engine_is_noted(gda, image, engine, noted):
    calibration = by_hand().model_copy(update={"engine": engine})
    model = model_of(changed(gda, calibration=calibration))
    answer = as_json(image, [ask(gda, image, model=model)], pictures=False)["models"][0]
    assert (bool(describe(model)["note"]), bool(answer["note"])) == (noted, noted)


def test_an_unfamiliar_image_is_uncertain(gda, image, stranger):
    for calibration in (gda.calibration, None):
        answer = ask(gda, picture(stranger), calibration=calibration)
        assert any("unlike" in reason for reason in answer.reasons)
    assert not any("unlike" in reason for reason in ask(gda, image).reasons)


def test_the_probabilities_of_an_unfamiliar_image_or_an_abstention_are_withheld(
    gda, image, stranger
):
    abstaining = model_of(gda, policy=Policy(max_risk=0.1), threshold=1.1)
    for shown, model in ((picture(stranger), model_of(gda)), (image, abstaining)):
        answer = ask(gda, shown, model=model)
        assert answer.withheld
        assert as_json(shown, [answer], pictures=False)["models"][0]["withheld"]
    familiar = ask(gda, image)
    assert not familiar.withheld


def test_below_the_threshold_of_the_risk_it_is_uncertain(gda, image):
    top = ask(gda, image).ranked[0][1]
    for threshold, uncertain in ((top + 1e-4, True), (top, False), (0.0, False)):
        model = model_of(gda, policy=Policy(max_risk=0.1), threshold=threshold)
        assert ask(gda, image, model=model).uncertain is uncertain


def test_without_a_calibration_nothing_is_claimed(gda, image):
    answer = ask(gda, image, calibration=None)
    assert (answer.calibrated, answer.plausible, answer.reasons) == (False, None, ())


def test_the_nearest_support_images_are_named_and_shown_where_they_are_known(gda, phantoms):
    learned = picture(phantoms / "train" / "simple_cyst" / "0003.png")
    near = ask(gda, learned).similar
    assert near[0][0] == "simple cyst"
    assert near[0][1] == pytest.approx(1, abs=1e-3)
    assert [one[1] for one in near] == sorted([one[1] for one in near])[::-1]
    assert not any(picture for _, _, picture in near)
    (model,) = with_support_images([model_of(gda)], phantoms)
    assert sorted(model.thumbnails) == list(range(24))
    shown = ask(gda, learned, model=model).similar
    assert all(picture.startswith("data:image/jpeg;base64,") for _, _, picture in shown)
    assert len({picture for _, _, picture in shown}) == len(shown)


def test_support_images_that_are_not_the_model_s_are_refused(gda, stranger):
    with pytest.raises(ConfigError, match="learned from"):
        with_support_images([model_of(gda)], stranger.parents[2])


def test_a_model_without_support_features_is_answered_without_neighbours(gda, image):
    assert ask(gda, image, support=None).similar == ()


def test_evidence_is_drawn_for_the_answer_only_where_asked(gda, image):
    assert ask(gda, image).evidence is None
    found = ask(gda, image, pictures=True).evidence
    assert found["kind"] == "parts"
    shown = found["check"]["marked"] > found["check"]["random"]
    assert found["picture"].startswith("data:image/jpeg;base64,") == shown


def test_a_map_that_marks_nothing_of_weight_is_not_shown(gda, image, monkeypatch):
    monkeypatch.setattr(asking, "check_evidence", lambda *_: EvidenceCheck(0.1, 0.3))
    assert ask(gda, image, pictures=True).evidence["picture"] == ""
    monkeypatch.setattr(asking, "check_evidence", lambda *_: EvidenceCheck(0.3, 0.1))
    assert ask(gda, image, pictures=True).evidence["picture"].startswith("data:image/jpeg;base64,")


def test_a_tower_that_cannot_be_split_has_the_map_of_its_patches(gda, image, monkeypatch):
    monkeypatch.setattr(asking, "parts_of", lambda *_: None)
    assert ask(gda, image, pictures=True).evidence["kind"] == "patches"


def test_models_of_one_backbone_encode_an_image_once(gda, image, monkeypatch):
    seen = []
    inner = asking.encode_files
    monkeypatch.setattr(asking, "encode_files", lambda *a, **o: seen.append(1) or inner(*a, **o))
    first, second = answers([model_of(gda, "a"), model_of(gda, "b")], image)
    assert len(seen) == 1
    assert replace(second, model="a") == first


def test_the_api_s_answer_holds_no_picture_unless_asked(gda, image):
    bare = as_json(image, [ask(gda, image)], pictures=False)
    assert "data:" not in str(bare)
    assert sum(bare["models"][0]["probabilities"].values()) == pytest.approx(1, abs=1e-4)
    full = as_json(image, [ask(gda, image, pictures=True)], pictures=True)
    assert full["models"][0]["evidence"]["class"] == full["models"][0]["prediction"]


def test_models_of_one_backbone_share_it_and_names_stay_apart(folders, tmp_path):
    (tmp_path / "gda").symlink_to(folders / "gda")
    models = load_models([folders / "gda", folders / "zero", folders / "gda"])
    assert len({id(model.classifier.backbone) for model in models}) == 1
    assert len({model.name for model in models}) == 3
    assert [model.name for model in load_models([folders / "zero"])] == ["zero"]


def test_settings_that_a_model_cannot_keep_are_refused_at_the_start(folders):
    with pytest.raises(ConfigError, match="zero is not"):
        load_models([folders / "zero"], max_risk=0.1)
    with pytest.raises(ConfigError, match="more are needed"):
        load_models([folders / "gda"], coverage=0.999)
    with pytest.raises(ConfigError, match="coverage"):
        load_models([folders / "gda"], coverage=2)
    with pytest.raises(BackboneError, match="no backbone"):
        load_models([folders / "gda"], backbone="no/such/backbone/folder")


def test_the_threshold_of_a_risk_comes_from_the_calibration(folders):
    (model,) = load_models([folders / "gda"], max_risk=0.1)
    assert model.decider.threshold == model.classifier.calibration.threshold(0.1) > 0
