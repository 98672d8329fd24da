"""`ogkd predict --zero-shot`: rows without a model, and what it refuses."""

from __future__ import annotations

import csv
import io

import pytest

from ogkd.data.phantoms import write_folder
from tiny_data import write_dataset

CLASSES = "normal lung, benign tumor"


def test_every_argument_is_an_image_and_the_columns_are_as_always(ogkd, fitted, clip, data):
    files = sorted((data / "test").rglob("*.png"))[:3]
    outcome = ogkd("predict", "--zero-shot", CLASSES, "-b", clip, *files)
    assert outcome.code == 0, outcome.err
    rows = list(csv.reader(io.StringIO(outcome.out)))
    with_model = next(csv.reader(io.StringIO(ogkd("predict", fitted, files[0]).out)))
    assert rows[0] == [*with_model[:7], "normal lung", "benign tumor"]
    assert [row[0] for row in rows[1:]] == [str(file) for file in files]
    assert outcome.err.count("nothing was learned from images") == 1


def test_phantoms_need_no_backbone_and_shipped_texts_are_known(ogkd, tmp_path):
    folder = write_folder("us-breast", tmp_path / "b", splits={"test": 2})
    words = ["--zero-shot", "benign tumors,malignant tumors,normal scan", "--prompts", "busi"]
    outcome = ogkd("predict", *words, "--format", "jsonl", folder)
    assert outcome.code == 0, outcome.err
    assert len(outcome.out.splitlines()) == len(list(folder.rglob("*.png")))
    assert "WARNING" not in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--zero-shot", "normal"], "at least two classes"),
        (["--zero-shot", "normal,,cataract"], "not blank"),
        (["--zero-shot", "normal,normal"], "twice"),
        (["--zero-shot", CLASSES, "-b", "builtin", "--max-risk", 0.1], "--max-risk"),
        (["--zero-shot", CLASSES, "-b", "builtin", "--coverage", 0.9], "--coverage"),
        (["--zero-shot", CLASSES, "--prompts", "nope"], "shipped bank"),
        (["--zero-shot", CLASSES], "knows only phantoms"),
    ],
)
def test_what_cannot_work_is_one_message(refused, data, words, message):
    assert message in refused("predict", *words, data / "test")


def test_the_builtin_model_warns_on_every_output(ogkd, tmp_path):
    data = write_dataset(tmp_path / "data", splits={"train": 3, "val": 6, "test": 2})
    model, loud = tmp_path / "m", "WARNING: The built-in model"
    outcome = ogkd("fit", data, "-b", "builtin", "-m", "ss-text+", "-o", model)
    assert loud in outcome.err
    outcome = ogkd("predict", model, data / "test")
    assert loud in outcome.err
    rows = list(csv.DictReader(io.StringIO(outcome.out)))
    assert {row["unfamiliar"] for row in rows} == {"yes"}
    page = tmp_path / "r.html"
    outcome = ogkd("evaluate", model, data, "--report", page)
    assert loud in outcome.err
    assert "The built-in model knows only" in page.read_text()
    assert loud in ogkd("calibrate", model, data).err
    outcome = ogkd("predict", "--zero-shot", CLASSES, "-b", "builtin", data / "test")
    assert outcome.err.count(loud) == 1
