from __future__ import annotations

import copy

import numpy as np
import pytest
from report_world import make_world

from ogkd.data.case import Dataset
from ogkd.data.tasks import OneOf
from ogkd.model.classifier import Classifier
from ogkd.report import facts
from ogkd.report.model_page import confident_errors, correct_examples
from tiny_data import case_of


def test_the_graph_of_a_text_head_is_that_of_its_texts(world):
    W, alpha, learned = facts.class_graph_of(world.classifier)
    T = world.classifier.head.T.double().numpy()
    T /= np.linalg.norm(T, axis=1, keepdims=True)
    odds = np.exp(alpha * T @ T.T)
    np.testing.assert_allclose(W, odds / odds.sum(axis=1, keepdims=True), rtol=1e-5)
    assert learned


def test_a_head_without_texts_has_the_graph_of_its_class_names(clip, images_of):
    other = make_world(clip, images_of, "linear-probe", calibrated=False)
    W, _, learned = facts.class_graph_of(other.classifier)
    assert not learned
    np.testing.assert_allclose(W.sum(axis=1), 1, rtol=1e-5)
    assert (W.argmax(axis=1) == range(3)).all()


def test_the_backbone_is_named_without_its_folder_and_with_the_engine_that_was_used(world, clip):
    fast = copy.copy(world.classifier.backbone)
    fast.engine = "bf16"
    other = Classifier(fast, world.classifier.head, world.classifier.card)
    for show_names in (False, True):
        made = facts.making_section(other, world.predictions, "", show_names=show_names)
        rows = dict(made.table.rows)
        assert rows["backbone.name"] == "clip"
        assert (rows["backbone.engine"], rows["evaluated with.engine"]) == ("torch", "bf16")
        assert "support_images" not in rows


def test_splits_are_counted_by_class_name_whatever_the_order(world):
    card = world.classifier.card
    names = (*reversed(card.class_names), "unknown_thing")
    cases = (case_of("a", 0, "test"), case_of("b", 0, "test"), case_of("c", 3, "train"))
    made = facts.data_section(Dataset(cases, OneOf(names)), card, world.predictions, None)
    assert made.table.head == ("class", "test", "train", "learned from")
    rows = {name: counts for name, *counts in made.table.rows}
    assert rows[card.class_names[-1]][:2] == ["2", "0"]
    assert rows["unknown_thing"] == ["0", "1", "0"]
    assert rows[card.class_names[0]][2] == str(card.support_counts[0])


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("ogkd report /home/jane/model data --split test", "ogkd report model data --split test"),
        ("ogkd report m d --out=/secret/r.html", "ogkd report m d r.html"),
        ("ogkd report '/a b/the model/' d", "ogkd report 'the model' d"),
    ],
)
def test_the_command_line_is_shown_without_folders_above(given, shown):
    assert facts.plain_command(given) == shown


def test_the_surest_mistakes_come_first_and_are_limited():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(3), 200)
    labels = rng.integers(0, 3, 200)
    chosen = confident_errors(labels, p)
    wrong = p.argmax(axis=1) != labels
    assert len(chosen) == 12
    assert wrong[chosen].all()
    assert sorted(p[wrong].max(axis=1), reverse=True)[:12] == list(p[chosen].max(axis=1))


def test_a_class_without_a_right_answer_has_no_example():
    p = np.array([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3]])
    assert correct_examples(np.array([0, 0, 1]), p).tolist() == [0]
