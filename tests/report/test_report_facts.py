from __future__ import annotations

import copy

import numpy as np

from ogkd.data.case import Dataset
from ogkd.data.tasks import OneOf
from ogkd.model.classifier import Classifier
from ogkd.report.model_page import _data, _making, confident_errors, correct_examples
from tiny_data import case_of


def test_the_backbone_is_named_without_its_folder_and_with_the_engine_that_was_used(world, clip):
    fast = copy.copy(world.classifier.backbone)
    fast.engine = "bf16"
    other = Classifier(fast, world.classifier.head, world.classifier.card)
    for show_names in (False, True):
        made = _making(other, world.predictions, show_names=show_names)
        rows = dict(made.table.rows)
        assert rows["backbone.name"] == "clip"
        assert (rows["backbone.engine"], rows["evaluated with.engine"]) == ("torch", "bf16")
        assert "support_images" not in rows


def test_splits_are_counted_by_class_name_whatever_the_order(world):
    card = world.classifier.card
    names = (*reversed(card.class_names), "unknown_thing")
    cases = (case_of("a", 0, "test"), case_of("b", 0, "test"), case_of("c", 3, "train"))
    made = _data(Dataset(cases, OneOf(names)), card, world.predictions)
    assert made.table.head == ("class", "test", "train", "learned from")
    rows = {name: counts for name, *counts in made.table.rows}
    assert rows[card.class_names[-1]][:2] == ["2", "0"]
    assert rows["unknown_thing"] == ["0", "1", "0"]
    assert rows[card.class_names[0]][2] == str(card.support_counts[0])


def test_the_surest_mistakes_come_first_and_are_limited():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200)
    labels = rng.integers(0, 3, 200)
    chosen = [number for number, _ in confident_errors(labels, p)]
    wrong = p.argmax(axis=1) != labels
    assert len(chosen) == 12
    assert wrong[chosen].all()
    assert correct_examples(
        np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]])
    ) == [(0, 0)]
    assert sorted(p[wrong].max(axis=1), reverse=True)[:12] == list(p[chosen].max(axis=1))
