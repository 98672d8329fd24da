from __future__ import annotations

import json

import ogkd as library
from tiny_data import CLASSES, write_dataset, write_image


def test_json_is_what_the_library_says(ogkd, fitted, data, tmp_path):
    out = tmp_path / "new" / "r.json"
    outcome = ogkd("evaluate", fitted, data, "--json", "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    expected = library.evaluate(library.load(fitted), data)
    assert json.loads(outcome.out) == json.loads(out.read_text()) == expected
    assert set(expected) == {"images", "accuracy", "macro_f1", "per_class"}


def test_the_table_has_a_line_for_each_class(ogkd, fitted, data):
    outcome = ogkd("evaluate", fitted, data, "--split", "train")
    assert outcome.code == 0
    assert "9 images" in outcome.out
    expected = library.evaluate(library.load(fitted), data, split="train")
    assert f"accuracy {100 * expected['accuracy']:6.2f} %" in outcome.out
    for name in CLASSES:
        line = next(line for line in outcome.out.splitlines() if line.startswith(name))
        row = expected["per_class"][name]
        shown = [f"{100 * row[key]:.1f}" for key in ("precision", "recall", "f1")]
        assert line[len(name) :].split() == [*shown, "3"]


def test_data_without_splits_is_judged_with_a_warning(ogkd, fitted, tmp_path):
    write_dataset(tmp_path / "d", splits={"": 2})
    outcome = ogkd("evaluate", fitted, tmp_path / "d", "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["images"] == 6
    assert "has no splits" in outcome.err


def test_data_that_does_not_fit_is_refused(refused, fitted, data, tmp_path):
    write_dataset(tmp_path / "d", ["benign tumor", "stone"], {"test": 1})
    assert "does not know: stone" in refused("evaluate", fitted, tmp_path / "d")
    assert "no split 'val'" in refused("evaluate", fitted, data, "--split", "val")
    assert "no folder or table" in refused("evaluate", fitted, tmp_path / "gone")
    assert "not a model folder" in refused("evaluate", data, data)
    assert "is a folder" in refused("evaluate", fitted, data, "--out", tmp_path)


def test_unreadable_images_are_listed_all_at_once(refused, fitted, tmp_path):
    for name in CLASSES:
        write_image(tmp_path / "d" / name / "0.png")
        (tmp_path / "d" / name / "bad.png").write_bytes(b"")
    path = tmp_path / "t.csv"
    path.write_text("path,label,split\ngone1.png,normal lung,test\ngone2.png,benign tumor,test\n")
    message = refused("evaluate", fitted, path)
    assert "gone1.png" in message
    assert "gone2.png" in message


def test_broken_images_are_listed_all_at_once(ogkd, fitted, tmp_path):
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        (tmp_path / "test" / name / "bad.png").write_bytes(b"")
    outcome = ogkd("evaluate", fitted, tmp_path)
    assert outcome.code == 2
    assert "3 file(s) could not be read" in outcome.err
    assert "Traceback" not in outcome.err
