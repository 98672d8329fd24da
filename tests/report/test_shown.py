"""What a terminal and a notebook show of models, data and results; `ogkd.report`."""

from __future__ import annotations

import copy
import inspect

from report_world import HOSTILE, read_page

import ogkd


def test_a_model_says_what_it_is(world):
    model = world.classifier
    text = repr(model)
    assert "zero-shot on clip, calibrated on 18 images" in text
    assert f"3 classes (images learned from): benign tumor (0), {HOSTILE} (0)" in text
    other = copy.copy(model)
    other.calibration = None
    assert "not calibrated" in repr(other)


def test_a_calibration_is_one_line(world):
    text = repr(world.classifier.calibration)
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
    assert callable(ogkd.report.data_check_page)
