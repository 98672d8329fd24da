"""The report of either task, of single images and of cases of several."""

from __future__ import annotations

import pytest
from report_world import read_page

import ogkd
from ogkd.data.read import read_dataset
from ogkd.evaluation import evaluate_predictions, predict_labelled
from ogkd.evaluation.calibrate import calibrate
from ogkd.report import report
from tiny_data import write_exams

SECTIONS = {
    False: {"summary", "metrics", "confusion", "data", "making"},
    True: {"findings", "answers", "data", "making"},
}


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("findings", [False, True])
def test_the_report_is_about_cases_of_either_task(bert_backbone, tmp_path, findings, images):
    table = write_exams(tmp_path, images=images, splits="train,val,test", findings=findings)
    options = {"cases": "exam"} if images > 1 else {}
    options |= {"findings": ["spot", "streak"]} if findings else {"normal": ["normal"]}
    model = ogkd.fit(table, backbone=bert_backbone, **options)
    dataset = read_dataset(table, **({"findings": ["spot", "streak"]} if findings else {}))
    for calibrated in (False, True):
        if calibrated:
            model.calibration = calibrate(model, dataset)
        predictions = predict_labelled(model, dataset)
        path = report(
            model, dataset, tmp_path / "report.html", predictions=predictions, audit=False
        )
        page = read_page(path.read_text(encoding="utf-8"))
        ids = {attrs["id"] for _, attrs in page.all("section") if "id" in attrs}
        assert ids >= SECTIONS[findings]
        assert ids == {attrs["href"].removeprefix("#") for _, attrs in page.all("a")}
        result = evaluate_predictions(predictions, model)
        assert result["images"] == 16
        assert result["verdict"]["headline"] in page.text
        assert ("not calibrated" in page.text) is not calibrated
        assert f"images {16 * images} learned_cases 16" in page.text
        if images > 1 and page.all("img"):
            assert "the image that decided" in page.text
