"""A user's mistake, in any command: one message that names its cause, code 2, nothing written."""

from __future__ import annotations

import json
import shlex
import shutil

import pytest

from tiny_data import write_dataset

PREDICT = "predict {fitted} {data}"
ZERO = "predict {data} --zero-shot"
FIT = "fit {data} -b {clip} -m ogkd -o m"
EMBED = "embed -b {clip} -o f"
EVALUATE = "evaluate {fitted} {data} --resamples 0"
PHANTOMS = "phantoms us-breast"
SPLIT = "data split table.csv --out s.csv"
NEW = "prompts new -c 'a, b' -o"
NAMES = "'benign tumor, normal_lung'"

# A line: what its message names.
MISTAKES = {
    # Words that are no command
    **dict.fromkeys(("fitt", "fit", "fit x --shot 1", "backbones x"), ""),
    "fit x -o y --encoder-engine int8": "--engine",
    "embed x -o y --on-eror skip": "--on-error",
    **{f"{line} ''": "An argument is empty" for line in ("predict m", "evaluate m", "fit")},
    # Guarantees are checked by one function, before anything is served or written
    **{
        f"{command} --coverage {value}": "--coverage"
        for command in (PREDICT, "app {fitted}", "app {ranked}")
        for value in ("2", "0", "nan", "0.999")
    },
    **{
        f"{command} --max-risk {value}": "--max-risk"
        for command in (PREDICT, "app {fitted}", "export {fitted} --onnx m.onnx")
        for value in ("0.1", "nan")
    },
    f"{PREDICT} --confidence 1.5": "--confidence",
    "calibrate {fitted} {data} --split test --sensitivity 0.9": "--sensitivity",
    f"{PREDICT} --prior 'benign tumor=many'": "--prior",
    f"{PREDICT} --prior 'benign tumor=1,benign tumor=0'": "--prior",
    f"{PREDICT} --prior 'benign tumor=1'": "no share for: malignant tumor, normal lung",
    f"{PREDICT} --prior 'benign tumor=1' --max-risk 0.1": "--max-risk",
    f"{ZERO} {NAMES} -b builtin --max-risk 0.1": "--max-risk",
    # Models
    "predict {data} {fitted}": "The model comes first",
    "predict {fitted}": "IMAGES",
    "predict started {data}": "Did you mean started/model?",
    "app started": "Did you mean started/model?",
    **{f"{command} {{data}} {{data}}": "not a model folder" for command in ("evaluate", "predict")},
    "predict absent {data}": "not a model folder",
    "predict newer {data}": "newer ogkd",
    "predict moved {data}": "--backbone",
    f"{PREDICT} -b builtin": "fitted with another backbone",
    # Images and data
    "predict {fitted} gone.png": "gone.png",
    "evaluate {fitted} stones": "does not know: stone",
    "calibrate {fitted} stones --split test": "does not know: stone",
    "evaluate {fitted} gone": "gone",
    f"{EVALUATE} --split val": "--split",
    "calibrate {fitted} {data}": "--split",
    "calibrate {fitted} {data} --split train": "--split",
    "calibrate {fitted} {data} --split test": "Too few images to calibrate on: 6",
    "evaluate {fitted} broken --resamples 0": "2 file(s) could not be read",
    "embed broken -b {clip} -o f": "--on-error",
    "fit broken -b {clip} -o m": "--on-error",
    "export {fitted} --onnx m.onnx --check broken/test": "bad.png",
    "export {fitted} --onnx m.onnx --check gone": "gone",
    # Outputs
    f"{PREDICT} --out folder": "--out",
    f"{PREDICT} --out file/rows.csv": "file/rows.csv",
    f"{PREDICT} --explain file": "Cannot write file",
    "predict {fitted} image.png --out image.png": "not overwritten",
    f"{EVALUATE} --out folder": "--out",
    f"{EVALUATE} --report folder": "--report",
    f"{EVALUATE} --report file/r.html": "file/r.html",
    **{f"embed {{data}} -b {{clip}} -o {out}": out for out in ("folder", "image.png", "file/f")},
    "export {fitted} --onnx m.json": ".onnx",
    "export {fitted}": "--onnx",
    "demo -o taken": "--out",
    "demo -o file": "--out",
    "data split table.csv -o table.csv": "--out",
    # A fit
    f"{FIT} --method ogdk": "Did you mean 'ogkd'?",
    f"{FIT} --preset paper/few-shot/nothing": "Unknown preset of ogkd",
    f"{FIT} --set train.epochs=many": "'train.epochs' of ogkd cannot be 'many'",
    f"{FIT} --set train.epochs": "--set",
    f"{FIT} --shots 0": "shots must be at least 1",
    f"{FIT} --seed -1": "--seed",
    f"{FIT} --backbone nothing": "no backbone called 'nothing'",
    f"{FIT} --prompts gone.json": "gone.json",
    "fit {data} -m zero-shot -o m": "knows only phantoms",
    "fit table.csv --cases exam -b {clip} -o m": "--cases",
    "data check table.csv --cases exam": "--cases",
    f"{SPLIT} --cases exam": "--cases",
    **{f"{SPLIT} --shares {shares}": "--shares" for shares in ("1", "a,b", "1,0", "nan,1")},
    # Without a fit
    f"{ZERO} normal": "at least two classes",
    f"{ZERO} normal,normal": "twice",
    f"{ZERO} {NAMES} --prompts nope": "shipped bank",
    f"{ZERO} {NAMES}": "knows only phantoms",
    f"{PREDICT} --prompts busi": "--prompts",
    f"{PREDICT} --format xml": "--format",
    # Features
    EMBED: "Missing argument",
    f"{EMBED} folder --device warp": "warp",
    # What comes with ogkd
    **{f"backbones {command} biomedclap": "biomedcl" for command in ("info", "fetch")},
    "backbones fetch {clip}": "nothing to fetch",
    "backbones fetch builtin": "builtin",
    "data list btmr": "Did you mean 'btmri'",
    "data download btmri btmr": "Did you mean 'btmri'",
    "data download": "Missing argument",
    PHANTOMS: "--out",
    "phantoms us-brest -o p": "Did you mean 'us-breast'?",
    f"{PHANTOMS} -o p --size 5": "--size",
    f"{PHANTOMS} -o taken": "not an empty folder",
    # Prompts
    "prompts show nothing": "shipped bank",
    "prompts show released": "ogkd prompts fetch released",
    "prompts check file": "not valid JSON",
    "prompts fetch other": "other",
    f"{NEW} file": "not overwritten",
    # Start
    "start {data}": "Add --yes",
    "start table.csv -y -o file": "is a file",
    "start {data} -y -o taken": "is not empty",
    "start images -y -o images/out": "inside the data",
    "start gone -y -o n": "no folder or table",
}


@pytest.fixture(scope="module")
def ranked(clip, tmp_path_factory, module_cache):
    """A model whose sets come from the images learned from."""
    import ogkd as library

    folder = tmp_path_factory.mktemp("ranked")
    data = write_dataset(folder / "data", splits={"train": 10})
    library.fit(data, backbone=clip, method="fused", out=folder / "model")
    return folder / "model"


@pytest.fixture(scope="module")
def mistakes(data, fitted, tmp_path_factory):
    """What the lines name."""
    folder = tmp_path_factory.mktemp("mistakes")
    write_dataset(folder / "stones", ["benign tumor", "stone"], {"test": 2, "val": 2})
    write_dataset(folder / "images", splits={"": 2})
    broken = shutil.copytree(data, folder / "broken")
    for split in ("train", "test"):
        for name in ("bad.png", "worse.png"):
            (broken / split / "normal_lung" / name).write_bytes(b"not an image")
    (folder / "folder").mkdir()
    (folder / "file").write_text("x")
    (folder / "taken").mkdir()
    (folder / "taken" / "thesis.txt").write_text("x")
    shutil.copy(next((data / "test").rglob("*.png")), folder / "image.png")
    rows = ["path,label,exam,split", "a.png,cyst,1,train", "b.png,stone,1,train"]
    (folder / "table.csv").write_text("\n".join(rows))
    shutil.copytree(fitted, folder / "started" / "model")
    for name, change in {
        "newer": {"schema_version": 99},
        "moved": {"backbone": {"name": "gone", "digest": "0" * 64}},
    }.items():
        card = json.loads((shutil.copytree(fitted, folder / name) / "model.json").read_text())
        del card["sha256"]
        card["backbone"] |= change.pop("backbone", {})
        (folder / name / "model.json").write_text(json.dumps(card | change))
    return folder


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_ends_in_one_message(
    ogkd, mistakes, ranked, fitted, clip, data, monkeypatch, line
):
    monkeypatch.chdir(mistakes)
    monkeypatch.setenv("COLUMNS", "300")

    def files():
        return {path: path.stat().st_mtime_ns for path in mistakes.rglob("*") if path.is_file()}

    before = files()
    places = {"fitted": fitted, "ranked": ranked, "clip": clip, "data": data}
    outcome = ogkd(*shlex.split(line.format(**places)))
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert outcome.err.count("Error") == 1, outcome.err
    assert "Traceback" not in outcome.err
    assert MISTAKES[line] in outcome.err
    assert files() == before


@pytest.mark.parametrize("words", ["{fitted} folder", "--zero-shot a,b folder"])
def test_no_image_at_all_has_an_exit_code_of_its_own(ogkd, mistakes, fitted, monkeypatch, words):
    monkeypatch.chdir(mistakes)
    outcome = ogkd("predict", *words.format(fitted=fitted).split())
    assert (outcome.code, outcome.out) == (3, "")
    assert "No images found" in outcome.err
