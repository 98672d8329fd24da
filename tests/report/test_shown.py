"""What a terminal and a notebook show of models, data and results; `ogkd.report`."""

from __future__ import annotations

import copy
import inspect
import json

import numpy as np
import pytest
from report_world import HOSTILE, read_page

import ogkd
from ogkd.errors import ConfigError
from ogkd.evaluation import Evaluation
from ogkd.report.gallery import _choose


@pytest.fixture(scope="module")
def result(world):
    return ogkd.evaluate(world.classifier, world.dataset, resamples=50)


def test_a_model_says_what_it_is(world):
    model = world.classifier
    text = repr(model)
    assert "zero-shot on clip, calibrated on 18 images" in text
    assert f"3 classes (images learned from): benign tumor (0), {HOSTILE} (0)" in text
    model = replace_calibration(model, None)
    assert "not calibrated" in repr(model)


def replace_calibration(model, calibration):
    other = copy.copy(model)
    other.calibration = calibration
    return other


def test_a_calibration_is_one_line(world):
    text = repr(world.classifier.calibration)
    assert text == str(world.classifier.calibration)
    assert text.startswith("<Calibration on 18 cases: ")
    assert len(text) < 120


def test_a_decision_shows_what_is_known(world):
    image = world.predictions.images[0]
    (decision, lost) = world.classifier.decide([image, "gone.png"])
    shown = f"Decision(case={str(image)!r}, answer={decision.prediction!r}"
    assert repr(decision).startswith(shown)
    assert "None" not in repr(decision)
    assert "error='" in repr(lost)


def test_a_dataset_says_what_it_has(world):
    text = repr(world.dataset)
    assert text.startswith(
        "<Dataset: 51 images (train 9, val 18, test 24), 3 classes: benign tumor"
    )
    some = world.dataset.with_cases(world.dataset.cases[:2])
    assert repr(some).startswith("<Dataset: 2 images")


def test_a_result_is_a_plain_dictionary_to_others(result):
    plain = json.loads(json.dumps(result))
    assert isinstance(result, Evaluation)
    assert result == dict(result)
    assert plain["accuracy"] == result["accuracy"]
    assert copy.deepcopy(result) == result


def test_a_result_shows_its_numbers_and_its_verdict(result):
    text = repr(result)
    assert text.startswith("Evaluation on 24 images\n")
    accuracy = 100 * result["accuracy"]
    assert "Accuracy (%)" in text
    assert f"{accuracy:.1f}" in text
    assert "look better" not in text
    judged = Evaluation(result | {"verdict": {"text": "No better than <b>guessing</b>."}})
    assert repr(judged).endswith("No better than <b>guessing</b>.")
    used = Evaluation(result | {"learned_from": 3})
    assert "learned from 3 of these images" in repr(used)


def test_a_result_without_intervals_is_shown_too(world):
    result = ogkd.evaluate(world.classifier, world.dataset, resamples=0)
    text = repr(result).replace(result["verdict"]["text"], "")
    assert " to " not in text


def test_images_with_answers_are_drawn_and_the_wrong_ones_marked(world):
    figure = ogkd.show_results(world.classifier, world.dataset, n=24)
    assert len(figure.axes) == 24
    p = world.predictions.probabilities(world.classifier.calibration)
    wrong = p.argmax(axis=1) != world.predictions.labels
    titles = [axes.get_title() for axes in figure.axes]
    assert [title.startswith("WRONG") for title in titles] == wrong.tolist()
    assert all(f"{100 * row.max():.0f} %" in title for row, title in zip(p, titles, strict=True))
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert len(ogkd.show_results(world.classifier, world.dataset, split="val", n=5).axes) == 5


def test_the_worst_come_first_and_the_others_are_spread_evenly():
    labels = np.array([0, 1, 0, 1])
    p = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.1, 0.9]], np.float32)
    assert _choose(labels, p, 3, worst=True).tolist() == [1, 2, 0]
    assert _choose(labels, p, 2, worst=False).tolist() == [0, 3]
    assert _choose(labels, p, 9, worst=False).tolist() == [0, 1, 2, 3]


def test_no_images_to_show_are_refused(world):
    with pytest.raises(ConfigError, match="at least 1"):
        ogkd.show_results(world.classifier, world.dataset, n=0)


def test_an_evidence_map_is_shown_in_a_notebook(world):
    (evidence,) = ogkd.explain(world.classifier, world.predictions.images[0])
    assert evidence._repr_png_().startswith(b"\x89PNG")
    assert "array" not in repr(evidence)


def test_a_report_is_one_call(world, tmp_path):
    path = ogkd.report(world.classifier, world.dataset, tmp_path / "page.html")
    page = path.read_text(encoding="utf-8")
    assert "Jane" not in page
    assert HOSTILE in read_page(page).text
    bare = ogkd.report(world.classifier, world.dataset, tmp_path / "b.html", images=False)
    assert "data:image" not in bare.read_text(encoding="utf-8")


def test_report_is_a_function_and_a_package():
    import ogkd.report

    assert list(inspect.signature(ogkd.report).parameters)[:3] == ["classifier", "data", "out"]
    assert callable(ogkd.report.write_report)
