"""Several findings in one image, from a table to answers, on the command line."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ogkd as library
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError

NAMES = ("benign tumor", "kidney cyst")


def write_films(folder: Path, images: int = 90, *, patients: bool = False) -> Path:
    """Images that are red where the first finding is, and blue where the second is."""
    folder.mkdir()
    lines = [f"path,split,{','.join(NAMES)}{',patient' if patients else ''}"]
    for n in range(images):
        rng = np.random.default_rng(n)
        said = (n % 3 == 0, n % 4 < 2)
        wrong = n % 18 == 6  # so that there are mistakes to show
        pixels = rng.integers(0, 110, (32, 32, 3))
        pixels[..., 0] += 120 * (said[0] != wrong)
        pixels[..., 2] += 120 * said[1]
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{n}.png")
        known = ["" if (n + f) % 5 == 0 else str(int(yes)) for f, yes in enumerate(said)]
        split = ("train", "val", "test")[n % 9 // 3]
        lines.append(",".join([f"{n}.png", split, *known, *([f"p{n // 2}"] if patients else [])]))
    (folder / "table.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "table.csv"


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    return write_films(tmp_path_factory.mktemp("films") / "data", 180)


@pytest.fixture(scope="module")
def model(films, clip, tmp_path_factory):
    place = tmp_path_factory.mktemp("model") / "m"
    library.fit(films, backbone=str(clip), out=place)
    return place


@pytest.fixture
def calibrated(ogkd, model, films, tmp_path):
    place = shutil.copytree(model, tmp_path / "calibrated")
    outcome = ogkd("calibrate", place, films, "--sensitivity", 0.8)
    assert outcome.code == 0, outcome.err
    assert "at most 20 % of the images with a finding are answered no" in outcome.out
    return place


def test_fit_notices_the_findings_and_says_so_in_one_line(ogkd, films, clip, tmp_path):
    outcome = ogkd("fit", films, "--backbone", clip, "--out", tmp_path / "m", "--shots", 4)
    assert outcome.code == 0, outcome.err
    assert "2 findings in 60 images (present/absent/unknown): benign tumor 16/32/12" in outcome.err
    card = json.loads((tmp_path / "m" / "model.json").read_text(encoding="utf-8"))
    assert (card["asks"]["kind"], card["schema_version"]) == ("findings", 3)
    assert all(count >= 4 for count in card["support_counts"])
    again = ogkd("fit", films, "--backbone", clip, "--out", tmp_path / "m", "--shots", 4)
    assert "nothing to do" in again.err


def test_evaluate_takes_the_named_columns_where_a_table_also_has_classes(ogkd, model, films):
    head, *rows = films.read_text(encoding="utf-8").splitlines()
    both = films.with_name("both.csv")
    lines = [f"{head},label", *(f"{row},{'ab'[n % 2]}" for n, row in enumerate(rows))]
    both.write_text("\n".join(lines) + "\n", encoding="utf-8")
    refused = ogkd("evaluate", model, both)
    assert refused.code == 2
    assert "--findings" in refused.err
    found, expected = (
        ogkd("evaluate", model, *words, "--json", "--resamples", 0)
        for words in ((both, "--findings", ",".join(NAMES)), (films,))
    )
    assert found.code == 0, found.err
    assert json.loads(found.out)["per_finding"] == json.loads(expected.out)["per_finding"]


def test_predict_writes_an_answer_and_a_probability_for_each_finding(ogkd, model, films, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    outcome = ogkd("predict", model, films.parent / "0.png", bad)
    assert outcome.code == 1
    good, broken = csv.DictReader(io.StringIO(outcome.out))
    assert good["benign tumor"] in ("yes", "no")
    assert 0 <= float(good["kidney cyst probability"]) <= 1
    assert broken["error"]
    assert broken["benign tumor"] == ""
    assert "not calibrated: yes means 50 % or more" in outcome.err
    lines = ogkd("predict", model, films.parent / "0.png", "--format", "jsonl").out
    entry = json.loads(lines)
    assert entry["answers"]["benign tumor"] == good["benign tumor"]
    assert entry["prediction"] == good["prediction"]
    assert sum(entry["probabilities"].values()) > 1.1  # it shows both


def test_a_calibrated_model_may_be_unsure_and_keeps_its_promise(ogkd, calibrated, films):
    outcome = ogkd("evaluate", calibrated, films, "--all", "--resamples", 50)
    assert outcome.code == 0, outcome.err
    assert "mean of findings" in outcome.out
    assert "no below" in outcome.out
    result = json.loads(ogkd("evaluate", calibrated, films, "--json", "--resamples", 20).out)
    assert result["sensitivity"] == 0.8
    row = result["per_finding"]["kidney cyst"]
    assert row["auroc"] > 0.8
    assert row["present_wrong"]["share"] <= 0.3
    rows = ogkd("predict", calibrated, films.parent, "--sensitivity", 0.99, "--format", "jsonl")
    assert "cannot be guaranteed" in rows.err
    assert not any("no" in json.loads(line)["answers"].values() for line in rows.out.splitlines())


def test_a_row_per_image_and_a_report_can_be_written(ogkd, model, films, tmp_path):
    table, page = tmp_path / "rows.csv", tmp_path / "report.html"
    outcome = ogkd(*("evaluate", model, films, "--csv", table, "--report", page, "--resamples", 20))
    assert outcome.code == 0, outcome.err
    first = next(csv.DictReader(table.read_text(encoding="utf-8").splitlines()))
    assert set(first) == {"image", *NAMES, *(f"{name} probability" for name in NAMES)}
    text = page.read_text(encoding="utf-8")
    assert "Average precision" in text
    assert "evidence for" in text
    assert str(films.parent) not in text


def test_the_table_is_checked_divided_and_started_with(ogkd, films, clip, tmp_path):
    plain = tmp_path / "plain.csv"
    lines = films.read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines]
    for row in rows[1:]:
        row[0] = str(films.parent / row[0])
    plain.write_text("\n".join(",".join([r[0], *r[2:]]) for r in rows) + "\n", encoding="utf-8")
    checked = ogkd("data", "check", plain)
    assert "benign tumor" in checked.out, checked.err
    divided = ogkd("data", "split", plain, "--out", tmp_path / "split.csv")
    assert divided.code == 0, divided.err
    found = read_dataset(tmp_path / "split.csv")
    assert found.names == NAMES
    assert set(found.splits) == {"train", "val", "test"}
    started = ogkd("start", plain, "--yes", "--backbone", clip, "--out", tmp_path / "out")
    assert started.code == 0, started.err
    assert "180 images, 2 findings" in started.out
    assert (tmp_path / "out" / "report.html").is_file()


def test_a_finding_that_never_varies_is_left_out_with_a_warning(ogkd, films, clip, tmp_path):
    text = films.read_text(encoding="utf-8").splitlines()
    more = [f"{line},{'never' if n == 0 else 0},{'always' if n == 0 else 1}" for n, line in
            enumerate(text)]  # fmt: skip
    file = films.with_name("more.csv")
    file.write_text("\n".join(more) + "\n", encoding="utf-8")
    outcome = ogkd("fit", file, "--backbone", clip, "--out", tmp_path / "m")
    assert outcome.code == 0, outcome.err
    assert "'never' is left out: no image to learn from is known to be with it" in outcome.err
    assert "'always' is left out: no image to learn from is known to be without it" in outcome.err
    assert library.load(tmp_path / "m").class_names == NAMES
    checked = ogkd("data", "check", file)
    assert checked.code == 1
    assert "No images to learn from for: never" in checked.out
    assert "known to be without: always" in checked.out
    judged = ogkd("evaluate", tmp_path / "m", file, "--resamples", 0)
    assert judged.code == 0, judged.err


def test_what_cannot_work_is_one_message(refused, model, films, clip, data, tmp_path):
    out = ("--backbone", clip, "--out", tmp_path / "m")
    for option, value in (("--method", "zero-shot"), ("--findings", "oedema"),
                          ("--unlabelled", data), ("--normal", NAMES[0])):  # fmt: skip
        assert option in refused("fit", films, option, value, *out)
    for option in ("--max-risk", "--sensitivity"):
        assert option in refused("predict", model, data, option, 0.9)
    assert "--findings" in refused("evaluate", model, data)
    odd = films.with_name("odd.csv")
    odd.write_text("path,edema\n0.png,1\n1.png,0\n2.png,maybe\n", encoding="utf-8")
    assert "'edema' is 'maybe'" in refused("fit", odd, *out)


def test_a_model_of_classes_refuses_findings(refused, films, clip, data, tmp_path_factory):
    place = tmp_path_factory.mktemp("classes") / "m"
    library.fit(data, backbone=str(clip), out=place)
    assert "findings" in refused("evaluate", place, films)
    option = ("--sensitivity", 0.9)
    assert option[0] in refused("predict", place, films.parent / "0.png", *option)
    assert option[0] in refused("calibrate", place, data, "--split", "test", *option)


def test_the_model_in_python(model, films):
    found = library.load(model)
    images = [films.parent / "0.png", films.parent / "1.png"]
    p = found.predict_proba(images)
    assert p.shape == (2, 2)
    said = list(found.decide(images))
    expected = ["|".join(n for n, a in zip(NAMES, one.answer.verdicts, strict=True) if a == "yes")
                for one in said]  # fmt: skip
    assert found.predict(images) == [text or "none" for text in expected]
    assert said[0].answer.label is None
    assert said[0].probability is None
    shown = library.explain(found, images[:1])[0]
    assert shown.name in NAMES
    assert np.isfinite(shown.grid).all()
    found.calibration = library.calibrate(found, films)
    assert {a for one in found.decide(images) for a in one.answer.verdicts} <= {
        "yes",
        "no",
        "unsure",
    }
    assert library.evaluate(found, films, resamples=0)["calibrated"]
    with pytest.raises(ConfigError):
        library.evaluate(found, films, graded=True)
    with pytest.raises(DataError):
        library.show_results(found, films)


def test_scikit_learn_gives_a_list_of_two_columns(films, clip):
    table = read_dataset(films)
    train = table.part("train")
    y = np.array(table.targets(train), dtype=float)
    y[y < 0] = np.nan
    images = [str(case.image) for case in train]
    names = dict(enumerate(NAMES))
    estimator = library.OGKDClassifier(str(clip), class_names=names).fit(images, y)
    found = estimator.predict_proba(images)
    assert [one.shape for one in found] == [(len(images), 2)] * 2
    assert all(np.allclose(one.sum(axis=1), 1) for one in found)
    assert np.array_equal(estimator.predict(images)[:, 1], (found[1][:, 1] >= 0.5).astype(int))
    with pytest.raises(DataError):
        library.OGKDClassifier(str(clip), class_names=names).fit(images, y + 3)


def test_the_exported_file_answers_like_the_model(calibrated, films, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    from ogkd.export import export_onnx

    found = library.load(calibrated, device="cpu")
    images = [films.parent / f"{n}.png" for n in range(3)]
    done = export_onnx(found, tmp_path / "m.onnx", images=images)
    assert done.largest_difference < 1e-4
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    card = json.loads(session.get_modelmeta().custom_metadata_map["ogkd"])
    assert len(card["questions"]) == len(NAMES)
    assert len(card["calibration"]["sets"]["least_probability"]) == len(NAMES)


def test_the_page_says_yes_no_or_unsure_for_each_finding(calibrated, films):
    pytest.importorskip("starlette")
    from ogkd.images import ImageRef, read_image
    from ogkd.serve.models import answers, load_models
    from ogkd.serve.uploads import Upload

    file = films.parent / "0.png"
    upload = Upload({file: file.name}, [ImageRef(file)], read_image(file))
    [said] = answers(load_models([calibrated]), upload)
    assert said["evidence"] is not None
    assert set(said["answers"]) == set(said["probabilities"]) == set(NAMES)
    yes = [name for name in NAMES if said["answers"][name] == "yes"]
    assert said["prediction"] == ("|".join(yes) or "none")
