"""A classifier from class names alone."""

from __future__ import annotations

import json

import numpy as np
import pytest

import ogkd
from ogkd.errors import BackboneError, ConfigError
from ogkd.images import find_images


def test_it_is_the_zero_shot_method_and_can_be_saved(bert_backbone, pictures, tmp_path):
    fitted = ogkd.fit(pictures, backbone=bert_backbone, method="zero-shot-ensemble")
    model = ogkd.zero_shot(fitted.class_names, backbone=bert_backbone)
    images = find_images([pictures / "test"])
    np.testing.assert_allclose(model.predict_proba(images), fitted.predict_proba(images))
    assert model.card.support_counts == (0, 0, 0)
    assert model.calibration is model.support is None
    model.save(tmp_path / "m")
    again = ogkd.load(tmp_path / "m", backbone=bert_backbone)
    np.testing.assert_array_equal(again.predict_proba(images), model.predict_proba(images))


def test_texts_change_the_answer(bert_backbone, pictures, tmp_path):
    names = ["bright spot", "dark field"]
    bank = {"bright spot": ["a normal lung"], "dark field": ["a benign tumor"]}
    (tmp_path / "bank.json").write_text(json.dumps(bank))
    images = find_images([pictures / "test"])
    plain, given, read = (
        ogkd.zero_shot(names, backbone=bert_backbone, prompts=texts).predict_proba(images)
        for texts in (None, bank, tmp_path / "bank.json")
    )
    np.testing.assert_array_equal(given, read)
    assert np.abs(given - plain).max() > 0


@pytest.mark.parametrize(
    "classes",
    [["normal"], [], ["normal", " "], ["normal", "Normal"], "normal, cataract"],
)
def test_bad_classes_are_refused(bert_backbone, classes):
    with pytest.raises(ConfigError) as stop:
        ogkd.zero_shot(classes, backbone=bert_backbone)
    assert stop.value.argument == "classes"


def test_without_images_and_without_a_real_backbone_it_is_refused():
    with pytest.raises(BackboneError) as stop:
        ogkd.zero_shot(["normal", "cataract"])
    assert stop.value.argument == "backbone"
